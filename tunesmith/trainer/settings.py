"""What a training run can be told, validated before anything heavy is imported."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tunesmith.errors import BadInput
from tunesmith.trainer.result import BadArguments


class TrainSettings(BaseModel):
    """Settings of one supervised fine-tuning run; the command line has one option for each field.

    A *sample* is one conversation, or one packed sequence of several when ``packing`` is on.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    method: Literal["lora", "full"] = Field("lora", description="Train LoRA adapters, or every weight.")
    max_steps: int = Field(
        40, ge=1, le=10**8, description="Optimizer steps to train in all, earlier attempts included."
    )
    batch_size: int = Field(8, ge=1, le=10**6, description="Samples (packed sequences) a step, over all ranks.")
    gradient_accumulation_steps: int | None = Field(
        None, ge=1, description="Passes a step is split into; by default one on a GPU, one for each sample on a CPU."
    )
    learning_rate: float = Field(2e-4, gt=0, description="Highest learning rate; it falls linearly to 0.")
    lora_rank: int = Field(16, ge=1, le=4096, description="Rank of the LoRA adapters.")
    lora_alpha: int = Field(32, ge=1, le=10**5, description="Scale of the LoRA adapters (they count alpha/rank).")
    max_length: int = Field(1024, ge=8, le=10**6, description="Tokens of a sequence; longer conversations are cut.")
    packing: bool = Field(True, description="Put several conversations into one sequence, without seeing each other.")
    precision: Literal["auto", "fp32", "bf16"] = Field("auto", description="auto is bf16 on a GPU that has it.")
    save_every: int = Field(10, ge=1, le=10**8, description="Steps between two checkpoints.")
    seed: int = Field(0, ge=0, lt=2**32, description="Seed of the adapters' start and the order of the data.")
    warmup_ratio: float = Field(0.0, ge=0, le=1, description="Part of the schedule in which the rate rises from 0.")
    schedule_steps: int | None = Field(
        None, ge=1, description="Steps after which the learning rate is 0; by default max-steps."
    )
    log_every: int = Field(1, ge=1, le=10**8, description="Steps between two lines of metrics.")
    gradient_checkpointing: Literal["auto", "on", "off"] = Field(
        "auto", description="Recompute activations to save memory; auto does so where they would not fit."
    )
    sharding: Literal["auto", "ddp", "fsdp"] = Field(
        "auto", description="Every rank holds the model (ddp) or a shard (fsdp); auto is fsdp on several GPUs."
    )
    collective_timeout: int = Field(
        120, ge=5, description="Seconds a rank waits for the others; more where a checkpoint takes longer to write."
    )
    trust_remote_code: bool = Field(False, description="Run Python code that comes with the model.")

    @property
    def horizon(self) -> int:
        """Steps after which the learning rate has fallen to 0."""
        return self.schedule_steps or self.max_steps

    def accumulation(self, ranks: int, *, gpu: bool) -> int:
        """Passes of each rank in a step.

        On a CPU a pass takes one sample: it is as fast as several at once, and needs the memory of one.

        Raises:
            BadInput: the batch cannot be divided evenly.
        """
        share, left = divmod(self.batch_size, ranks)
        if left:
            raise BadInput(
                f"--batch-size {self.batch_size} cannot be shared evenly by {ranks} ranks: write a multiple of {ranks}"
            )
        passes = self.gradient_accumulation_steps or (1 if gpu else share)
        if share % passes:
            raise BadInput(
                f"--gradient-accumulation-steps {passes} does not divide the {share} samples a rank has in a step "
                f"(--batch-size {self.batch_size} over {ranks} ranks)"
            )
        return passes

    def fingerprint(self) -> dict[str, Any]:
        """What must be equal for a checkpoint to be continued as if the run had never stopped."""
        free = {"max_steps", "schedule_steps", "save_every", "log_every", "gradient_checkpointing"}
        return {**self.model_dump(exclude={*free, "collective_timeout"}), "horizon": self.horizon}


def parse_settings(values: dict[str, Any]) -> TrainSettings:
    """Settings from the command line's values.

    Raises:
        BadInput: a value is not allowed; the first problem in one sentence.
    """
    try:
        return TrainSettings(**values)
    except ValidationError as error:
        first = error.errors()[0]
        option = "--" + str(first["loc"][0]).replace("_", "-")
        wish = first["msg"].removeprefix("Input should be ")
        raise BadArguments(f"{option} {first['input']} is not possible: it must be {wish}") from None
