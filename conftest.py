"""What tests of components need, wherever they lie: a run's folder, a cluster in it, and a model of 30,000 weights."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_PATIENCE_S = 40
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class StepFolder:
    """Where one task of a run leaves its artifacts, laid out as KFP does: ``<root>/<run>/<task>/<name>``."""

    run: Path
    task: str

    def artifact(self, kind: type, name: str, content: str | None = None) -> Any:
        """An artifact of the task; with content, one that an earlier step has written."""
        path = self.run / self.task / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is not None:
            path.write_text(content)
        return kind(name=name, uri=str(path), metadata={})

    def record(self) -> dict[str, Any]:
        """The newest record of the task, from the run's folder of records."""
        files = (self.run / "tunesmith" / self.task).glob("*.*.json")
        newest = max(files, key=lambda file: int(file.name.split(".")[1]))
        record: dict[str, Any] = json.loads(newest.read_text())
        return record

    def left(self, name: str) -> Any:
        """A file that the task left for the run's report."""
        return json.loads((self.run / "tunesmith" / self.task / name).read_text())


@pytest.fixture
def step_folder(tmp_path, monkeypatch):
    """A function from a task's name to its folder in one run, with the environment of the local target."""
    monkeypatch.setenv("TUNESMITH_TARGET", "local")
    monkeypatch.setenv("TUNESMITH_PIPELINE_ROOT", str(tmp_path / "runs"))
    monkeypatch.setenv("TUNESMITH_RUN_KEY", "5d1f0c7a")
    monkeypatch.setenv("TUNESMITH_CHECKPOINT_ROOT", str(tmp_path / "checkpoints"))
    for name in ("TUNESMITH_CLUSTER", "TUNESMITH_MODEL_CACHE", "TUNESMITH_PROGRESS", "TUNESMITH_FRESH"):
        monkeypatch.delenv(name, raising=False)
    return lambda task: StepFolder(tmp_path / "runs" / "run-1", task)


@pytest.fixture
def local_cluster(tmp_path, monkeypatch, step_folder):
    """The cluster that steps of the run launch on; afterwards everything on it is deleted and no process is left."""
    from tunesmith.clusters.local import LocalCluster
    from tunesmith.local import inventory

    folder = tmp_path / "cluster"
    monkeypatch.setenv("TUNESMITH_CLUSTER", f"local:{folder}")
    yield LocalCluster(folder)
    inventory.delete(folder, None)
    end = time.monotonic() + _PATIENCE_S
    while left := _processes_of(folder):
        assert time.monotonic() < end, f"still running: {left}"
        time.sleep(0.05)


def _processes_of(folder: Path) -> list[str]:
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command, environment = (place / "cmdline").read_bytes(), (place / "environ").read_bytes()
        except OSError:
            continue
        # This test's own process has the folder in its environment, too.
        if os.fsencode(folder) in command + environment and int(place.name) != os.getpid():
            found.append(command.replace(b"\0", b" ").decode())
    return found


@pytest.fixture(scope="session")
def small_model(tmp_path_factory):
    """A folder with a Llama of 30,000 random weights, its tokenizer and its chat template."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("small-model")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.train_from_iterator(
        ["user assistant What is the opposite of big?"],
        trainers.BpeTrainer(vocab_size=320, special_tokens=specials, initial_alphabet=alphabet),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=_CHAT_TEMPLATE
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=fast.pad_token_id,
        eos_token_id=fast.eos_token_id,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


@pytest.fixture
def conversations():
    """JSONL of chat messages: so many different questions, each with its answer."""

    def make(count: int = 20) -> str:
        turns = [(f"What follows {number}?", f"{number + 1} follows {number}.") for number in range(count)]
        records = [[{"role": "user", "content": one}, {"role": "assistant", "content": two}] for one, two in turns]
        return "".join(json.dumps({"messages": messages}) + "\n" for messages in records)

    return make
