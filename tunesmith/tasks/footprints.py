"""What each component occupies while it runs: the rule from its arguments to resources times replicas.

A launcher is priced as the job that it launches. Rules are found by the component's name, so that they also hold for a
component that was loaded from YAML.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tunesmith.resources import Footprint, Resources

Rule = Callable[[Mapping[str, Any]], Footprint]


def footprint_of(component: str, arguments: Mapping[str, Any] | None = None) -> Footprint:
    """The footprint of a component with these arguments.

    Raises:
        KeyError: it is not one of ours.
    """
    return RULES[component](arguments or {})


def _fixed(cpu: str, memory: str) -> Rule:
    return lambda arguments: Footprint.of(Resources(cpu=cpu, memory=memory))


def _launched(arguments: Mapping[str, Any]) -> Footprint:
    return Footprint.of(Resources(**(arguments.get("resources") or {})), int(arguments.get("replicas") or 1))


RULES: dict[str, Rule] = {
    "evaluate_llm": _fixed("2", "4Gi"),
    "fine_tune": _launched,
    "import_model": _fixed("1", "4Gi"),
    "kserve_deploy": _launched,
    "prepare_instructions": _fixed("1", "2Gi"),
    "pytorch_job": _launched,
    "quality_gate": _fixed("100m", "256Mi"),
    "run_report": _fixed("100m", "256Mi"),
    "smoke_test": _fixed("100m", "256Mi"),
}
