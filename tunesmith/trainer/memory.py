"""Whether a training step's activations fit into memory, or must be recomputed."""

from __future__ import annotations

from typing import Any


def activation_bytes(tokens: int, layers: int, hidden: int, intermediate: int) -> int:
    """Bytes that a forward pass keeps for the backward pass, at 4 bytes a value.

    Counted for a block with gated MLP and attention that keeps no score matrix: about 12 values of the hidden size
    (norms, query, key, value, output, residuals, adapters' inputs) and 5 of the intermediate size a token and layer.
    A factor of two covers what differs between architectures.

    >>> round(activation_bytes(tokens=256, layers=30, hidden=576, intermediate=1536) / 2**20)
    856
    """
    return 2 * 4 * tokens * layers * (12 * hidden + 5 * intermediate)


def activations_fit(config: Any, tokens: int, ranks: int) -> bool:
    """Whether the activations of one pass fit into half of the memory that is free, shared by ``ranks``.

    Args:
        config: the model's configuration.
        tokens: tokens of one pass.
        ranks: ranks on this machine. Each has a GPU of its own, but on a CPU they share the memory.
    """
    text = config.get_text_config()
    hidden = text.hidden_size
    needed = activation_bytes(tokens, text.num_hidden_layers, hidden, getattr(text, "intermediate_size", 4 * hidden))
    return needed < _free_bytes(ranks) / 2


def _free_bytes(ranks: int) -> float:
    import torch

    if torch.cuda.is_available():
        return float(torch.cuda.mem_get_info()[0])
    import psutil  # type: ignore[import-untyped]

    return float(psutil.virtual_memory().available) / ranks
