"""What holds for every component and pipeline of the catalogue, whichever it is."""

import ast
import datetime
import importlib
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import docstring_parser
import pytest
import yaml
from kfp import compiler, components, dsl

import tunesmith
from tunesmith.tasks.footprints import RULES

ROOT = Path(__file__).parents[2]
COMPONENTS = sorted(file.parent.relative_to(ROOT) for file in ROOT.glob("components/*/*/component.py"))
PIPELINES = sorted(file.parent.relative_to(ROOT) for file in ROOT.glob("pipelines/*/pipeline.py"))
ASSETS = COMPONENTS + PIPELINES

IMAGES = {f"ghcr.io/tunesmith/{name}:{tunesmith.__version__}" for name in ("launcher", "trainer")}
EXEC_ARGUMENT_LIMIT = 60_000  # bytes; Linux refuses an argument of 128 KiB, and KFP adds to it
REQUIRED = ["name", "stability", "dependencies", "lastVerified"]
OPTIONAL = {"tags", "ci", "links"}
VERSION = re.compile(r"(==|>=|<=)?\d+\.\d+\.\d+")

for_each_component = pytest.mark.parametrize("folder", COMPONENTS, ids=lambda folder: folder.name)
for_each_asset = pytest.mark.parametrize("folder", ASSETS, ids=lambda folder: folder.name)


def component_of(folder):
    return getattr(importlib.import_module(f"tunesmith.{'.'.join(folder.parts)}"), folder.name)


def function_of(folder):
    asset = component_of(folder)
    return asset.pipeline_func if folder in PIPELINES else asset.python_func


def metadata_of(folder):
    return yaml.safe_load((ROOT / folder / "metadata.yaml").read_text())


def module_level_imports(file):
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


def test_the_catalogue_is_found():
    assert len(COMPONENTS) >= 9
    assert PIPELINES


@for_each_component
def test_component_declares_the_output_record(folder):
    assert component_of(folder).component_spec.outputs["record"].type.startswith("system.Artifact")


@for_each_component
def test_component_imports_only_stdlib_and_kfp_at_module_level(folder):
    imported = set(module_level_imports(ROOT / folder / "component.py"))
    assert imported <= set(sys.stdlib_module_names) | {"kfp"}


@for_each_component
def test_component_runs_in_one_of_our_images_of_this_version(folder):
    assert component_of(folder).component_spec.implementation.container.image in IMAGES


@for_each_component
def test_component_installs_nothing_when_it_starts(folder):
    command = " ".join(component_of(folder).component_spec.implementation.container.command)
    assert "pip install" not in command


@for_each_component
def test_component_body_is_ascii_and_fits_into_an_exec_argument(folder):
    source = max(component_of(folder).component_spec.implementation.container.command, key=len)
    assert f"def {folder.name}(" in source
    assert source.isascii()
    assert len(source) < EXEC_ARGUMENT_LIMIT


@for_each_component
def test_component_has_a_price_rule(folder):
    assert folder.name in RULES


def test_no_price_rule_is_left_of_a_component_that_is_gone():
    assert set(RULES) == {folder.name for folder in COMPONENTS}


@for_each_component
def test_compiled_component_is_loaded_by_kfp_with_the_same_interface(folder):
    loaded = components.load_component_from_file(str(ROOT / folder / "component.yaml")).component_spec
    written = component_of(folder).component_spec
    assert set(loaded.inputs or ()) == set(written.inputs or ())
    assert set(loaded.outputs) == set(written.outputs)


@for_each_component
def test_example_pipelines_compile(folder, tmp_path):
    examples = importlib.import_module(f"tunesmith.{'.'.join(folder.parts)}.example_pipelines")
    pipelines = [one for one in vars(examples).values() if isinstance(one, dsl.graph_component.GraphComponent)]
    assert pipelines
    for pipeline in pipelines:
        compiler.Compiler().compile(pipeline, str(tmp_path / "example.yaml"))
        assert f"comp-{folder.name.replace('_', '-')}" in (tmp_path / "example.yaml").read_text()


@for_each_component
def test_component_has_tests_of_its_own(folder):
    tests = (ROOT / folder / "tests" / f"test_{folder.name}.py").read_text()
    assert "python_func" in tests


@for_each_asset
def test_docstring_describes_every_parameter_and_no_other(folder):
    function = function_of(folder)
    described = docstring_parser.parse(function.__doc__, docstring_parser.DocstringStyle.GOOGLE)
    assert described.short_description
    assert [one.arg_name for one in described.params] == list(inspect.signature(function).parameters)
    assert all(one.description for one in described.params)


