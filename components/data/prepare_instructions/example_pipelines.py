"""Prepare a team's own questions and answers."""

from kfp import dsl

from tunesmith.components.data.prepare_instructions import prepare_instructions


@dsl.pipeline(name="prepare-support-answers")
def prepare_support_answers(source: str = "s3://datasets/support/answers.jsonl"):
    """Hold out a fifth of the answers, and give each the same system prompt."""
    prepare_instructions(source=source, heldout_fraction=0.2, system_prompt="You answer customers in one paragraph.")
