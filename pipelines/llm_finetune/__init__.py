"""Fine-tune, evaluate, gate, deploy and report on a language model."""

from tunesmith.pipelines.llm_finetune.pipeline import llm_finetune

__all__ = ["llm_finetune"]
