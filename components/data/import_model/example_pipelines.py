"""Import a base model at a fixed revision."""

from kfp import dsl

from tunesmith.components.data.import_model import import_model


@dsl.pipeline(name="import-base-model")
def import_base_model(reference: str = "hf://HuggingFaceTB/SmolLM2-135M-Instruct@main"):
    """Fetch the model once; later steps read it from the run's artifacts."""
    import_model(reference=reference)
