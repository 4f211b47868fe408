"""A gate: typed thresholds on metrics, and a pipeline that stops where they are not met."""

from tunesmith.components.evaluation.quality_gate.component import quality_gate

__all__ = ["quality_gate"]
