"""Held-out loss of a tuned model beside its base, with answers side by side."""

from tunesmith.components.evaluation.evaluate_llm.component import evaluate_llm

__all__ = ["evaluate_llm"]
