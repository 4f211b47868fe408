"""The reference pipelines by name, their parameters, and values from the command line for them."""

from __future__ import annotations

import difflib
import importlib
import inspect
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


@dataclass(frozen=True)
class Parameter:
    """A pipeline's parameter: its type in Python's words, its default, and what the docstring says about it."""

    name: str
    type: type
    default: Any
    help: str


def reference_of(name: str) -> str:
    """``module:function`` of a pipeline.

    Raises:
        BadInput: there is none of that name.
    """
    if name not in PIPELINES:
        raise BadInput(f"there is no pipeline {name!r}. {_nearest(name, PIPELINES)}", "unknown-pipeline")
    return PIPELINES[name][0]


def parameters_of(name: str) -> dict[str, Parameter]:
    """Parameters of a pipeline, from the signature and docstring of its function."""
    module, _, function = reference_of(name).partition(":")
    pipeline = getattr(importlib.import_module(module), function).pipeline_func
    helps = {p.arg_name: " ".join((p.description or "").split()) for p in _docstring(pipeline).params}
    signature = inspect.signature(pipeline)
    return {
        one.name: Parameter(one.name, one.annotation, one.default, helps.get(one.name, ""))
        for one in signature.parameters.values()
    }


def _docstring(function: Any) -> Any:
    import docstring_parser  # comes with kfp

    return docstring_parser.parse(function.__doc__ or "")


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
