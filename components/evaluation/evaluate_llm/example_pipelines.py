"""Compare a tuned model with its base on held-out data."""

from kfp import dsl

from tunesmith.components.data.import_model import import_model
from tunesmith.components.data.prepare_instructions import prepare_instructions
from tunesmith.components.evaluation.evaluate_llm import evaluate_llm


@dsl.pipeline(name="compare-two-models")
def compare_two_models(base: str, tuned: str):
    """Import two models and measure both on the same held-out answers."""
    before = import_model(reference=base)
    after = import_model(reference=tuned)
    data = prepare_instructions()
    evaluate_llm(
        base_model=before.outputs["model"],
        model=after.outputs["model"],
        heldout=data.outputs["heldout"],
        sample_questions=["What does os.path.join do?"],
    )
