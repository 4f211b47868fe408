"""Where pipelines run: a table of targets, each a set of components that the portable steps stand for.

Nothing is imported until a target is asked for.
"""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tunesmith.errors import BadInput

VARIABLE = "TUNESMITH_TARGET"


@dataclass(frozen=True)
class Steps:
    """The components that the portable steps stand for on one target."""

    import_model: Callable[..., Any]
    prepare: Callable[..., Any]
    train: Callable[..., Any]
    evaluate: Callable[..., Any]
    gate: Callable[..., Any]
    deploy: Callable[..., Any]
    smoke_test: Callable[..., Any]
    report: Callable[..., Any]


TARGETS = {
    "kubeflow": "tunesmith.targets.kubeflow",
    "local": "tunesmith.targets.kubeflow",  # the same components; what differs is the engine, see targets.local
}


def current() -> Steps:
    """The steps of the target that ``TUNESMITH_TARGET`` names; plain kfp compilation means Kubeflow.

    Raises:
        BadInput: there is no such target.
    """
    name = os.environ.get(VARIABLE, "kubeflow")
    if name not in TARGETS:
        near = difflib.get_close_matches(name, TARGETS, 1)
        hint = f"Did you mean {near[0]}?" if near else f"Known are {', '.join(TARGETS)}."
        raise BadInput(f"{VARIABLE}: there is no target {name!r}. {hint}", "unknown-target")
    steps: Steps = importlib.import_module(TARGETS[name]).STEPS
    return steps
