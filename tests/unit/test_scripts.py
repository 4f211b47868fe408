"""The scripts behind the Makefile that need nothing installed or write into the tree."""

import ast
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


environment = load("environment")


@pytest.mark.parametrize(
    ("version", "free_gb", "words"),
    [
        pytest.param((3, 11, 3), 100, "Python 3.11.3 is too old", id="a Python that extracts hostile paths"),
        pytest.param((3, 9, 18), 100, "make PYTHON=python3.12 run", id="an old Python gets the command to type"),
        pytest.param((3, 11, 4), 9.5, "9.5 GB are free", id="a disk that would fill up"),
    ],
)
def test_machine_that_cannot_hold_the_environment_gets_one_sentence(version, free_gb, words):
    found = environment.problem(version, int(free_gb * 1e9))
    assert words in found
    assert "\n" not in found


@pytest.mark.parametrize("version", [(3, 11, 4), (3, 12, 0)])
def test_machine_with_python_and_space_is_fine(version):
    assert environment.problem(version, 10 * 10**9) is None


def test_environment_is_current_for_the_extras_that_it_has_and_no_others(tmp_path):
    digest = environment._digest()
    assert not environment.is_current("local", tmp_path)
    (tmp_path / "installed-local").write_text(digest)
    assert environment.is_current("local", tmp_path)
    assert not environment.is_current("local,test,dev", tmp_path)
    (tmp_path / "installed-local-test-dev").write_text(digest)
    (tmp_path / "installed-local").unlink()
    assert environment.is_current("local", tmp_path)


def test_environment_of_another_setup_cfg_is_not_current(tmp_path):
    (tmp_path / "installed-local").write_text("digest of an earlier one")
    assert not environment.is_current("local", tmp_path)


def test_installing_script_runs_without_anything_installed():
    code = f"import runpy; runpy.run_path({str(ROOT / 'scripts' / 'environment.py')!r}, run_name='imported')"
    found = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


@pytest.fixture
def tree(tmp_path):
    """A copy of what the skeleton reads and writes."""
    for name in ("components", "tunesmith/tasks"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    for name in ("setup.cfg", "pyproject.toml", "tunesmith/__init__.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def skeleton(tree, *arguments):
    command = [sys.executable, ROOT / "scripts" / "skeleton.py", "--root", tree, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_new_component_has_the_files_of_the_others_and_is_listed_and_priced(tree):
    found = skeleton(tree, "tuning", "count_words")
    assert found.returncode == 0, found.stderr
    other = {path.name for path in (ROOT / "components/data/import_model").iterdir() if path.name != "__pycache__"}
    folder = tree / "components" / "tuning" / "count_words"
    assert {path.name for path in folder.iterdir()} == other - {"README.md", "component.yaml"}  # those are generated
    packages = (tree / "setup.cfg").read_text()
    assert "    tunesmith.components.tuning\n    tunesmith.components.tuning.count_words\n" in packages
    assert '    "count_words": _fixed(' in (tree / "tunesmith/tasks/footprints.py").read_text()


def test_new_component_is_formatted_and_its_own_tests_pass(tree):
    skeleton(tree, "tuning", "count_words")
    for command in (["check"], ["format", "--check"]):
        style = [sys.executable, "-m", "ruff", *command, "--no-cache", "components/tuning"]
        found = subprocess.run(style, cwd=tree, capture_output=True, text=True)
        assert found.returncode == 0, found.stdout
    # The fixtures of the tree, and its package with the new component and the new price rule in it.
    (tree / "conftest.py").write_text(
        f"{(ROOT / 'conftest.py').read_text()}\n"
        "import tunesmith.components, tunesmith.tasks\n"
        f"tunesmith.components.__path__[:] = [{str(tree / 'components')!r}]\n"
        f"tunesmith.tasks.__path__.insert(0, {str(tree / 'tunesmith' / 'tasks')!r})\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "components/tuning"]
    found = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    assert "2 passed" in found.stdout, found.stdout + found.stderr


@pytest.mark.parametrize(
    ("category", "name", "words"),
    [
        pytest.param("data", "import_model", "exists already", id="a name that is taken"),
        pytest.param("data", "CountWords", "snake_case", id="a name in another case"),
        pytest.param("", "count_words", "CATEGORY", id="no category"),
    ],
)
def test_name_that_cannot_be_used_changes_nothing(tree, category, name, words):
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    found = skeleton(tree, category, name)
    assert found.returncode == 2
    assert words in found.stderr
    assert {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()} == before


def test_scripts_say_what_they_are_for():
    assert all(ast.get_docstring(ast.parse(file.read_text())) for file in (ROOT / "scripts").glob("*.py"))
