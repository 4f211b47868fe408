"""Fine-tune a model with LoRA on the built-in example data."""

from kfp import dsl

from tunesmith.components.data.import_model import import_model
from tunesmith.components.data.prepare_instructions import prepare_instructions
from tunesmith.components.training.fine_tune import fine_tune
from tunesmith.resources import Resources


@dsl.pipeline(name="fine-tune-with-lora")
def fine_tune_with_lora(max_steps: int = 200):
    """One replica with one GPU; the tuned model is the step's output ``model``."""
    base = import_model()
    data = prepare_instructions(tokenizer=base.outputs["model"])
    tuned = fine_tune(
        base_model=base.outputs["model"],
        train=data.outputs["train"],
        max_steps=max_steps,
        resources=Resources(cpu="4", memory="32Gi", gpus=1).to_kfp(),
    )
    tuned.set_caching_options(False)
