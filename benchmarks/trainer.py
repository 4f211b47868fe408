"""Useful tokens a second of this package's trainer against TRL, at equal loss.

    python benchmarks/trainer.py --model DIR --data FILE --steps 12 --json figures.json

Three trainers learn the same conversations with the same adapters, learning rate and conversations a step:

- ``plain``: TRL's SFTTrainer as it comes (padded batches, activations recomputed, bf16);
- ``best``: TRL with its own best settings for short samples (packing, nothing recomputed, the precision that is
  faster here);
- ``tunesmith``: the trainer of this package.

Each is a process of its own, and they take turns step by step, so that a machine whose speed changes treats them alike.
Held-out loss is measured on the way, and from it the seconds each needs to the same loss: a trainer that is fast
because it learns less gains nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunesmith.trainer.environment import Rank, quieten, usable_cores

NAMES = ("plain", "best", "tunesmith")


# --- the process of one trainer -------------------------------------------------------------------------------------


def work(args: argparse.Namespace) -> None:
    """Train one step for each line "step" on stdin, and measure the held-out loss for each line "loss"."""
    quieten(os.environ)
    import torch
    from transformers import TrainerCallback

    from tunesmith.trainer.evaluate import mean_loss

    torch.set_num_threads(usable_cores())
    tokens, heldout = load(args)
    trainer = make_trainer(args, tokens)

    class Turns(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            while sys.stdin.readline().strip() == "loss":
                trainer.model.eval()
                answer({"loss": mean_loss(trainer.model, heldout)})
                trainer.model.train()
            self.begin, self.useful = time.perf_counter(), trainer.useful

        def on_step_end(self, *_: Any, **__: Any) -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            answer({"seconds": time.perf_counter() - self.begin, "useful": trainer.useful - self.useful})

    trainer.add_callback(Turns())
    trainer.train()


def answer(values: dict[str, float]) -> None:
    print("benchmark " + json.dumps(values), flush=True)


def load(args: argparse.Namespace) -> tuple[list[Any], list[Any]]:
    """Tokens to train on, and tokens held out."""
    from transformers import AutoTokenizer

    from tunesmith.trainer.conversations import read_conversations, tokenize
    from tunesmith.trainer.evaluate import draw

    conversations = read_conversations(args.data)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    cut = len(conversations) // 8
    heldout = draw(conversations[:cut], 24, seed=0)
    return tokenize(conversations[cut:], tokenizer, args.max_length), tokenize(heldout, tokenizer, args.max_length)


def make_trainer(args: argparse.Namespace, tokens: list[Any]) -> Any:
    """The trainer that ``--worker`` names; its attribute ``useful`` counts the tokens that are not padding."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    from tunesmith.trainer.settings import TrainSettings
    from tunesmith.trainer.sft import ResumableSFTTrainer, as_dataset, lora_config, use_bf16

    gpu = torch.cuda.is_available()
    bf16 = use_bf16("auto", gpu)
    # As many conversations a step for all: rows of several where they are packed.
    mean = statistics.mean(len(t.input_ids) for t in tokens)
    rows = max(1, round(args.conversations * mean / args.max_length))
    packed = {
        "packing": True, "gradient_checkpointing": False, "pad_to_multiple_of": None,
        "per_device_train_batch_size": rows if gpu else 1, "gradient_accumulation_steps": 1 if gpu else rows,
    }  # fmt: skip
    config = {
        "plain": {"per_device_train_batch_size": args.conversations},
        "best": {**packed, "bf16": bf16 or args.best_bf16},
        "tunesmith": {**packed, "bf16": bf16},
    }[args.worker]

    class Counting(ResumableSFTTrainer if args.worker == "tunesmith" else SFTTrainer):  # type: ignore[misc]
        useful = 0

        def compute_loss(self, model: Any, inputs: dict[str, Any], *rest: Any, **options: Any) -> Any:
            mask = inputs.get("attention_mask")
            self.useful += inputs["input_ids"].numel() if mask is None else int(mask.sum())
            return super().compute_loss(model, inputs, *rest, **options)

    settings = TrainSettings(
        max_length=args.max_length, learning_rate=args.learning_rate, max_steps=args.steps, gradient_checkpointing="off"
    )
    torch.manual_seed(0)
    trainer = Counting(
        model=AutoModelForCausalLM.from_pretrained(
            args.model, dtype=torch.bfloat16 if gpu and args.worker != "plain" else torch.float32
        ),
        args=SFTConfig(
            output_dir=tempfile.mkdtemp(), max_steps=args.steps + 1, learning_rate=args.learning_rate,
            lr_scheduler_type="constant", use_cpu=not gpu, report_to="none", disable_tqdm=True, logging_steps=10_000,
            save_strategy="no", max_length=args.max_length, seed=0, **config,
        ),
        train_dataset=as_dataset(tokens),
        processing_class=AutoTokenizer.from_pretrained(args.model),
        peft_config=lora_config(settings),
    )  # fmt: skip
    if args.worker == "tunesmith":
        no_signal: Any = type("NoSignal", (), {"received": False, "loop_asks": True})()
        trainer.attach(settings, None, {}, Rank(), no_signal, lambda values: None)
    return trainer


