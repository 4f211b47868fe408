"""A model of 30,000 random weights with a tokenizer and chat template, made here, and ways to train it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def conversation(question: str, answer: str) -> dict:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def write_jsonl(path: Path, records: list[dict]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny-model")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.train_from_iterator(
        ["system user assistant You help. The opposite of small is big. What is it?"],
        trainers.BpeTrainer(
            vocab_size=320, special_tokens=specials, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        ),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHAT_TEMPLATE
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(fast), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True,
        initializer_range=0.2,  # so that the answers depend on what the adapters change
        pad_token_id=fast.pad_token_id, eos_token_id=fast.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def train_file(tmp_path_factory) -> Path:
    words = ["big", "small", "hot", "cold", "up", "down", "left", "right", "old", "new", "fast", "slow"]
    pairs = list(zip(words[::2], words[1::2], strict=True))
    records = [
        conversation(f"What is the opposite of {one}?" + " Please." * (index % 3), f"The opposite of {one} is {other}.")
        for index, (one, other) in enumerate(pairs + [pair[::-1] for pair in pairs])
    ]
    return write_jsonl(tmp_path_factory.mktemp("data") / "train.jsonl", records * 3)


@dataclass
class Job:
    """One training job in a folder: its environment, how to run it, what came of it."""

    folder: Path
    env: dict[str, str]

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def output(self) -> Path:
        return self.folder / "output"

    def result(self, rank: int = 0) -> dict:
        return json.loads((self.folder / f"termination-{rank}").read_text())

    def history(self) -> list[list[float]]:
        """Step and loss of every step, without the times."""
        return [entry[:2] for entry in json.loads((self.output / "training.json").read_text())["history"]]

    def main(self, monkeypatch, *arguments: str) -> int:
        """Train in this process, alone; returns the exit code."""
        from tunesmith.trainer.__main__ import main

        for name, value in self.env.items():
            monkeypatch.setenv(name, value)
        before = signal.getsignal(signal.SIGTERM)
        try:
            return main(list(arguments))
        finally:
            signal.signal(signal.SIGTERM, before)

    def start(self, rank: int, ranks: int, port: int, *arguments: str) -> subprocess.Popen[str]:
        """Start one rank as a process of its own, as the training operator would."""
        env = {
            **os.environ, **self.env, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank),
            "WORLD_SIZE": str(ranks), "TUNESMITH_TERMINATION_LOG": str(self.folder / f"termination-{rank}"),
        }  # fmt: skip
        return subprocess.Popen(
            [sys.executable, "-m", "tunesmith.trainer", *arguments],
            env=env, stdout=subprocess.PIPE, stderr=(self.folder / f"stderr-{rank}").open("w"), text=True,
        )  # fmt: skip


@pytest.fixture
def make_job(tiny_model, train_file, tmp_path):
    def make(name: str = "job", **changed: str) -> Job:
        folder = tmp_path / name
        folder.mkdir()
        env = {
            "OMP_NUM_THREADS": "1",  # for so small a model, threads only wait for each other
            "TUNESMITH_INPUT_MODEL": str(tiny_model),
            "TUNESMITH_INPUT_TRAIN": str(train_file),
            "TUNESMITH_OUTPUT_MODEL": str(folder / "output"),
            "TUNESMITH_CHECKPOINTS": str(folder / "checkpoints"),
            "TUNESMITH_TERMINATION_LOG": str(folder / "termination-0"),
        }
        return Job(folder, {**env, **changed})

    return make


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
