"""From a step to a job: the variables by which any container finds its inputs and outputs, and what became of them.

The contract: ``TUNESMITH_INPUT_<NAME>`` is where an input lies, ``TUNESMITH_OUTPUT_<NAME>`` an empty folder for an
output, ``TUNESMITH_CHECKPOINTS`` a folder that outlives the attempt. On a laptop all are folders of this machine.
"""

from __future__ import annotations

import difflib
import functools
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tunesmith.clusters import namespace_of, open_cluster
from tunesmith.errors import BadInput
from tunesmith.launch.loop import Outcome, Request, launch
from tunesmith.resources import Footprint
from tunesmith.tasks.step import Step
from tunesmith.workloads.base import Manifest, Workload

SpecT = TypeVar("SpecT", bound=BaseModel)


def run_job(
    this: Step,
    workload: Workload,
    spec: Any,
    *,
    reads: Mapping[str, Any],
    writes: Mapping[str, Any],
    namespace: str = "",
) -> Outcome:
    """Launch ``spec`` as the step's job with the step's artifacts handed over, and wait for it.

    Args:
        this: the step that launches.
        workload: module of the kind, for example `tunesmith.workloads.pytorchjob`.
        spec: the kind's spec; has ``env``, ``replicas``, ``resources`` and ``policy``.
        reads: input artifacts by name; None values are left out.
        writes: output artifacts by name; each is a folder.
        namespace: where the job is created; empty for the step's own.

    Raises:
        LaunchFailed: the job did not reach success.
    """
    _refuse_reserved(spec.env)
    environment = {
        **{
            f"TUNESMITH_INPUT_{name.upper()}": _where(artifact)
            for name, artifact in reads.items()
            if artifact is not None
        },
        **{f"TUNESMITH_OUTPUT_{name.upper()}": _where(artifact) for name, artifact in writes.items()},
        "TUNESMITH_CHECKPOINTS": checkpoints(this),
    }
    given = {name: value.replace("$", "$$") for name, value in environment.items()}  # Kubernetes expands $(NAME)
    spec = spec.model_copy(update={"env": {**spec.env, **given}})
    request = Request(
        workload=workload,
        build=functools.partial(workload.build, spec),  # type: ignore[attr-defined]
        task=this.place.task,
        namespace=namespace or namespace_of(),
        identity=this.identity,
        resume_key=this.resume_key,
        retries=spec.policy.retries,
        before_create=lambda: _empty_folders(writes),
    )
    this.job_footprint = Footprint.of(spec.resources, spec.replicas)
    outcome = launch(request, open_cluster(), tries=this.tries)
    this.launched(outcome)
    for name, artifact in writes.items():
        _bring_home(outcome, f"TUNESMITH_OUTPUT_{name.upper()}", _where(artifact))
        this.expect(name, (((outcome.result or {}).get("outputs") or {}).get(name) or {}).get("digest"))
    return outcome


def parse(model: type[SpecT], values: Mapping[str, Any]) -> SpecT:
    """``values`` as a spec.

    Raises:
        BadInput: fields that are unknown or have a wrong value, each named.
    """
    try:
        return model(**values)
    except ValidationError as error:
        lines = [_sentence(one, model) for one in error.errors()]
        raise BadInput("; ".join(lines), "invalid-argument") from None


def _sentence(problem: Any, model: type[BaseModel]) -> str:
    """One of pydantic's problems in the user's words."""
    where = ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
        known = list(model.model_fields)
        near = difflib.get_close_matches(where, known, 1, 0.5)
        hint = f"Did you mean {near[0]}?" if near else f"Known are {', '.join(known)}."
        return f"{where}: there is no such field. {hint}"
    message = problem["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" + ("" if repr(problem["input"]) in message else f" (got {problem['input']!r:.80})")


def checkpoints(this: Step) -> str:
    """Where the checkpoints of this work lie, whichever run does it."""
    root = os.environ.get("TUNESMITH_CHECKPOINT_ROOT") or f"{this.place.root.rsplit('/', 1)[0]}/checkpoints"
    return f"{root}/{this.resume_key}"


def _where(artifact: Any) -> str:
    """The artifact's own URI; on a laptop kfp gives it as a plain path."""
    return str(Path(artifact.uri).absolute()) if "://" not in artifact.uri else str(artifact.uri)


def _refuse_reserved(env: Mapping[str, str]) -> None:
    reserved = sorted(name for name in env if name.startswith(("TUNESMITH_", "PET_")))
    if reserved:
        raise BadInput(
            f"env sets {', '.join(reserved)}: names that start with TUNESMITH_ or PET_ are set by the step and the "
            "operator. Choose another name.",
            "reserved-variable",
        )


def _empty_folders(writes: Mapping[str, Any]) -> None:
    """Folders without leavings of an earlier attempt; other storage needs none."""
    for place in map(_where, writes.values()):
        if "://" not in place:
            shutil.rmtree(place, ignore_errors=True)
            Path(place).mkdir(parents=True, exist_ok=True)


def _bring_home(outcome: Outcome, variable: str, place: str) -> None:
    """Have the output of a job that was attached to also where this run wants it.

    What the run that created the job has is left to it: its records, and the job itself, name that place.
    """
    written = _variable(outcome.snapshot.object or {}, variable).replace("$$", "$")
    if "://" in place:
        return
    if written and written != place:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(written, place, symlinks=True, copy_function=_link_or_copy)
    if not any(path.is_file() and not path.is_symlink() for path in Path(place).rglob("*")):
        raise BadInput(
            f"the job succeeded but wrote nothing to {variable} ({place}). Write the output into that folder.",
            "empty-output",
        )


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or one without hard links
        shutil.copy2(source, target)


def _variable(manifest: Manifest, name: str) -> str:
    """The value of an environment variable anywhere in a manifest's containers."""
    if isinstance(manifest, dict):
        if manifest.get("name") == name and isinstance(manifest.get("value"), str):
            return str(manifest["value"])
        manifest = list(manifest.values())  # type: ignore[assignment]
    if isinstance(manifest, list):
        return next((found for inner in manifest if (found := _variable(inner, name))), "")
    return ""