# --- the process that measures --------------------------------------------------------------------------------------


@dataclass
class Contender:
    """One trainer's process and what was measured of it; ``curve`` holds (seconds so far, held-out loss)."""

    name: str
    process: subprocess.Popen[str]
    seconds: list[float] = field(default_factory=list)
    useful: list[int] = field(default_factory=list)
    curve: list[tuple[float, float]] = field(default_factory=list)

    def ask(self, what: str) -> dict[str, Any]:
        """Let it do one thing while the others wait."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("benchmark "):
                return dict(json.loads(line.removeprefix("benchmark ")))
        raise SystemExit(f"the trainer {self.name} ended with {self.process.wait()}")

    def step(self) -> None:
        """One optimizer step."""
        found = self.ask("step")
        self.seconds.append(found["seconds"])
        self.useful.append(found["useful"])

    def look(self) -> None:
        """One measurement of the held-out loss."""
        self.curve.append((sum(self.seconds), self.ask("loss")["loss"]))

    def speed(self) -> float:
        """Useful tokens a second over all steps but the first two, which warm up."""
        return sum(self.useful[2:]) / sum(self.seconds[2:])


def measure(contenders: list[Contender], steps: int, every: int) -> None:
    """Take turns; who begins changes from step to step."""
    for number in range(steps):
        if number % every == 0:
            for one in contenders:
                one.look()
        first = number % len(contenders)
        for one in contenders[first:] + contenders[:first]:
            one.step()
    for one in contenders:
        one.look()


def seconds_to(curve: list[tuple[float, float]], loss: float) -> float | None:
    """Seconds of training until the held-out loss is ``loss``, between two measurements on a straight line."""
    for (t0, l0), (t1, l1) in zip(curve, curve[1:], strict=False):
        if l0 > loss >= l1:
            return t0 + (t1 - t0) * (l0 - loss) / (l0 - l1)
    return None


def figures(contenders: list[Contender]) -> dict[str, Any]:
    # The lowest loss that all reached
    goal = max(min(loss for _, loss in one.curve) for one in contenders)
    needed = {one.name: seconds_to(one.curve, goal) for one in contenders}
    found: dict[str, Any] = {"equal_loss": goal}
    for one in contenders:
        found[one.name] = {
            "useful_tokens_per_second": one.speed(), "seconds_to_equal_loss": needed[one.name],
            "heldout_loss": [loss for _, loss in one.curve],
        }  # fmt: skip
    ours, time_ours = found["tunesmith"]["useful_tokens_per_second"], needed["tunesmith"]
    for name in ("plain", "best"):
        other = needed[name]
        found[f"against_{name}"] = {
            "useful_tokens_per_second": ours / found[name]["useful_tokens_per_second"],
            "time_to_equal_loss": other / time_ours if other and time_ours else None,
        }
    return found


def show(found: dict[str, Any]) -> None:
    to_loss = f"s to loss {found['equal_loss']:.3f}"
    print(f"\n{'':12}{'useful tokens/s':>17}{to_loss:>18}{'held-out loss':>24}")
    for name in NAMES:
        row = found[name]
        seconds = row["seconds_to_equal_loss"]
        losses = f"{row['heldout_loss'][0]:.3f} -> {row['heldout_loss'][-1]:.3f}"
        print(f"{name:12}{row['useful_tokens_per_second']:>17.1f}{seconds or float('nan'):>18.1f}{losses:>24}")
    for name in ("plain", "best"):
        ratio = found[f"against_{name}"]
        equal = ratio["time_to_equal_loss"]
        print(
            f"tunesmith against {name}: {ratio['useful_tokens_per_second']:.2f}x useful tokens/s"
            + (f", {equal:.2f}x as fast to the same loss" if equal else "")
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of a Hugging Face model in safetensors")
    parser.add_argument("--data", type=Path, required=True, help="JSONL of conversations; an eighth is held out")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--every", type=int, default=4, help="steps between two measurements of the held-out loss")
    parser.add_argument("--conversations", type=int, default=8, help="conversations a step (plain TRL's batch)")
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--learning-rate", type=float, default=2e-4)
    parser.add_argument("--best-bf16", action="store_true", help="TRL's best setting computes in bf16 on a CPU too")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--worker", choices=NAMES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work(args)

    command = [sys.executable, __file__, *sys.argv[1:], "--worker"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    contenders = [Contender(name, subprocess.Popen([*command, name], **pipes)) for name in NAMES]  # type: ignore[call-overload]
    try:
        measure(contenders, args.steps, args.every)
    finally:
        for one in contenders:
            one.process.kill()
    found = figures(contenders)
    show(found)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
