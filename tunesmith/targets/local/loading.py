"""Finding a pipeline by reference, and telling its parameters.

A reference is ``module:function`` or ``FILE.py:function``; without a function, the only pipeline in it. Loading one
runs its author's Python, so the command line does it in a process of its own.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tunesmith.errors import BadInput

_REFUSED = 2


def load(reference: str) -> Any:
    """The pipeline that ``reference`` names.

    Raises:
        BadInput: there is no such file, module or function, or it is not a pipeline.
    """
    from kfp.dsl.graph_component import GraphComponent

    place, _, function = reference.partition(":")
    module = _module(place)
    if function:
        found = getattr(module, function, None)
        if not isinstance(found, GraphComponent):
            what = "is not a pipeline" if found is not None else "does not exist"
            raise BadInput(f"{place}: {function} {what}. Name a function with @dsl.pipeline.", "unknown-pipeline")
        return found
    own = {name: value for name, value in vars(module).items() if isinstance(value, GraphComponent)}
    if len(own) != 1:
        named = ", ".join(own) or "none"
        raise BadInput(f"{place} has {len(own)} pipelines ({named}). Write {place}:FUNCTION.", "unknown-pipeline")
    return next(iter(own.values()))


def _module(place: str) -> Any:
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise BadInput(f"there is no module {error.name}. Write FILE.py:function or module:function.") from None
    file = Path(place)
    if not file.is_file():
        raise BadInput(f"there is no file {file}. Write FILE.py:function.", "unknown-pipeline")
    sys.path.insert(0, str(file.absolute().parent))  # its neighbours, as when Python runs the file
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise BadInput(f"{file} is not a Python file.", "unknown-pipeline")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def describe(reference: str) -> dict[str, Any]:
    """Name, first line and parameters of a pipeline, as JSON; ``required`` ones have no default."""
    import docstring_parser  # comes with kfp

    pipeline = load(reference)
    words = docstring_parser.parse(pipeline.pipeline_func.__doc__ or "")
    helps = {one.arg_name: " ".join((one.description or "").split()) for one in words.params}
    return {
        "name": pipeline.pipeline_func.__name__,
        "description": words.short_description or "",
        "parameters": [
            {
                "name": name,
                "type": spec.type,
                "default": spec.default,
                "required": not spec.optional,
                "help": helps.get(name, ""),
            }
            for name, spec in (pipeline.component_spec.inputs or {}).items()
        ],
    }


def describe_apart(reference: str) -> dict[str, Any]:
    """`describe`, in a process of its own.

    Raises:
        BadInput: the reference names no pipeline, or its Python fails; the last line of the error is told.
    """
    command = [sys.executable, "-m", "tunesmith.targets.local.loading", reference]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stderr.strip().splitlines() or ["no reason was given"]
    if done.returncode == _REFUSED:
        raise BadInput(lines[-1], "unknown-pipeline")
    if done.returncode != 0:
        raise BadInput(f"{reference} cannot be loaded: {lines[-1]}", "broken-pipeline")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    try:
        print(json.dumps(describe(sys.argv[1])))
    except BadInput as error:
        print(error, file=sys.stderr)
        sys.exit(_REFUSED)
