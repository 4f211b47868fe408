"""What can be known to be wrong before anything is started, so that nothing is left half-done.

Checks go by the names that our pipelines give their parameters; a pipeline that lacks one is not checked for it.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tunesmith.clusters.admission import MAX_REPLICAS
from tunesmith.errors import BadInput
from tunesmith.resources import Policy, Resources, quantity
from tunesmith.tasks.gate import judge
from tunesmith.tasks.job import SpecT, parse
from tunesmith.workloads.base import dns_label

_TRAINER = ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "safetensors", "gguf", "uvicorn")
_DATA_SCHEMES = ("hf", "https", "http", "s3", "gs")
_SERVICE_NAME_LIMIT = 63 - len("-predictor-default")  # of the host name that KServe derives
_MOST_SAMPLES = 100_000
# what evaluate_llm measures, with which thresholds can be met
_METRICS = (
    "eval_loss", "eval_loss_base", "perplexity", "perplexity_base", "loss_reduction", "eval_tokens", "eval_samples",
)  # fmt: skip
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

    if source == BUILT_IN:
        return source
    scheme, remote, _ = source.partition("://")
    if remote and scheme != "file":
        if scheme not in _DATA_SCHEMES:
            known = ", ".join(f"{one}://" for one in _DATA_SCHEMES)
            raise BadInput(
                f"{name}: {scheme}:// is no source of data. Write a file, {known} or {BUILT_IN}.", "bad-data"
            )
        return source
    path = Path(source.removeprefix("file://")).expanduser().absolute()
    if path.exists() and not path.is_file():
        raise BadInput(f"{name}: {path} is not a plain file. Name a JSONL file.", "bad-data")
    with tempfile.TemporaryDirectory(prefix="tunesmith-check-") as folder:
        try:
            report = prepare(str(path), Path(folder) / "train", Path(folder) / "heldout")
            if report["heldout"] < 1:
                raise BadInput(f"{path} has one example only, and none is left to hold out. Write at least two.")
        except ValueError as error:
            raise BadInput(f"{name}: {error}", "bad-data") from None
    return str(path)


def _check_model(name: str, reference: str) -> str:
    if not reference.strip():
        raise BadInput(f"{name}: it is empty. Name a model.", "no-such-model")
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
    if not quantity(wanted.cpu) or not quantity(wanted.memory):
        raise BadInput(f"{name}: cpu and memory must be more than 0.", "invalid-argument")
    if wanted.gpus and not Path("/dev/nvidia0").exists():
        raise BadInput(f"{name}.gpus: this machine has no GPU that a job could have. Write 0.", "too-large")
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
    if not value or value != dns_label(value, limit=_SERVICE_NAME_LIMIT):
        good = dns_label(value, limit=_SERVICE_NAME_LIMIT) if value.strip() else "my-model"
        raise BadInput(f"{name}: {value!r} is not a name for a service. Write {good!r}.", "invalid-name")
    return value


def _check_processes(name: str, value: str) -> str:
    if not re.fullmatch("[1-9][0-9]*|auto|gpu|cpu", value):
        raise BadInput(f"{name}: {value!r} is not possible. Write a number, auto, gpu or cpu.", "invalid-argument")
    return value


def _check_thresholds(name: str, value: dict[str, Any]) -> dict[str, Any]:
    judge({}, value)
    if not value:
        raise BadInput(f"{name}: it is empty, and a gate without thresholds lets everything pass.", "invalid-threshold")
    for metric in value:
        if metric not in _METRICS:
            near = difflib.get_close_matches(metric, _METRICS, 1, 0.5)
            hint = f"Did you mean {near[0]}?" if near else f"Known are {', '.join(_METRICS)}."
            raise BadInput(f"{name}: the evaluation measures no {metric!r}. {hint}", "invalid-threshold")
    return value


def _check_smoke_questions(name: str, value: list[Any]) -> list[Any]:
    if not value:
        raise BadInput(f"{name}: it is empty. Give at least one question.", "no-questions")
    return _check_questions(name, value)


def _check_questions(name: str, value: list[Any]) -> list[Any]:
    for question in value:
        if not isinstance(question, str) or not question.strip():
            raise BadInput(f"{name}: {question!r} is not a question. Write texts that are not empty.", "no-questions")
    return value


def _check_samples(name: str, value: int) -> int:
    if not 1 <= value <= _MOST_SAMPLES:
        raise BadInput(f"{name}: {value} is not possible. Write 1 to {_MOST_SAMPLES}.", "invalid-argument")
    return value


def _check_training(arguments: dict[str, Any]) -> None:
    """What the trainer would refuse, a minute later."""
    from tunesmith.trainer.settings import TrainSettings, parse_settings

    given = {name: arguments[name] for name in TrainSettings.model_fields if name in arguments}
    try:
        settings = parse_settings(given)
        replicas, processes = arguments.get("replicas", 1), str(arguments.get("nproc_per_node", "1"))
        if not 1 <= replicas <= MAX_REPLICAS:
            raise BadInput(f"replicas: {replicas} is not possible here. Write 1 to {MAX_REPLICAS}.", "invalid-argument")
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
    "smoke_questions": _check_smoke_questions,
    "sample_questions": _check_questions,
    "eval_samples": _check_samples,
    "nproc_per_node": _check_processes,
    "thresholds": _check_thresholds,
}
