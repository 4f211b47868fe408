"""The catalogue's assets: every component and pipeline of the tree, with what its source and metadata say."""

from __future__ import annotations

import ast
import importlib
import inspect
import pprint
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import docstring_parser
import yaml
from kfp import compiler

ROOT = Path(__file__).resolve().parent.parent
# kfp prints the default of a dict into a comment in another order every time (it iterates over a protobuf map).
_DICT_DEFAULT = re.compile(r"(?<=\[Default: )\{.*\}(?=\]$)", re.MULTILINE)


@dataclass(frozen=True)
class Parameter:
    """One row of a table of inputs or outputs; ``default`` is None where a value must be given."""

    name: str
    type: str
    default: str | None
    description: str


@dataclass(frozen=True)
class Asset:
    """A component or a pipeline in its folder.

    Attributes:
        folder: where its metadata and pages lie; relative to the root of the tree.
        root: root of the tree that is read; the code always comes from the installed package.
    """

    folder: Path
    root: Path = ROOT

    @property
    def is_component(self) -> bool:
        """Whether it is a component; otherwise it is a pipeline."""
        return self.folder.parts[0] == "components"

    @property
    def name(self) -> str:
        """The name of its folder, its function and its metadata."""
        return self.folder.name

    @property
    def category(self) -> str:
        """The folder above it; empty for a pipeline."""
        return self.folder.parts[1] if self.is_component else ""

    @property
    def module(self) -> str:
        """The module to import it from."""
        return f"tunesmith.{'.'.join(self.folder.parts)}"

    @property
    def source(self) -> Path:
        """The file with its function."""
        return self.root / self.folder / ("component.py" if self.is_component else "pipeline.py")

    @cached_property
    def compiled(self) -> Any:
        """The kfp object that its function became."""
        return getattr(importlib.import_module(self.module), self.name)

    @cached_property
    def function(self) -> Any:
        """The function as it was written."""
        return self.compiled.python_func if self.is_component else self.compiled.pipeline_func

    @cached_property
    def docstring(self) -> docstring_parser.Docstring:
        """Its docstring, parsed."""
        return docstring_parser.parse(inspect.getdoc(self.function) or "", docstring_parser.DocstringStyle.GOOGLE)

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """The content of metadata.yaml."""
        loaded: dict[str, Any] = yaml.safe_load((self.root / self.folder / "metadata.yaml").read_text(encoding="utf-8"))
        return loaded

    @cached_property
    def owners(self) -> list[str]:
        """Who approves changes."""
        return list(yaml.safe_load((self.root / self.folder / "OWNERS").read_text(encoding="utf-8"))["approvers"])

    @property
    def launches(self) -> bool:
        """Whether the step waits for a job or service that it launched, and is priced as that."""
        return "launches=True" in self.source.read_text(encoding="utf-8")

    @property
    def inputs(self) -> list[Parameter]:
        """What an author passes; what KFP fills in by itself is left out."""
        given = self.compiled.component_spec.inputs or {}
        return [one for one in self._parameters if one.name in given and one.type != "PipelineTaskFinalStatus"]

    @property
    def outputs(self) -> list[Parameter]:
        """What the step leaves: artifacts and parameters."""
        left = self.compiled.component_spec.outputs or {}
        return [one for one in self._parameters if one.name in left]

    @cached_property
    def _parameters(self) -> list[Parameter]:
        described = {one.arg_name: " ".join((one.description or "").split()) for one in self.docstring.params}
        return [
            Parameter(one.name, _type(one.annotation), _default(one), described.get(one.name, ""))
            for one in inspect.signature(self.function).parameters.values()
        ]

    def yaml(self) -> str:
        """What kfp compiles it to."""
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "compiled.yaml"
            compiler.Compiler().compile(self.compiled, str(target))
            return _DICT_DEFAULT.sub(_sorted, target.read_text(encoding="ascii"))


def assets(root: Path = ROOT) -> list[Asset]:
    """Every component, then every pipeline, by path."""
    return [Asset(folder.relative_to(root), root) for folder in _folders(root)]


def _folders(root: Path) -> Iterator[Path]:
    yield from sorted(file.parent for file in root.glob("components/*/*/component.py"))
    yield from sorted(file.parent for file in root.glob("pipelines/*/pipeline.py"))


def _type(annotation: Any) -> str:
    """``Model`` for an artifact, ``str`` for a parameter; kfp annotates artifacts and output paths in its own ways."""
    inner = getattr(annotation, "__origin__", None) or getattr(annotation, "type", None) or annotation
    return str(getattr(inner, "__name__", inner))


def _default(parameter: inspect.Parameter) -> str | None:
    return None if parameter.default is inspect.Parameter.empty else repr(parameter.default)


def _sorted(match: re.Match[str]) -> str:
    return pprint.pformat(ast.literal_eval(match[0]), width=10**6, sort_dicts=True)
