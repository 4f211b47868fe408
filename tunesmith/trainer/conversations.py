"""Conversations: from JSONL to token ids, with labels on what the assistant says and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunesmith.errors import BadInput

IGNORED = -100  # the label that torch's cross entropy leaves out

Message = dict[str, str]


class BadData(BadInput):
    """The training or held-out data cannot be used; the message names file and line."""

    default_id = "bad-training-data"


@dataclass(frozen=True)
class Conversation:
    """One conversation and where it stands, for messages about it."""

    messages: list[Message]
    origin: str


@dataclass(frozen=True)
class Tokens:
    """Token ids of one conversation, and as many labels: the id where the assistant speaks, else ``IGNORED``."""

    input_ids: list[int]
    labels: list[int]

    @property
    def answer_tokens(self) -> int:
        """Tokens that count in the loss (the first token has nothing before it that could predict it)."""
        return sum(label != IGNORED for label in self.labels[1:])


def find_jsonl(path: Path) -> Path:
    """The JSONL file itself, or the only one in a folder.

    Raises:
        BadData: there is none, or more than one.
    """
    if path.is_file():
        return path
    found = sorted(path.glob("*.jsonl")) if path.is_dir() else []
    if len(found) != 1:
        raise BadData(f"{path} must be one JSONL file, or a folder with exactly one; there are {len(found)}")
    return found[0]


def read_conversations(path: Path) -> list[Conversation]:
    """All conversations of a JSONL file; each line is ``{"messages": [{"role": ..., "content": ...}, ...]}``.

    Raises:
        BadData: the file is empty, or a line is not a conversation with an answer; names the line.
    """
    file = find_jsonl(path)
    conversations = []
    with file.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                origin = f"{file.name} line {number}"
                conversations.append(Conversation(_messages(line, origin), origin))
    if not conversations:
        raise BadData(f"{file.name} is empty: it needs one conversation a line")
    return conversations


def _messages(line: bytes, origin: str) -> list[Message]:
    try:
        messages = json.loads(line)["messages"]
        messages = [{"role": m["role"], "content": m["content"]} for m in messages]
    except (ValueError, KeyError, TypeError):
        raise BadData(
            f'{origin} is not a conversation: write {{"messages": [{{"role": "user", "content": "..."}}, ...]}}'
        ) from None
    if not all(isinstance(value, str) for message in messages for value in message.values()):
        raise BadData(f"{origin}: role and content must be text")
    if not any(m["role"] == "assistant" and m["content"].strip() for m in messages):
        raise BadData(f"{origin} has no answer: it needs a message with role assistant")
    return messages


def tokenize(conversations: Iterable[Conversation], tokenizer: Any, max_length: int) -> list[Tokens]:
    """Tokens of every conversation in the model's chat template, cut at ``max_length`` tokens.

    Every assistant turn has labels, its end-of-turn mark included, the rest of the template has none. Conversations
    without a label within ``max_length`` are left out.

    Args:
        conversations: what to tokenize.
        tokenizer: a fast Hugging Face tokenizer with a chat template.
        max_length: tokens that are kept of each.

    Raises:
        BadData: the template refuses a conversation (the message names it), or nothing is left.
        BadInput: the model has no chat template.
    """
    if not tokenizer.chat_template:
        raise BadInput("the model has no chat template: use an instruction-tuned model")
    rendered = [_render(conversation, tokenizer) for conversation in conversations]
    encoded = tokenizer([text for text, _ in rendered], add_special_tokens=False, return_offsets_mapping=True)
    kept = []
    for (_, spans), ids, offsets in zip(rendered, encoded["input_ids"], encoded["offset_mapping"], strict=True):
        tokens = Tokens(ids[:max_length], list(_labels(ids, offsets, spans))[:max_length])
        if tokens.answer_tokens:
            kept.append(tokens)
    if not kept:
        raise BadData(f"no conversation has an answer within its first {max_length} tokens: raise --max-length")
    return kept


def _labels(ids: list[int], offsets: list[tuple[int, int]], spans: list[tuple[int, int]]) -> Iterator[int]:
    for token, (start, _) in zip(ids, offsets, strict=True):
        yield token if any(begin <= start < end for begin, end in spans) else IGNORED


def _render(conversation: Conversation, tokenizer: Any) -> tuple[str, list[tuple[int, int]]]:
    """The whole text, and the character spans in it that the assistant has to say.

    A turn's span lies between the text up to its prompt and the text up to its end. A template that rewrites earlier
    turns as the conversation goes on (dropped reasoning) has no such place for them: then only the last turn counts.
    """
    messages = conversation.messages
    try:
        whole = _text(messages, tokenizer)
        spans = []
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = _text(messages[:index], tokenizer, add_generation_prompt=True)
            after = _text(messages[: index + 1], tokenizer)
            if whole.startswith(after) and after.startswith(before):
                spans.append((len(before), len(after)))
            elif index == len(messages) - 1:
                spans.append((_common_prefix(before, whole), len(whole)))
    except Exception as error:  # whatever the template's own code raises
        raise BadData(f"{conversation.origin}: the model's chat template refuses it ({error})") from None
    return whole, spans


def _text(messages: list[Message], tokenizer: Any, **options: bool) -> str:
    return str(tokenizer.apply_chat_template(messages, tokenize=False, **options)) if messages else ""


def _common_prefix(one: str, other: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
