"""The trained model as a folder that any Hugging Face tool can load, never half of one."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tunesmith.errors import BadInput
from tunesmith.lineage.digest import Digest, digest_path
from tunesmith.trainer import storage
from tunesmith.trainer.progress import Progress
from tunesmith.trainer.settings import TrainSettings

# What makes a folder look like a model; it is put in place last and taken away first.
_SIGN = "config.json"
_STAGING = ".writing"
_ABOUT = "training.json"
_LIBRARIES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "tokenizers", "safetensors")


@dataclass(frozen=True)
class Trained:
    """What is known about a finished training besides its weights."""

    settings: TrainSettings
    progress: Progress
    steps: int
    resumed_from_step: int
    ranks: int

    def metrics(self) -> dict[str, Any]:
        """The result's metrics."""
        return self.progress.metrics(steps=self.steps, resumed_from_step=self.resumed_from_step, ranks=self.ranks)


def write_model(base: Path, weights: Path, location: str, trained: Trained) -> Digest:
    """Write the whole model, tokenizer and chat template included, and say what it holds.

    Args:
        base: the model that training began with.
        weights: a folder with the LoRA adapter, or with the trained weights if every weight was trained.
        location: folder or URI to write; what a folder holds already is replaced.
        trained: for ``training.json``.
    """
    target = storage.local_path(location)
    folder = target or Path(tempfile.mkdtemp(prefix="tunesmith-output-"))
    folder.mkdir(parents=True, exist_ok=True)
    _clear(folder)
    staging = folder / _STAGING
    staging.mkdir()
    _assemble(base, weights, staging, trained.settings)
    (staging / _ABOUT).write_text(json.dumps(_about(trained), indent=1))
    for path in sorted(staging.iterdir(), key=lambda path: path.name == _SIGN):
        path.rename(folder / path.name)
    staging.rmdir()
    if target is None:
        storage.publish(folder, location, last=_SIGN)
    return digest_path(folder)


def _assemble(base: Path, weights: Path, staging: Path, settings: TrainSettings) -> None:
    """The model in its own precision: LoRA merged into the base, the adapter kept beside it."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    trust = settings.trust_remote_code
    source = base if settings.method == "lora" else weights
    model = AutoModelForCausalLM.from_pretrained(source, dtype="auto", trust_remote_code=trust, use_safetensors=True)
    if settings.method == "lora":
        from peft import PeftModel

        adapted = PeftModel.from_pretrained(model, str(weights))
        # The base's path on this machine means nothing elsewhere.
        adapted.peft_config["default"].base_model_name_or_path = None
        adapted.save_pretrained(staging / "adapter")
        (staging / "adapter" / "README.md").unlink(missing_ok=True)
        model = adapted.merge_and_unload()
    else:
        model = model.to(_dtype_of(base, trust))
    model.save_pretrained(staging)
    AutoTokenizer.from_pretrained(base, trust_remote_code=trust).save_pretrained(staging)
    for licence in base.glob("LICENSE*"):
        shutil.copyfile(licence, staging / licence.name)
    # save_pretrained makes weights private to the owner; who serves the model may be another user.
    for path in staging.rglob("*.safetensors"):
        path.chmod(0o644)


def _dtype_of(base: Path, trust_remote_code: bool) -> Any:
    import torch
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(base, trust_remote_code=trust_remote_code).dtype or torch.float32


def _about(trained: Trained) -> dict[str, Any]:
    return {
        "schema": "tunesmith.dev/training/v1",
        "settings": trained.settings.model_dump(),
        "history": trained.progress.history,
        "metrics": trained.metrics(),
        "libraries": {name: version(name) for name in _LIBRARIES},
    }


def require_free(location: str) -> None:
    """Refuse a folder for the output that holds something else than an earlier output; nothing of it is touched.

    Raises:
        BadInput: it does.
    """
    folder = storage.local_path(location)
    if folder is not None and _visible(folder) and not (folder / _ABOUT).exists() and not (folder / _STAGING).exists():
        raise BadInput(f"the folder for the output, {folder}, holds other files: name an empty one")


def _visible(folder: Path) -> list[Path]:
    """What is in a folder, without what a volume brings along (lost+found, hidden mounts)."""
    return [p for p in folder.iterdir() if p.name[0] != "." and p.name != "lost+found"] if folder.exists() else []


def _clear(folder: Path) -> None:
    (folder / _SIGN).unlink(missing_ok=True)
    # training.json last: without it, what is left would look like someone else's files
    for path in sorted([*_visible(folder), folder / _STAGING], key=lambda path: path.name == _ABOUT):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
