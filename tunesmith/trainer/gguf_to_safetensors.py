"""Dequantize a GGUF file to a folder that Hugging Face libraries load: float32 safetensors, tokenizer, chat template.

`CONVERTER` names what the bytes of a conversion depend on; a change of it makes kept conversions void.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunesmith.errors import BadInput
from tunesmith.trainer.quarantine import require_space

__all__ = ["GgufFacts", "converter", "convert"]

_MISSING_EXTRA = "a GGUF model needs the packages of the extra 'trainer': pip install 'tunesmith[trainer]'"


@dataclass(frozen=True)
class GgufFacts:
    """What a GGUF file says of itself: the licence (or ""), and the type most weights are stored in, such as Q4_1."""

    license: str
    quantization: str


def converter() -> str:
    """The conversion's version: ours and that of the library whose names and tokenizer it follows."""
    try:
        return f"1 transformers {importlib.metadata.version('transformers')} gguf {importlib.metadata.version('gguf')}"
    except importlib.metadata.PackageNotFoundError:
        raise BadInput(_MISSING_EXTRA) from None


def convert(file: Path, output: Path) -> GgufFacts:
    """Write ``file`` as a Hugging Face model folder.

    Args:
        file: the GGUF file; read, never executed.
        output: an existing, empty folder.

    Returns:
        The file's own statements.

    Raises:
        BadInput: not a GGUF file, damaged, of an architecture that transformers does not know, without all weights or
            without a tokenizer, or there is no space for it.
    """
    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise BadInput(f"{file.name} is not a GGUF file")
    try:
        import gguf  # noqa: F401
        import transformers  # noqa: F401
    except ImportError:
        raise BadInput(_MISSING_EXTRA) from None
    try:
        with _offline_and_quiet(), _header_read_once(), _alone(file) as link:
            facts = _facts(link, output, file.name)
            _dequantize(link, output, file.name)
    except (BadInput, MemoryError):
        raise
    except OSError as error:
        if error.errno is not None:  # the disk's error, not the file's
            raise
        raise _cannot_convert(file, error) from error
    except Exception as error:  # a damaged or hostile header fails anywhere in the readers
        raise _cannot_convert(file, error) from error
    return facts


def _cannot_convert(file: Path, error: Exception) -> BadInput:
    reason = (str(error).splitlines() or [""])[0][:200]
    return BadInput(f"{file.name} cannot be converted: {type(error).__name__}: {reason}")


@contextlib.contextmanager
def _alone(file: Path) -> Iterator[Path]:
    """The file in a folder where nothing else is: transformers would read settings and templates that lie beside it."""
    with tempfile.TemporaryDirectory(prefix="tunesmith-gguf-") as folder:
        link = Path(folder) / "model.gguf"
        link.symlink_to(file.absolute())
        yield link


def _facts(file: Path, output: Path, shown: str) -> GgufFacts:
    import gguf

    reader = gguf.GGUFReader(str(file))  # a text, as transformers gives it, so that it is the same reader
    if not reader.tensors:
        raise BadInput(f"{shown} holds no weights")
    architecture = _text(reader, "general.architecture")
    blocks = reader.get_field(f"{architecture}.block_count")
    # A model is built from these numbers before weights are looked at: an invented count would fill the memory.
    if blocks is not None and not 0 < int(blocks.contents()) <= len(reader.tensors):
        raise BadInput(f"{shown} claims {int(blocks.contents())} layers and holds {len(reader.tensors)} tensors")
    require_space(output, 4 * sum(int(tensor.n_elements) for tensor in reader.tensors), "the converted model")
    sizes = Counter[str]()
    for tensor in reader.tensors:
        sizes[tensor.tensor_type.name] += int(tensor.n_elements)
    return GgufFacts(_text(reader, "general.license"), sizes.most_common(1)[0][0])


def _text(reader: Any, name: str) -> str:
    found = reader.get_field(name)
    value = found.contents() if found is not None else ""
    return value if isinstance(value, str) else ""


def _dequantize(file: Path, output: Path, shown: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"gguf_file": file.name, "local_files_only": True, "trust_remote_code": False}
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), **where)
    model, loading = AutoModelForCausalLM.from_pretrained(
        str(file.parent), dtype=torch.float32, output_loading_info=True, **where
    )
    # transformers fills what is missing with random numbers and only warns.
    if missing := sorted(loading["missing_keys"]):
        raise BadInput(f"{shown} lacks {len(missing)} of the model's weights, such as {missing[0]}")
    # Dequantized, yet still marked as quantized: save_pretrained would refuse ("not serializable").
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    (output / "model.safetensors").chmod(0o644)
    _forget_how_it_was_loaded(output / "tokenizer_config.json")


def _forget_how_it_was_loaded(config: Path) -> None:
    """Drop the loading options that transformers keeps in the tokenizer's settings: they are not the model's."""
    content = json.loads(config.read_text())
    kept = {key: value for key, value in content.items() if key not in ("is_local", "local_files_only", "gguf_file")}
    config.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n")


@contextlib.contextmanager
def _offline_and_quiet() -> Iterator[None]:
    """Nothing about a file on disk is to be asked of the Hub, and no progress bars go to a step's log."""
    from huggingface_hub import constants
    from transformers import modeling_gguf_pytorch_utils as loader
    from transformers.utils import logging

    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        with (
            _replaced(constants, "HF_HUB_OFFLINE", True),
            _replaced(loader, "tqdm", functools.partial(loader.tqdm, disable=True)),
        ):
            yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()


@contextlib.contextmanager
def _header_read_once() -> Iterator[None]:
    """Let transformers share one reader of the file.

    It parses the header for the config, the tokenizer and the weights, 2.4 s each for a vocabulary of 49,152, and makes
    the table of tensor names anew for each of 397 modules: together 10 of 26 s of the quickstart's import.
    """
    import gguf

    with (
        _replaced(gguf, "GGUFReader", functools.cache(gguf.GGUFReader)),
        _replaced(gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map)),
    ):
        yield


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
