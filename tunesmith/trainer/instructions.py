"""Instruction data: read, check every line, drop duplicates, split, write.

The same input gives the same bytes on every machine: examples are ordered and split by the hash of what they say,
never by chance, by time or by the order in which a file system or a server lists them.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import hashlib
import json
import os
import platform
import re
import sysconfig
import tempfile
import unicodedata
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from tunesmith.errors import BadInput

__all__ = ["BUILT_IN", "prepare"]

BUILT_IN = "python-docstrings"

Message = dict[str, str]
Messages = list[Message]

_ROLES = ("system", "user", "assistant")
_MAX_LINE_BYTES = 1 << 20
_MAX_BYTES = 4 << 30
_MAX_PROBLEMS = 20
_HTTP_SECONDS = 60
_NO_ANSWER = "no assistant answer: "
_WANTED = "write one JSON object a line with 'messages', or with 'prompt' and 'completion'"
_BINS, _MAX_BINS = 20, 100
_WIDTHS = [digit * 10**power for power in range(7) for digit in (1, 2, 5)]

# Fixed, so that the data does not grow or shrink with what a distribution installs; what a Python lacks is skipped.
# fmt: off
_MODULES = [
    "abc", "argparse", "ast", "base64", "bisect", "calendar", "cmd", "code", "codecs", "collections", "configparser",
    "contextlib", "copy", "csv", "dataclasses", "datetime", "difflib", "dis", "doctest", "enum", "fileinput",
    "fnmatch", "fractions", "functools", "glob", "graphlib", "gzip", "heapq", "inspect", "ipaddress", "json",
    "linecache", "locale", "logging", "mailbox", "numbers", "operator", "os", "pathlib", "platform", "pprint",
    "queue", "random", "sched", "shelve", "shlex", "shutil", "smtplib", "socketserver", "statistics", "string",
    "subprocess", "tarfile", "tempfile", "textwrap", "threading", "tokenize", "traceback", "typing", "urllib/parse",
    "urllib/request", "uuid", "weakref", "zipfile",
]
# fmt: on


def prepare(
    source: str,
    train: Path,
    heldout: Path,
    *,
    heldout_fraction: float = 0.1,
    max_examples: int = 0,
    seed: int = 17,
    system_prompt: str | None = None,
    tokenizer: Path | None = None,
) -> dict[str, Any]:
    """Turn a source of instructions into two JSONL files of chat messages, one to train on and one held out.

    Each line is ``{"messages": [{"content": ..., "role": ...}, ...]}`` with sorted keys; the last message is the
    assistant's. Two examples that differ only in white space or Unicode form are one (the first is kept), so that none
    is in both files. Nothing is written unless all lines are good.

    Args:
        source: ``python-docstrings`` (docstrings of this Python's standard library, nothing downloaded); a JSONL file
            as a path or URL (``file://``, ``https://``, ``s3://``, ``gs://``) whose lines have ``messages`` or
            ``prompt`` and ``completion``; or ``hf://datasets/org/name[@revision][#split]``.
        train: file to write.
        heldout: file to write; has at least one example when there are two or more.
        heldout_fraction: share of the examples held out, between 0 and 1.
        max_examples: use the first so many distinct examples; 0 means all.
        seed: another seed is another split.
        system_prompt: put before every example that has no system message of its own.
        tokenizer: folder of the model's tokenizer with its chat template; without it token counts are "unknown".

    Returns:
        The report: ``source``, ``examples``, ``duplicates``, ``train`` and ``heldout`` (examples), ``chars_histogram``
        and, with a tokenizer, ``token_histogram`` (``{"edges", "counts"}``, one edge more than counts; a bin holds
        ``edge <= length < next edge``), ``tokens`` (``{"train", "heldout", "mean", "max"}`` or a sentence why they are
        unknown)
        and, for the docstrings, ``python`` (version).

    Raises:
        BadInput: something in the arguments or the source cannot be used; up to 20 problems with their lines.
    """
    _check_arguments(train, heldout, heldout_fraction, max_examples)
    collected = _collect(source, system_prompt, max_examples)
    if not collected.messages:
        raise BadInput(f"{_shown(source)} has no examples: {_WANTED}")
    train_part, heldout_part = _split(list(collected.messages.values()), heldout_fraction, seed)
    report: dict[str, Any] = {
        "source": _shown(source),
        "examples": len(collected.messages),
        "duplicates": collected.duplicates,
        "train": len(train_part),
        "heldout": len(heldout_part),
        "chars_histogram": _histogram([_chars(one) for one in train_part + heldout_part]),
    }
    report |= _tokens(train_part, heldout_part, tokenizer)
    if source == BUILT_IN:
        report["python"] = platform.python_version()
    _write_both({train: train_part, heldout: heldout_part})
    return report


def _check_arguments(train: Path, heldout: Path, heldout_fraction: float, max_examples: int) -> None:
    if not 0 < heldout_fraction < 1:
        raise BadInput(f"heldout_fraction is {heldout_fraction}: write a share between 0 and 1, such as 0.1")
    if max_examples < 0:
        raise BadInput(f"max_examples is {max_examples}: write how many examples to use, or 0 for all")
    if os.path.abspath(train) == os.path.abspath(heldout):
        raise BadInput(f"train and heldout are the same file {train}: write two different ones")


@dataclass
class _Collected:
    """Distinct examples by the hash of their normalised content, in the source's order."""

    messages: dict[bytes, Messages] = field(default_factory=dict)
    duplicates: int = 0


def _collect(source: str, system_prompt: str | None, max_examples: int) -> _Collected:
    """Read a source to its end and keep distinct examples; raise with all problems found."""
    collected, problems, bad, records = _Collected(), list[str](), 0, 0
    for where, record in _records(source):
        records += 1
        messages = record if isinstance(record, _Problem) else _messages(record)
        if isinstance(messages, _Problem):
            bad += 1
            if len(problems) < _MAX_PROBLEMS:
                problems.append(f"{where}: {messages}")
            continue
        if system_prompt and messages[0]["role"] != "system":
            messages = [{"role": "system", "content": system_prompt}, *messages]
        key = _content_hash(messages)
        if key in collected.messages:
            collected.duplicates += 1
        elif not max_examples or len(collected.messages) < max_examples:
            collected.messages[key] = messages
        elif source.startswith("hf://"):
            break  # a file is checked to its end; a dataset on the Hub may have more rows than anyone wants to stream
    if bad == 1:
        raise BadInput(f"{_shown(source)}, {problems[0]}")
    if bad:
        listed = "" if bad <= _MAX_PROBLEMS else f" (the first {_MAX_PROBLEMS} follow)"
        raise BadInput(f"{_shown(source)}: {bad} of {records} records cannot be used{listed}:", problems=problems)
    return collected


class _Problem(str):
    """What is wrong with one record, and what to write instead."""


def _records(source: str) -> Iterator[tuple[str, Any]]:
    """Each record of a source with where it stands; a `_Problem` in place of a record that cannot be read."""
    if source == BUILT_IN:
        return _docstrings()
    if source.startswith("hf://"):
        return _hub_rows(source)
    return _jsonl(source)


def _jsonl(source: str) -> Iterator[tuple[str, Any]]:
    with _open(source) as stream:
        read, number, shown = 0, 0, _shown(source)
        while line := stream.readline(_MAX_LINE_BYTES + 1):
            number, read = number + 1, read + len(line)
            if len(line) > _MAX_LINE_BYTES:
                raise BadInput(
                    f"{shown}, line {number} is longer than {_MAX_LINE_BYTES} bytes: one example is one line"
                )
            if read > _MAX_BYTES:
                raise BadInput(f"{shown} is larger than {_MAX_BYTES >> 30} GiB: split it, or use a dataset on the Hub")
            text = _decode(line, number, shown)
            if text.strip():
                yield f"line {number}", _parse(text.rstrip())
        if getattr(stream, "length", 0):  # an HTTP response tells a lost connection from its end only by this count
            raise BadInput(f"{shown} broke off after {read} bytes: try again")
        if not read:
            raise BadInput(f"{shown} is empty: {_WANTED}")


def _decode(line: bytes, number: int, shown: str) -> str:
    if line.startswith((b"\x1f\x8b", b"PK\x03\x04", b"PAR1")):
        raise BadInput(f"{shown} is a compressed or binary file: unpack it to JSONL first")
    if b"\0" in line:
        raise BadInput(f"{shown}, line {number} holds a NUL byte: this is not a text file (JSONL in UTF-8 is wanted)")
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        where = f"{shown}, line {number}"
        raise BadInput(f"{where} is not UTF-8 at byte {error.start}: convert it with iconv -t UTF-8") from None


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        return _Problem(f"not JSON: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError):  # a number of thousands of digits, or brackets nested as deep
        return _Problem("not JSON that can be read: a number too long or brackets too deep")


def _open(source: str) -> IO[bytes]:
    """Open a path or an fsspec URL, or say in a sentence why not."""
    import fsspec

    path = Path(source).expanduser()
    try:
        if "://" not in source:
            if path.is_dir():
                raise BadInput(f"{source} is a folder: name the JSONL file in it")
            return path.open("rb")
        if source.startswith(("https://", "http://")):  # fsspec would need aiohttp for it
            return cast(IO[bytes], urllib.request.urlopen(source, timeout=_HTTP_SECONDS))
        return cast(IO[bytes], fsspec.open(source, "rb").open())
    except FileNotFoundError:
        near = difflib.get_close_matches(source, [BUILT_IN], cutoff=0.7)
        kinds = f"write the path or URL of a JSONL file, hf://datasets/org/name or {BUILT_IN}"
        hint = f"did you mean {near[0]}?" if near else kinds
        raise BadInput(f"there is no file {_shown(source)}: {hint}") from None
    except ImportError as error:
        raise BadInput(f"{_shown(source)} needs a package that is not installed: {error}") from None
    except BadInput:
        raise
    except Exception as error:  # each fsspec backend has its own errors; their text may repeat the URL with its secrets
        reason = _redacted(str(error), source) or type(error).__name__
        raise BadInput(f"{_shown(source)} cannot be read: {reason}") from None


def _shown(source: str) -> str:
    """The source as a message may show it: without user, password and query, where URLs carry secrets."""
    if "://" not in source:
        return source
    parts = urllib.parse.urlsplit(source)
    query = "?..." if parts.query else ""
    fragment = f"#{parts.fragment}" if parts.fragment else ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}{query}{fragment}"


def _redacted(text: str, source: str) -> str:
    return re.sub(r"(\w+://)\S*@|\?\S+", r"\1...", text.replace(source, _shown(source)).splitlines()[0]) if text else ""


def _hub_rows(source: str) -> Iterator[tuple[str, Any]]:
    """Rows of a dataset on the Hugging Face Hub, streamed; its code is never run (`datasets` has dropped that way)."""
    match = re.fullmatch(r"hf://datasets/([\w.-]+/[\w.-]+)(?:@([\w./-]+))?(?:#([\w.\[\]:%+-]+))?", source)
    if not match:
        raise BadInput(f"{source} is not a dataset's address: write hf://datasets/org/name[@revision][#split]")
    name, revision, split = match.groups()
    try:
        import datasets
    except ImportError:
        raise BadInput(f"{source} needs the package datasets: pip install 'tunesmith[trainer]'") from None
    try:
        rows = datasets.load_dataset(name, revision=revision, split=split or "train", streaming=True)
        for number, row in enumerate(rows, start=1):
            yield f"row {number}", row
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadInput(f"{source} cannot be read from the Hugging Face Hub: {first}") from None


def _messages(record: Any) -> Messages | _Problem:
    """The chat messages of a record, checked; prompt and completion may be texts or lists of messages."""
    if not isinstance(record, dict):
        kind = "a JSON array (jq -c '.[]' writes one object a line)" if isinstance(record, list) else _kind(record)
        return _Problem(f"an object with 'messages', or 'prompt' and 'completion', is wanted; this is {kind}")
    if "messages" in record:
        return _checked(record["messages"], "messages")
    missing = [name for name in ("prompt", "completion") if name not in record]
    if len(missing) == 2:
        found = ", ".join(sorted(ascii(name)[1:-1][:40] for name in record)[:8]) or "none"
        return _Problem(f"neither 'messages' nor 'prompt' and 'completion' is there; fields found: {found}")
    if missing:
        return _Problem(
            {"prompt": "'prompt' is missing", "completion": _NO_ANSWER + "'completion' is missing"}[missing[0]]
        )
    turns: list[Any] = []
    for name, role in (("prompt", "user"), ("completion", "assistant")):
        value = record[name]
        if isinstance(value, str):
            turns.append({"role": role, "content": value})
        elif isinstance(value, list):
            turns.extend(value)
        else:
            return _Problem(f"'{name}' is {_kind(value)}: a text or a list of messages is wanted")
    return _checked(turns, "prompt/completion")


def _checked(turns: Any, name: str) -> Messages | _Problem:
    if not isinstance(turns, list) or not turns:
        return _Problem(f"'{name}' is {_kind(turns)}: a list of messages with 'role' and 'content' is wanted")
    messages: Messages = []
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn, dict) or not all(isinstance(turn.get(key), str) for key in ("role", "content")):
            return _Problem(f"message {number} of '{name}' has no text in 'role' and 'content'")
        role, content = turn["role"], turn["content"]
        if role not in _ROLES:
            return _Problem(f"message {number} has the role {ascii(role[:40])}: one of {', '.join(_ROLES)} is wanted")
        if role == "system" and number > 1:
            return _Problem(f"message {number} has the role 'system', which only the first message may have")
        if role != "system" and not content.strip():
            return _Problem((_NO_ANSWER if role == "assistant" else "") + f"message {number} is empty")
        if "\0" in content or not _is_unicode(content):
            return _Problem(f"message {number} holds a NUL character or half a surrogate pair")
        messages.append({"role": role, "content": content})
    if messages[-1]["role"] != "assistant":
        return _Problem(_NO_ANSWER + "the last message must have the role 'assistant'")
    if all(message["role"] != "user" for message in messages):
        return _Problem("no question: a message with the role 'user' must come before the answer")
    return messages


def _kind(value: Any) -> str:
    return {list: "an empty list", dict: "an object", str: "a text", bool: "true or false", type(None): "null"}.get(
        type(value), "a number"
    )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _docstrings() -> Iterator[tuple[str, Any]]:
    """Question and answer for each documented class and function; parsed, never imported, so that nothing runs.

    In the order of the hash of the answer, so that `max_examples` takes some of every module.
    """
    library, pairs = Path(sysconfig.get_path("stdlib")), dict[str, str]()
    for module in _MODULES:
        file = next((f for f in (library / f"{module}.py", library / module / "__init__.py") if f.is_file()), None)
        if file is None:
            continue
        for name, node in _public(ast.parse(file.read_bytes()), module.replace("/", ".")):
            answer = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
            if 20 <= len(answer) <= 400 and ">>>" not in answer:
                pairs.setdefault(answer, _question(name, node))
    if not pairs:
        raise BadInput(f"this Python has no library sources in {library}: give a JSONL file instead of {BUILT_IN}")
    for answer in sorted(pairs, key=lambda text: hashlib.sha256(text.encode()).digest()):
        yield "docstring", {"prompt": pairs[answer], "completion": answer}


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _public(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, _Definition]]:
    for child in node.body:
        if isinstance(child, _Definition) and not child.name.startswith("_"):
            yield f"{prefix}.{child.name}", child
            if isinstance(child, ast.ClassDef):
                yield from _public(child, f"{prefix}.{child.name}")


