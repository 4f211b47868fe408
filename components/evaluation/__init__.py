"""Evaluation and gates."""
