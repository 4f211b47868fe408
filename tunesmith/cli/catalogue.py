"""The reference pipelines by name, their parameters, and values from the command line for them."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tunesmith.errors import BadInput

# name: (module:function, one line)
PIPELINES = {
    "llm_finetune": (
        "tunesmith.pipelines.llm_finetune:llm_finetune",
        "Fine-tune a language model, compare it with its base, deploy it if it is better, and report.",
    ),
}


_EXACT_INT = 2**53
_TYPES: dict[str, type] = {
    "String": str,
    "Integer": int,
    "Float": float,
    "Boolean": bool,
    "Bool": bool,
    "List": list,
    "Dict": dict,
}


@dataclass(frozen=True)
class Parameter:
    """A pipeline's parameter: its type, its default unless it is required, and what the docstring says about it."""

    name: str
    type: type
    default: Any
    help: str
    required: bool = False


@dataclass(frozen=True)
class Pipeline:
    """A pipeline that can be run: one of the catalogue, or somebody's own."""

    name: str
    reference: str
    description: str
    parameters: dict[str, Parameter]
    ours: bool


def find(name: str) -> Pipeline:
    """The pipeline of that name, or the one that ``FILE.py:function`` or ``module:function`` refers to.

    Raises:
        BadInput: there is none.
    """
    from tunesmith.targets.local.loading import describe, describe_apart

    own = ":" in name or name.endswith(".py")
    if not own and name not in PIPELINES:
        near = _nearest(name, PIPELINES)
        raise BadInput(f"there is no pipeline {name!r}. {near} Your own: FILE.py:function.", "unknown-pipeline")
    reference = name if own else PIPELINES[name][0]
    about = describe_apart(reference) if own else describe(reference)
    parameters = {
        one["name"]: Parameter(one["name"], _TYPES.get(one["type"], str), one["default"], one["help"], one["required"])
        for one in about["parameters"]
    }
    return Pipeline(about["name"], reference, about["description"], parameters, not own)


def arguments_of(pipeline: Pipeline, settings: Iterable[str]) -> dict[str, Any]:
    """Every argument of the pipeline: what is set, else the default.

    Raises:
        BadInput: a setting cannot be used, or a required parameter has none.
    """
    given = parse_settings(settings, pipeline.parameters)
    missing = [name for name, one in pipeline.parameters.items() if one.required and name not in given]
    if missing:
        raise BadInput(
            f"{pipeline.name} needs {', '.join(missing)}. Write --set {missing[0]}=VALUE.", "missing-parameter"
        )
    return {name: one.default for name, one in pipeline.parameters.items() if not one.required} | given


def parse_settings(settings: Iterable[str], parameters: dict[str, Parameter]) -> dict[str, Any]:
    """Values of ``--set name=value``, each of the parameter's type.

    Raises:
        BadInput: an unknown name (the nearest is named), or a value of the wrong type.
    """
    values: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise BadInput(f"--set {setting}: write --set name=value.", "invalid-setting")
        if name not in parameters:
            raise BadInput(
                f"--set {name}: there is no such parameter. {_nearest(name, parameters)}", "unknown-parameter"
            )
        if name in values:
            raise BadInput(f"--set {name}: it is given twice. Write it once.", "invalid-setting")
        values[name] = _convert(name, text, parameters[name])
    return values


def _convert(name: str, text: str, parameter: Parameter) -> Any:
    wanted = parameter.type
    if wanted is str:
        return text
    try:
        value = json.loads(text)
    except ValueError:
        value = {"True": True, "False": False}.get(text, text)
    if isinstance(value, int) and not -_EXACT_INT <= value <= _EXACT_INT:
        raise BadInput(
            f"--set {name}: {text} is beyond 2^53, where KFP's numbers are no longer exact.", "invalid-setting"
        )
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not wanted:
        example = json.dumps(parameter.default)
        kind = {int: "an integer", float: "a number", bool: "true or false", list: "a JSON list", dict: "a JSON object"}
        raise BadInput(
            f"--set {name}: {text!r} is not {kind[wanted]}. Write for example --set '{name}={example}'.",
            "invalid-setting",
        )
    return value


def _nearest(name: str, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(name, known, 1, 0.5)
    return f"Did you mean {near[0]}?" if near else f"Known are: {', '.join(known)}."