def _question(name: str, node: _Definition) -> str:
    if isinstance(node, ast.ClassDef):
        return f"What is Python's class `{name}` for?"
    names = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    shown = ", ".join(one for one in names if one not in ("self", "cls"))
    return f"What does Python's `{name}({shown})` do?"


def _content_hash(messages: Messages) -> bytes:
    """Identity of an example: what is said and by whom, without the accidents of white space and Unicode form."""
    said = [[m["role"], " ".join(unicodedata.normalize("NFC", m["content"]).split())] for m in messages]
    return hashlib.sha256(json.dumps(said, ensure_ascii=False).encode()).digest()


def _split(examples: list[Messages], heldout_fraction: float, seed: int) -> tuple[list[Messages], list[Messages]]:
    """Cut the examples in two: those with the smallest seeded hashes are held out. Both parts are in hash order."""
    ordered = sorted(examples, key=lambda one: hashlib.sha256(f"{seed}\0".encode() + _content_hash(one)).digest())
    count = min(max(1, round(heldout_fraction * len(ordered))), len(ordered) - 1)
    return ordered[count:], ordered[:count]


def _chars(messages: Messages) -> int:
    return sum(len(message["content"]) for message in messages)


def _histogram(lengths: list[int]) -> dict[str, list[int]]:
    """Some 20 bins of one round width that hold all lengths; a bin holds ``edge <= length < next edge``."""
    longest = max(lengths)
    width = next(w for w in _WIDTHS if w * _BINS > longest or w == _WIDTHS[-1])
    edges = list(range(0, longest + 1, width))[:_MAX_BINS]
    counts = [0] * len(edges)
    for length in lengths:
        counts[min(length // width, len(counts) - 1)] += 1
    return {"edges": [*edges, max(edges[-1] + width, longest + 1)], "counts": counts}


def _tokens(train: list[Messages], heldout: list[Messages], tokenizer: Path | None) -> dict[str, Any]:
    """Exact token counts with the model's own chat template, or why there are none: they are never estimated."""
    if tokenizer is None:
        return {"tokens": "unknown: no tokenizer was given"}
    if not tokenizer.is_dir():
        raise BadInput(f"there is no tokenizer folder {tokenizer}: give the imported model's folder")
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise BadInput("counting tokens needs transformers: pip install 'tunesmith[trainer]'") from None
    try:
        loaded = AutoTokenizer.from_pretrained(str(tokenizer), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise BadInput(f"{tokenizer} holds no tokenizer that can be loaded: {str(error).splitlines()[0]}") from None
    if not loaded.chat_template:
        return {"tokens": "unknown: the tokenizer has no chat template"}
    lengths = [
        len(loaded.apply_chat_template(one, tokenize=True, return_dict=True)["input_ids"]) for one in train + heldout
    ]
    figures = {"train": sum(lengths[: len(train)]), "heldout": sum(lengths[len(train) :])}
    return {
        "tokens": figures | {"mean": round(sum(lengths) / len(lengths), 1), "max": max(lengths)},
        "token_histogram": _histogram(lengths),
    }


def _line(messages: Messages) -> str:
    """One line of JSON. Unicode's own line ends are escaped: `str.splitlines`, in other readers, would cut there."""
    text = json.dumps({"messages": messages}, ensure_ascii=False, sort_keys=True)
    return text.translate({0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}) + "\n"


def _write_both(parts: dict[Path, list[Messages]]) -> None:
    """Write all files beside their places and then rename them, so that a reader never sees half of one."""
    written: list[tuple[str, Path]] = []
    try:
        for target, examples in parts.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
            written.append((temporary, target))
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as sink:
                for messages in examples:
                    sink.write(_line(messages))
            os.chmod(temporary, 0o644)  # mkstemp makes it private; other pods' users read it
        for temporary, target in written:
            os.replace(temporary, target)
    except OSError as error:
        raise BadInput(f"cannot write {error.filename or list(parts)[0]}: {error.strerror}") from error
    finally:
        for temporary, _ in written:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
