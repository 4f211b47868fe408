"""The portable steps that a pipeline author writes; each stands for a component of the target.

The target is read once, when this module is imported: kfp traces a pipeline when its own module is imported. To compile
for another target, import in a fresh process with ``TUNESMITH_TARGET`` set.

Example:
    >>> from kfp import dsl
    >>> from tunesmith import steps
    >>> @dsl.pipeline(name="tune")
    ... def tune(data: str):
    ...     base = steps.import_model(reference="hf://HuggingFaceTB/SmolLM2-135M-Instruct@main")
    ...     prepared = steps.prepare(source=data, tokenizer=base.outputs["model"])
    ...     steps.train(base_model=base.outputs["model"], train=prepared.outputs["train"])
"""

from __future__ import annotations

from tunesmith.targets import current

_target = current()

import_model = _target.import_model
prepare = _target.prepare
train = _target.train
evaluate = _target.evaluate
gate = _target.gate
deploy = _target.deploy
smoke_test = _target.smoke_test
report = _target.report

__all__ = ["deploy", "evaluate", "gate", "import_model", "prepare", "report", "smoke_test", "train"]
