"""Instruction data, validated, deduplicated and split."""

from tunesmith.components.data.prepare_instructions.component import prepare_instructions

__all__ = ["prepare_instructions"]
