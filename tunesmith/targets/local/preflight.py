"""What can be known to be wrong before anything is started, so that nothing is left half-done.

Checks go by the names that our pipelines give their parameters; a pipeline that lacks one is not checked for it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tunesmith.errors import BadInput
from tunesmith.resources import Policy, Resources, quantity
from tunesmith.tasks.gate import judge
from tunesmith.tasks.job import SpecT, parse
from tunesmith.workloads.base import dns_label

_TRAINER = ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "safetensors", "gguf", "uvicorn")
NEEDED_BYTES = 3 * 10**9  # a converted base model in the cache, its copy, a tuned one, and checkpoints


def check(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of one of our pipelines, with paths made absolute, if a run with them can be started here.

    Raises:
        BadInput: what is wrong, where, and what to write instead.
    """
    _check_extra()
    checked = dict(arguments)
    for name, one in _CHECKS.items():
        if name in checked:
            checked[name] = one(name, checked[name])
    _check_training(checked)
    return checked


def _check_extra() -> None:
    missing = [name for name in _TRAINER if importlib.util.find_spec(name) is None]
    if missing:
        raise BadInput(
            f"training and serving on this machine need packages that are not installed ({', '.join(missing)}). "
            "Run: pip install 'tunesmith[local]'",
            "missing-extra",
        )


def check_space(workdir: Path) -> None:
    """Refuse a WORKDIR on a disk that is too full for a run.

    Raises:
        BadInput: it is.
    """
    existing = next(folder for folder in (workdir, *workdir.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if free < NEEDED_BYTES:
        raise BadInput(
            f"--workdir {workdir}: {free / 1e9:.1f} GB are free there and a run needs {NEEDED_BYTES / 1e9:.0f} GB. "
            "Free some, or name a --workdir on another disk.",
            "no-space",
        )


def _check_data(name: str, source: str) -> str:
    from tunesmith.trainer.instructions import BUILT_IN, prepare

    if source == BUILT_IN or "://" in source:
        return source
    path = Path(source).expanduser().absolute()
    with tempfile.TemporaryDirectory(prefix="tunesmith-check-") as folder:
        try:
            prepare(str(path), Path(folder) / "train", Path(folder) / "heldout")
        except ValueError as error:
            raise BadInput(f"{name}: {error}", "bad-data") from None
    return str(path)


def _check_model(name: str, reference: str) -> str:
    from tunesmith.trainer.model_import import check_reference

    try:
        path = check_reference(reference)
    except BadInput as error:
        raise BadInput(f"{name}: {error.message}", "no-such-model") from None
    return str(path) if path else reference


def _check_port(name: str, port: int) -> int:
    if not 0 <= port <= 65535:
        raise BadInput(f"{name}: {port} is not a port. Write 1 to 65535, or 0 for a free one.", "invalid-port")
    if port:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                raise BadInput(
                    f"{name}: port {port} cannot be used ({error.strerror}). Free it, or write 0 for a free one.",
                    "port-in-use",
                ) from None
    return port


def _check_resources(name: str, value: dict[str, Any]) -> dict[str, Any]:
    """A replica that asks for more than this machine has would be priced as something that is not there."""
    wanted = _parsed(Resources, name, value)
    cores, memory = os.cpu_count() or 1, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if quantity(wanted.cpu) > cores:
        raise BadInput(f"{name}.cpu: {wanted.cpu} is more than this machine's {cores} cores.", "too-large")
    if quantity(wanted.memory) > memory:
        has = f"{memory / 2**30:.1f} GiB"
        raise BadInput(f"{name}.memory: {wanted.memory} is more than this machine's {has}.", "too-large")
    return value


def _check_policy(name: str, value: dict[str, Any]) -> dict[str, Any]:
    _parsed(Policy, name, value)
    return value


def _parsed(model: type[SpecT], name: str, value: dict[str, Any]) -> SpecT:
    try:
        return parse(model, value)
    except BadInput as error:
        raise BadInput(f"{name}.{error.message}", error.id) from None


def _check_service_name(name: str, value: str) -> str:
    if value != dns_label(value):
        raise BadInput(f"{name}: {value!r} is not a name in Kubernetes. Write {dns_label(value)!r}.", "invalid-name")
    return value


def _check_processes(name: str, value: str) -> str:
    if not re.fullmatch("[1-9][0-9]*|auto|gpu|cpu", value):
        raise BadInput(f"{name}: {value!r} is not possible. Write a number, auto, gpu or cpu.", "invalid-argument")
    return value


def _check_thresholds(name: str, value: dict[str, Any]) -> dict[str, Any]:
    judge({}, value)
    return value


def _check_training(arguments: dict[str, Any]) -> None:
    """What the trainer would refuse, a minute later."""
    from tunesmith.trainer.settings import TrainSettings, parse_settings

    given = {name: arguments[name] for name in TrainSettings.model_fields if name in arguments}
    try:
        settings = parse_settings(given)
        replicas, processes = arguments.get("replicas", 1), str(arguments.get("nproc_per_node", "1"))
        if replicas < 1:
            raise BadInput(f"replicas: {replicas} is too few. Write 1 or more.", "invalid-argument")
        if given and processes.isdigit():
            settings.accumulation(replicas * int(processes), gpu=False)
    except BadInput as error:
        message = error.message  # the trainer speaks of its options, the user of the pipeline's parameters
        for name in (*given, "gradient_accumulation_steps"):
            message = message.replace(f"--{name.replace('_', '-')}", name)
        raise BadInput(message, error.id) from None


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "data": _check_data,
    "base_model": _check_model,
    "service_port": _check_port,
    "resources": _check_resources,
    "service_resources": _check_resources,
    "policy": _check_policy,
    "service_name": _check_service_name,
    "nproc_per_node": _check_processes,
    "thresholds": _check_thresholds,
}
