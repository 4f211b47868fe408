"""Writes a new component that runs, for its author to change: ``make component CATEGORY=data NAME=count_words``."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")

_FILES = {
    "__init__.py": '''"""{title}."""

from tunesmith.components.{category}.{name}.component import {name}

__all__ = ["{name}"]
''',
    "component.py": '''"""{title}."""

from kfp import dsl


@dsl.component(base_image="ghcr.io/tunesmith/launcher:{version}", install_kfp_package=False)
def {name}(
    text: dsl.Input[dsl.Dataset],
    record: dsl.Output[dsl.Artifact],
    longest: int = 100,
):
    """Measure the longest line of a text.

    The step is green when no line is longer than ``longest``.

    Args:
        text: what is measured.
        record: the step's record: what was read and written, with digests, and what it cost.
        longest: characters that a line may have.
    """
    from pathlib import Path

    from tunesmith.errors import BadInput
    from tunesmith.tasks.step import step

    with step(record, component="{name}", parameters={{"longest": longest}}, reads={{"text": text}}) as this:
        lengths = [len(line) for line in Path(text.path).read_text(encoding="utf-8").splitlines()]
        this.metrics["longest_line"] = float(max(lengths, default=0))
        if max(lengths, default=0) > longest:
            raise BadInput(f"text: a line has {{max(lengths)}} characters. Write at most {{longest}}.", "bad-data")
''',
    "example_pipelines.py": '''"""How {name} is used in a pipeline."""

from kfp import dsl

from tunesmith.components.{category}.{name} import {name}
from tunesmith.components.data.prepare_instructions import prepare_instructions


@dsl.pipeline(name="example-{slug}")
def example_{name}():
    """Measure prepared data."""
    {name}(text=prepare_instructions().outputs["train"])
''',
    "metadata.yaml": """name: {name}
stability: experimental
dependencies:
  kubeflow:
    - name: Pipelines
      version: '>=2.17.0'
  external_services: []
lastVerified: 2026-11-30T00:00:00Z
tags:
  - {category}
ci:
  skip_dependency_probe: false
links:
  documentation: docs/architecture.md
  errors: docs/errors.md
""",
    "OWNERS": """approvers:
  - tunesmith-maintainers
""",
    "tests/test_{name}.py": '''import pytest
from kfp import dsl

from tunesmith.components.{category}.{name} import {name}
from tunesmith.tasks.step import StepFailed


@pytest.fixture
def run(step_folder):
    """Run the step on a text; returns its folder."""

    def call(content, **arguments):
        step = step_folder("{slug}")
        text = step_folder("before").artifact(dsl.Dataset, "text", content)
        {name}.python_func(text, step.artifact(dsl.Artifact, "record"), **arguments)
        return step

    return call


def test_longest_line_is_in_the_record(run):
    assert run("a\\nbcd\\n").record()["metrics"] == {{"longest_line": 3}}


def test_line_that_is_too_long_fails_the_step(run):
    with pytest.raises(StepFailed) as raised:
        run("abc", longest=2)
    assert "3 characters" in raised.value.record.failure.message
''',
}


def write(root: Path, category: str, name: str) -> list[Path]:
    """Write the component's files and the two lines that others need to find it; returns what was written.

    Raises:
        ValueError: the names cannot be used, or the component exists.
    """
    for what, value in (("CATEGORY", category), ("NAME", name)):
        if not _NAME.fullmatch(value):
            raise ValueError(f"{what}={value}: write it in snake_case, for example {what}=count_words")
    folder = root / "components" / category / name
    if folder.exists():
        raise ValueError(f"components/{category}/{name} exists already: choose another NAME")
    version = re.search(r'__version__ = "(.+)"', (root / "tunesmith" / "__init__.py").read_text())
    assert version
    values = {"category": category, "name": name, "slug": name.replace("_", "-"), "version": version[1]}
    values["title"] = name.replace("_", " ").capitalize()
    written = (
        [] if folder.parent.exists() else [_put(folder.parent / "__init__.py", f'"""{category.capitalize()}."""\n')]
    )
    written += [_put(folder / file.format(**values), text.format(**values)) for file, text in _FILES.items()]
    return [*written, _list_packages(root, category, name), _add_price_rule(root, name)]


def _put(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def _list_packages(root: Path, category: str, name: str) -> Path:
    """setup.cfg lists packages one by one; the components stand together and sorted."""
    file = root / "setup.cfg"
    lines = file.read_text().splitlines()
    listed = [line for line in lines if line.startswith("    tunesmith.components.")]
    new = {f"    tunesmith.components.{category}", f"    tunesmith.components.{category}.{name}"}
    start = lines.index(listed[0])
    lines[start : start + len(listed)] = sorted({*listed, *new})
    return _put(file, "\n".join(lines) + "\n")


def _add_price_rule(root: Path, name: str) -> Path:
    file = root / "tunesmith" / "tasks" / "footprints.py"
    lines = file.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("RULES")) + 1
    end = lines.index("}", start)
    lines[start:end] = sorted([*lines[start:end], f'    "{name}": _fixed("100m", "256Mi"),'])
    return _put(file, "\n".join(lines) + "\n")


def main(arguments: list[str] | None = None) -> int:
    """Write the files and say what is left to do; 2 if the names cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("category")
    parser.add_argument("name")
    parser.add_argument("--root", type=Path, default=ROOT)
    options = parser.parse_args(arguments)
    try:
        written = write(options.root, options.category, options.name)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    folder = options.root / "components" / options.category / options.name
    for command in (["check", "--select", "I", "--fix"], ["format"]):  # the order of imports depends on the names
        subprocess.run([sys.executable, "-m", "ruff", *command, "--quiet", str(folder)], check=True)
    for file in written:
        print(f"wrote {file.relative_to(options.root)}")
    print(
        "Next: make install (setup.cfg has new packages), write component.py and its test, correct the price rule in "
        "tunesmith/tasks/footprints.py, make generate, make test."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