@for_each_asset
def test_metadata_keeps_the_schema_of_the_upstream_catalogue(folder):
    metadata = metadata_of(folder)
    assert list(metadata)[: len(REQUIRED)] == REQUIRED
    assert set(metadata) <= {*REQUIRED, *OPTIONAL}
    assert metadata["name"] == folder.name
    assert metadata["stability"] in ("experimental", "alpha", "beta", "stable")
    assert set(metadata["dependencies"]) <= {"kubeflow", "external_services"}
    assert "Pipelines" in [one["name"] for one in metadata["dependencies"]["kubeflow"]]
    for one in (one for group in metadata["dependencies"].values() for one in group):
        assert set(one) == {"name", "version"}
        assert VERSION.fullmatch(one["version"])
    assert all(isinstance(tag, str) for tag in metadata.get("tags", []))
    assert set(metadata.get("ci", {})) <= {"skip_dependency_probe"}


@for_each_asset
def test_last_verification_is_a_moment_in_utc(folder):
    verified = metadata_of(folder)["lastVerified"]
    assert isinstance(verified, datetime.datetime)
    assert verified.utcoffset() in (None, datetime.timedelta(0))
    text = (ROOT / folder / "metadata.yaml").read_text()
    assert re.search(r"^lastVerified: \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$", text, re.MULTILINE)


@for_each_asset
def test_links_of_the_metadata_lead_to_files(folder):
    for target in metadata_of(folder).get("links", {}).values():
        assert target.startswith("https://") or (ROOT / target).is_file()


@for_each_asset
def test_asset_has_at_least_one_approver(folder):
    assert yaml.safe_load((ROOT / folder / "OWNERS").read_text())["approvers"]


@for_each_asset
def test_package_exports_the_function(folder):
    module = importlib.import_module(f"tunesmith.{'.'.join(folder.parts)}")
    assert module.__all__ == [folder.name]


@for_each_asset
def test_generated_files_say_so_in_their_first_line(folder):
    compiled = "component.yaml" if folder in COMPONENTS else "golden/kubeflow.yaml"
    for name in ("README.md", compiled):
        first, _, rest = (ROOT / folder / name).read_text().partition("\n")
        assert "Generated by scripts/generate.py" in first
        assert rest


@for_each_asset
def test_compiled_files_are_ascii(folder):
    compiled = "component.yaml" if folder in COMPONENTS else "golden/kubeflow.yaml"
    assert (ROOT / folder / compiled).read_text().isascii()


@pytest.fixture
def tree(tmp_path):
    """A copy of what the generators read and write."""
    for name in ("components", "pipelines", "docs", "tunesmith"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    return tmp_path


def generate(*arguments):
    command = [sys.executable, ROOT / "scripts" / "generate.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_generated_files_are_in_sync_with_their_sources():
    found = generate()
    assert found.returncode == 0, found.stdout + found.stderr


def test_generator_names_the_file_that_was_edited_and_mends_it_on_request(tree):
    page = tree / "components" / "data" / "import_model" / "README.md"
    before = page.read_text()
    page.write_text(before.replace("## Outputs", "## Results"))
    checked = generate("--root", tree)
    assert checked.returncode == 1
    assert "components/data/import_model/README.md" in checked.stdout
    assert "make generate" in checked.stdout
    assert "Results" in page.read_text()
    assert generate("--root", tree, "--fix").returncode == 0
    assert page.read_text() == before


def test_generator_keeps_what_was_written_below_the_mark(tree):
    page = tree / "components" / "data" / "import_model" / "README.md"
    page.write_text(page.read_text().replace("# import_model", "# changed", 1) + "\nSeen at sea.\n")
    assert generate("--root", tree, "--fix").returncode == 0
    assert page.read_text().endswith("\nSeen at sea.\n")
    assert "# changed" not in page.read_text()


def test_generator_writes_only_below_the_paths_that_it_is_given(tree):
    (tree / "docs" / "cli.md").unlink()
    golden = tree / "pipelines" / "llm_finetune" / "golden" / "kubeflow.yaml"
    golden.unlink()
    found = generate("--root", tree, "--fix", "pipelines/llm_finetune/golden")
    assert found.stdout.split() == ["wrote", "pipelines/llm_finetune/golden/kubeflow.yaml"]
    assert golden.read_text() == (ROOT / "pipelines" / "llm_finetune" / "golden" / "kubeflow.yaml").read_text()


def test_generator_refuses_an_error_that_is_not_explained(tree):
    gate = tree / "tunesmith" / "tasks" / "gate.py"
    gate.write_text(gate.read_text() + '\n\ndef refuse():\n    raise BadInput("no", "never-heard-of")\n')
    found = generate("--root", tree)
    assert found.returncode == 1
    assert "never-heard-of is raised by tasks/gate.py and not explained" in found.stdout


def test_generator_that_cannot_read_its_sources_exits_with_2(tree):
    (tree / "components" / "data" / "import_model" / "metadata.yaml").unlink()
    found = generate("--root", tree)
    assert found.returncode == 2
    assert "metadata.yaml" in found.stderr
