"""Train with an image and a command of one's own."""

from kfp import dsl

from tunesmith.components.data.prepare_instructions import prepare_instructions
from tunesmith.components.training.pytorch_job import pytorch_job
from tunesmith.resources import Policy, Resources


@dsl.pipeline(name="train-with-own-image")
def train_with_own_image(image: str = "registry.example.com/team/trainer:1.4.0"):
    """Two replicas with a GPU each; the command reads TUNESMITH_INPUT_DATASET and writes TUNESMITH_OUTPUT_MODEL."""
    data = prepare_instructions()
    job = pytorch_job(
        image=image,
        command=["torchrun", "train.py"],
        dataset=data.outputs["train"],
        replicas=2,
        resources=Resources(cpu="8", memory="64Gi", gpus=1).to_kfp(),
        policy=Policy(deadline_seconds=6 * 3600, retries=2).to_kfp(),
    )
    job.set_caching_options(False)
