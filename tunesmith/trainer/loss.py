"""The loss on answers, computed only where there is an answer."""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from tunesmith.trainer.conversations import IGNORED, Tokens


def labels_only_possible(model: Any) -> bool:
    """Whether the model's forward can be told at which positions logits are wanted."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return "logits_to_keep" in signature(type(inner).forward).parameters


def summed_loss(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """Sum of the negative log-likelihoods of the labels in one padding-free row, logits computed only for them.

    Packed samples do not see each other as long as no attention mask is given and no cache is used: the restarts of
    the position ids alone say where a sample begins. A test holds the libraries to that.

    Args:
        model: a causal language model whose forward takes ``logits_to_keep``.
        inputs: ``input_ids``, ``labels`` and ``position_ids``, each of shape (1, tokens).
    """
    following = inputs["labels"][0, 1:]
    wanted = (following != IGNORED).nonzero().flatten()
    rest = {name: value for name, value in inputs.items() if name != "labels"}
    logits = model(**rest, logits_to_keep=wanted, use_cache=False).logits[0]
    return cross_entropy(logits.float(), following[wanted], reduction="sum")


def row_of(samples: list[Tokens], device: Any = "cpu") -> dict[str, torch.Tensor]:
    """Several samples as one padding-free row for ``summed_loss``.

    A sample's first token has no label: what stands before it belongs to another sample.
    """
    return {
        "input_ids": torch.tensor([[i for s in samples for i in s.input_ids]], device=device),
        "labels": torch.tensor([[i for s in samples for i in (IGNORED, *s.labels[1:])]], device=device),
        "position_ids": torch.tensor([[i for s in samples for i in range(len(s.input_ids))]], device=device),
    }
