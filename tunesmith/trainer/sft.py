"""Supervised fine-tuning: TRL's SFTTrainer with the checkpoints, the stopping and the progress of this package.

Imports torch, transformers and trl, so it is imported only after settings, paths and data were found good.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from datasets import Dataset
from peft import LoraConfig
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PrinterCallback,
    ProgressCallback,
    TrainerCallback,
)
from trl import SFTConfig, SFTTrainer

from tunesmith.trainer.checkpoints import Checkpoint, CheckpointRefused, CheckpointStore
from tunesmith.trainer.conversations import Conversation, Tokens, tokenize
from tunesmith.trainer.environment import Rank
from tunesmith.trainer.loss import labels_only_possible, summed_loss
from tunesmith.trainer.memory import activations_fit
from tunesmith.trainer.progress import Progress, Stopwatch
from tunesmith.trainer.result import BadArguments
from tunesmith.trainer.settings import TrainSettings
from tunesmith.trainer.stopping import StopSignal

Report = Callable[[dict[str, float]], None]


@dataclass(frozen=True)
class Outcome:
    """How the steps ended. ``weights`` holds the adapter, or the model where every weight was trained."""

    weights: Path | None
    progress: Progress
    step: int
    resumed_from_step: int
    stopped: bool


def train(
    settings: TrainSettings,
    model_folder: Path,
    conversations: list[Conversation],
    data_digest: str,
    store: CheckpointStore | None,
    place: Rank,
    stop: StopSignal,
    report: Report,
    scratch: Path,
) -> Outcome:
    """Train up to ``max_steps``, from the newest complete checkpoint if there is one.

    Args:
        settings: what to do.
        model_folder: a Hugging Face model in safetensors.
        conversations: the training data.
        data_digest: digest of the data, so that a checkpoint is not continued with other data.
        store: the checkpoints; None keeps none.
        place: this rank.
        stop: asked after every step; any rank's SIGTERM stops all ranks after the same step.
        report: called by rank 0 with the metrics of every logged step.
        scratch: an empty folder; the weights are left there if no checkpoint holds them.

    Raises:
        BadInput: the settings do not fit the machine, or the data not the model.
        CheckpointRefused: the newest checkpoint was changed, or belongs to other settings or data.
        FloatingPointError: the loss is no longer a number.
    """
    gpu = torch.cuda.is_available()
    # This also joins the process group: everything after it may speak with the other ranks.
    config = _config(settings, place, gpu, store.staging if store else scratch)
    fingerprint = {**settings.fingerprint(), "data": data_digest}
    checkpoint = _agree_on_checkpoint(store, fingerprint, place) if store else None
    if checkpoint and checkpoint.step >= settings.max_steps:
        progress = Progress.load(checkpoint.path)
        return Outcome(checkpoint.path, progress, checkpoint.step, checkpoint.step, stopped=False)

    tokenizer = AutoTokenizer.from_pretrained(model_folder, trust_remote_code=settings.trust_remote_code)
    dataset = as_dataset(tokenize(conversations, tokenizer, settings.max_length))
    trainer = ResumableSFTTrainer(
        model=_load_model(settings, model_folder, bf16=config.bf16, gpu=gpu),
        args=config,
        train_dataset=dataset,
        processing_class=tokenizer,
        peft_config=lora_config(settings) if settings.method == "lora" else None,
    )
    trainer.attach(settings, store, fingerprint, place, stop, report)
    progress = trainer.run(checkpoint)
    step = int(trainer.state.global_step)
    weights = None if trainer.stopped else trainer.weights(scratch / "weights")
    resumed = checkpoint.step if checkpoint else 0
    return Outcome(weights, progress, step, resumed, trainer.stopped)


def as_dataset(tokens: list[Tokens]) -> Dataset:
    """Tokens in the columns that SFTTrainer takes as they are."""
    return Dataset.from_dict({"input_ids": [t.input_ids for t in tokens], "labels": [t.labels for t in tokens]})


def lora_config(settings: TrainSettings) -> LoraConfig:
    """Adapters on every linear layer except the output head."""
    return LoraConfig(
        r=settings.lora_rank, lora_alpha=settings.lora_alpha, lora_dropout=0.0, target_modules="all-linear",
        task_type="CAUSAL_LM",
    )  # fmt: skip


def use_bf16(precision: str, gpu: bool) -> bool:
    """Whether to compute in bf16: where asked for, or on a GPU that has it."""
    return precision == "bf16" or (precision == "auto" and gpu and torch.cuda.is_bf16_supported())


def _config(settings: TrainSettings, place: Rank, gpu: bool, output: Path) -> SFTConfig:
    if settings.sharding == "fsdp" and not gpu:
        raise BadArguments("--sharding fsdp needs GPUs, and there is none: leave it at auto")
    passes = settings.accumulation(place.ranks, gpu=gpu)
    sharded = settings.sharding == "fsdp" or (settings.sharding == "auto" and gpu and place.ranks > 1)
    fsdp = {
        "fsdp": "full_shard auto_wrap",
        "fsdp_config": {"fsdp_version": 2, "state_dict_type": "FULL_STATE_DICT", "reshard_after_forward": True},
    }
    distributed = {"ddp_backend": "nccl" if gpu else "gloo", "ddp_timeout": settings.collective_timeout}
    return SFTConfig(
        output_dir=str(output),
        max_steps=settings.max_steps,
        per_device_train_batch_size=settings.batch_size // (place.ranks * passes),
        gradient_accumulation_steps=passes,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=math.ceil(settings.warmup_ratio * settings.horizon),
        packing=settings.packing,
        packing_strategy="bfd",
        max_length=settings.max_length,
        pad_to_multiple_of=None,
        use_cpu=not gpu,
        bf16=use_bf16(settings.precision, gpu),
        gradient_checkpointing=False,  # decided when the model is known
        seed=settings.seed,
        logging_steps=settings.log_every,
        logging_first_step=True,
        logging_nan_inf_filter=False,  # else a loss that is no number is logged as 0
        save_strategy="steps",
        save_steps=settings.save_every,
        ignore_data_skip=False,
        dataloader_num_workers=0,
        dataloader_pin_memory=gpu,
        report_to="none",
        disable_tqdm=True,
        **(distributed if place.ranks > 1 else {}),
        **(fsdp if sharded and place.ranks > 1 else {}),
    )


def _load_model(settings: TrainSettings, folder: Path, *, bf16: bool, gpu: bool) -> Any:
    """The base model; frozen weights in bf16 on a GPU that computes so, trained ones always in fp32."""
    dtype = torch.bfloat16 if bf16 and gpu and settings.method == "lora" else torch.float32
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, trust_remote_code=settings.trust_remote_code, use_safetensors=True
    )


def _agree_on_checkpoint(store: CheckpointStore, fingerprint: dict[str, Any], place: Rank) -> Checkpoint | None:
    """The newest complete checkpoint, the same on every rank; half-written ones are removed.

    Every node verifies what it is about to load; if one refuses, all do.
    """
    if place.speaks:
        store.discard_incomplete()
    step = _broadcast(max(store.steps(), default=0) if place.speaks else 0, place)
    if not step:
        return None
    refused, checkpoint = None, None
    if place.local_rank == 0:
        try:
            checkpoint = _checked(store, step, fingerprint)
        except CheckpointRefused as error:
            refused = error
    if _total(int(refused is not None), place):
        raise refused or CheckpointRefused("another rank refused the checkpoint")
    return checkpoint or store.open(step)


def _checked(store: CheckpointStore, step: int, fingerprint: dict[str, Any]) -> Checkpoint:
    checkpoint = store.open(step)
    checkpoint.require_same_run(fingerprint)
    checkpoint.verify()
    return checkpoint


class _EndOfStep(TrainerCallback):  # type: ignore[misc]
    """Lets the trainer count and agree with the other ranks after each step."""

    def __init__(self, trainer: ResumableSFTTrainer) -> None:
        self._trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trainer.end_step(control)


class ResumableSFTTrainer(SFTTrainer):  # type: ignore[misc]
    """SFTTrainer that stops on SIGTERM and writes checkpoints that are complete or not there.

    On a CPU it also computes the output head only where there is a label: TRL does so on GPUs alone, and for short
    answers most positions have none.
    """

    def attach(
        self, settings: TrainSettings, store: CheckpointStore | None, fingerprint: dict[str, Any], place: Rank,
        stop: StopSignal, report: Report,
    ) -> None:  # fmt: skip
        """Give what SFTTrainer's own constructor does not take; before ``run``."""
        self._settings, self._store, self._fingerprint, self._place = settings, store, fingerprint, place
        self._stop, self._report = stop, report
        self._progress, self._watch = Progress(), Stopwatch(0.0)
        self._read = [0, 0]  # tokens and useful tokens of this rank since the last step's end
        self._reported = (0, 0.0)  # useful tokens and seconds at the last line of metrics
        self.stopped = False
        self._labels_only = labels_only_possible(self.model) and not torch.cuda.is_available()
        if settings.gradient_checkpointing == "on" or (
            settings.gradient_checkpointing == "auto" and not self._activations_fit()
        ):
            self.args.gradient_checkpointing = True
            self.model.enable_input_require_grads()
        for callback in (PrinterCallback, ProgressCallback):
            self.remove_callback(callback)
        self.add_callback(_EndOfStep(self))

    def run(self, checkpoint: Checkpoint | None) -> Progress:
        """Train; the progress of earlier attempts is carried on."""
        if checkpoint:
            self._progress = Progress.load(checkpoint.path)
        self._watch = Stopwatch(self._progress.seconds)
        self._reported = (self._progress.useful_tokens, self._progress.seconds)
        self._stop.loop_asks = True
        try:
            self.train(resume_from_checkpoint=str(checkpoint.path) if checkpoint else None)
        finally:
            self._stop.loop_asks = False
        return self._progress

    def weights(self, scratch: Path) -> Path:
        """A folder with the trained weights: the last checkpoint, or else ``scratch``."""
        step = int(self.state.global_step)
        if self._store is not None and self._place.speaks and step in self._store.steps():
            return self._store.open(step).path
        if self._store is None:
            self.save_model(str(scratch))
        return scratch

    def end_step(self, control: Any) -> None:
        """Add up what all ranks read; if any of them was told to stop, all save and stop after this step."""
        told, tokens, useful = _totals([int(self._stop.received), *self._read], self._place)
        self._read = [0, 0]
        self._progress.tokens += tokens
        self._progress.useful_tokens += useful
        self._progress.seconds = self._watch.seconds()
        if told:
            self.stopped = control.should_save = control.should_training_stop = True

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Mean negative log-likelihood of the labels over all ranks and passes of the step."""
        mask = inputs.get("attention_mask")
        numel = inputs["input_ids"].numel()
        self._read[0] += numel
        self._read[1] += numel if mask is None else int(mask.sum())
        if not (self._labels_only and mask is None and not return_outputs and num_items_in_batch is not None):
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        loss = summed_loss(model, inputs) / torch.as_tensor(num_items_in_batch).clamp(min=1)
        return loss * self._place.ranks  # DDP takes the mean over the ranks, and num_items_in_batch counts all of them

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The learning rate falls over the schedule's steps, which a trial that ends early need not reach."""
        return super().create_scheduler(self._settings.horizon, optimizer)

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """None: checkpoints hold what resuming needs."""

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Note the loss, and have rank 0 report it."""
        super().log(logs, start_time)
        if "loss" not in logs:
            return
        step, loss, seconds = int(self.state.global_step), float(logs["loss"]), self._progress.seconds
        if not math.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss} at step {step}: lower --learning-rate or look at the data")
        self._progress.history.append((step, loss, round(seconds, 3)))
        useful, before = self._reported
        speed = (self._progress.useful_tokens - useful) / max(seconds - before, 1e-9)
        self._reported = (self._progress.useful_tokens, seconds)
        if self._place.speaks:
            self._report(
                {"step": step, "loss": loss, "learning_rate": logs["learning_rate"], "tokens_per_second": speed}
            )

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        step = int(self.state.global_step)
        if self._store is None:
            return
        super()._save_checkpoint(model, trial)
        _barrier(self._place)  # every rank has written its random state
        if self._place.speaks:
            written = self._store.staging / f"checkpoint-{step}"
            for unneeded in ("training_args.bin", "README.md"):  # the first is a pickle
                (written / unneeded).unlink(missing_ok=True)
            self._progress.save(written)
            self._store.commit(step, self._fingerprint)
        _barrier(self._place)

    def _activations_fit(self) -> bool:
        rows = 1 if not torch.cuda.is_available() else self.args.per_device_train_batch_size
        tokens = rows * self._settings.max_length
        return activations_fit(self.model.config, tokens=tokens, ranks=self._place.local_ranks)


def _totals(values: list[int], place: Rank) -> list[int]:
    """Sums over all ranks."""
    if place.ranks == 1:
        return values
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    tensor = torch.tensor(values, dtype=torch.int64, device=device)
    dist.all_reduce(tensor)
    return [int(value) for value in tensor.tolist()]


def _total(value: int, place: Rank) -> int:
    return _totals([value], place)[0]


def _broadcast(value: int, place: Rank) -> int:
    """Rank 0's value; the others pass 0."""
    return _total(value if place.speaks else 0, place)


def _barrier(place: Rank) -> None:
    if place.ranks > 1:
        dist.barrier()
