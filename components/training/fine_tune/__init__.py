"""Supervised fine-tuning of a language model, LoRA or full, as a PyTorchJob."""

from tunesmith.components.training.fine_tune.component import fine_tune

__all__ = ["fine_tune"]
