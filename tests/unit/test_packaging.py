"""The package as others get it: a wheel in an environment of its own. It costs seconds, and nothing cheaper shows what
an editable install hides: files that the wheel lacks, and mapped packages that import-linter and mypy do not see."""

import configparser
import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAPPED = {"tunesmith": "tunesmith", "tunesmith.components": "components", "tunesmith.pipelines": "pipelines",
          "tunesmith.katib_experiments": "katib_experiments"}  # fmt: skip

# One violation of each contract: the contract's first word, the file that gets the import, and the import.
PLANTED = {
    "layers": ("tasks/gate.py", "from tunesmith.components.evaluation.quality_gate import quality_gate"),
    "launch": ("launch/loop.py", "import tunesmith.cost"),
    "kinds": ("workloads/pytorchjob.py", "import tunesmith.lineage.digest"),
    "local": ("local/kubelet.py", "import tunesmith.lineage.record"),
    "report": ("report/render.py", "import tunesmith.clusters"),
    "foundations": ("cost/pricing.py", "import tunesmith.lineage.store"),
    "trainer": ("trainer/sft.py", "import kubernetes"),
    "kfp": ("tasks/step.py", "import kfp"),
    "torch": ("report/svg.py", "import torch"),
    "torch-through-trainer": ("components/serving/smoke_test/component.py", "import torch"),
}


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


wheel = load(ROOT / "scripts" / "wheel.py")


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """The folder of an environment with the wheel; ``installed / "empty"`` is a working directory without packages."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel.install(folder)
    (folder / "empty").mkdir()
    return folder


@pytest.fixture(scope="session")
def python(installed):
    return installed / "venv" / "bin" / "python"


def listed():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser["options"]["packages"].split()


def packages_of_the_tree():
    for name, folder in MAPPED.items():
        for file in (ROOT / folder).rglob("__init__.py"):
            below = file.parent.relative_to(ROOT / folder).parts
            yield ".".join((name, *below))


def test_setup_cfg_lists_exactly_the_packages_of_the_tree():
    assert sorted(listed()) == sorted(packages_of_the_tree())


def test_every_folder_with_python_files_is_a_package_or_holds_tests():
    loose = {
        file.parent.relative_to(ROOT).as_posix()
        for folder in MAPPED.values()
        for file in (ROOT / folder).rglob("*.py")
        if not (file.parent / "__init__.py").exists() and "tests" not in file.parts
    }
    assert not loose


def test_wheel_has_every_module_and_data_file_and_no_tests(installed):
    packed = {path.relative_to(wheel.site_packages(installed)).as_posix()
              for path in (wheel.site_packages(installed) / "tunesmith").rglob("*")
              if path.is_file() and path.suffix != ".pyc"}  # fmt: skip
    wanted = set()
    for name, folder in MAPPED.items():
        for file in (ROOT / folder).rglob("*"):
            below = file.relative_to(ROOT / folder)
            # Pages, metadata and compiled files belong to the repository's catalogue, not to the package.
            catalogue = folder != "tunesmith" and file.suffix != ".py"
            if file.is_file() and not catalogue and "tests" not in below.parts and "__pycache__" not in below.parts:
                wanted.add(f"{name.replace('.', '/')}/{below.as_posix()}")
    assert packed == wanted


def test_every_package_is_imported_from_the_wheel(installed, python):
    code = (
        "import importlib, pathlib, sys\n"
        "for name in sys.argv[2:]:\n"
        "    file = importlib.import_module(name).__file__\n"
        "    assert pathlib.Path(file).is_relative_to(sys.argv[1]), file\n"
        "from tunesmith.cost import load_card\n"
        "print(load_card().name)\n"
    )
    command = [python, "-W", "ignore", "-c", code, installed, *listed()]
    found = subprocess.run(command, cwd=installed / "empty", capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip()


def test_console_script_of_the_wheel_lists_the_pipelines(installed):
    found = subprocess.run(
        [installed / "venv" / "bin" / "tunesmith", "pipelines"], cwd=installed / "empty", capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    assert "llm_finetune" in found.stdout


def test_dependencies_point_one_way(installed, python):
    found = wheel.lint_imports(python, installed / "empty")
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"{len(PLANTED)} kept, 0 broken" in found.stdout


@pytest.mark.parametrize("contract", PLANTED)
def test_planted_import_breaks_its_contract(installed, python, contract, tmp_path):
    file, line = PLANTED[contract]
    shutil.copytree(wheel.site_packages(installed) / "tunesmith", tmp_path / "tunesmith")
    planted = tmp_path / "tunesmith" / file
    planted.write_text(f"{planted.read_text()}\n{line}\n")
    found = wheel.lint_imports(python, tmp_path)
    assert found.returncode == 1
    assert any(text.startswith(f"{contract}:") and text.endswith("BROKEN") for text in found.stdout.splitlines())


def test_every_contract_has_a_planted_violation():
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    contracts = [parser[section]["name"].partition(":")[0] for section in parser.sections() if "contract" in section]
    assert contracts == list(PLANTED)


@pytest.mark.trainer
def test_types_of_the_installed_package_are_sound(installed, python):
    found = wheel.mypy(python, installed / "empty")
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.trainer
def test_type_error_in_a_mapped_package_is_found(installed, python):
    victim = wheel.site_packages(installed) / "tunesmith" / "components" / "data" / "__init__.py"
    before = victim.read_text()
    try:
        victim.write_text(f'{before}\nCOUNT: int = "one"\n')
        found = wheel.mypy(python, installed / "empty")
    finally:
        victim.write_text(before)
    assert found.returncode == 1
    assert "components/data/__init__.py" in found.stdout


def test_version_is_the_same_in_the_package_and_its_metadata(installed, python):
    code = "import importlib.metadata as m, tunesmith; print(m.version('tunesmith'), tunesmith.__version__)"
    found = subprocess.run([python, "-c", code], cwd=installed / "empty", capture_output=True, text=True)
    installed_version, version = found.stdout.split()
    assert installed_version == version
