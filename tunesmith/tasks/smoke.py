"""Asking a deployed model over the OpenAI API, and what its answers tell."""

from __future__ import annotations

import json
import statistics
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tunesmith.errors import BadInput, TunesmithError
from tunesmith.launch.progress import say
from tunesmith.tasks.step import Step


class SmokeTestFailed(TunesmithError):
    """The service did not answer, or answered with nothing."""

    default_id = "smoke-test-failed"


@dataclass(frozen=True)
class Answer:
    """One question and what came back; ``seconds`` from sending the request to having the whole answer."""

    question: str
    answer: str
    seconds: float
    tokens: int
    ok: bool


def ask_all(
    this: Step, url: str, questions: Sequence[str], *, model_name: str, max_tokens: int, max_seconds: float
) -> None:
    """Ask each question once, leave the answers for the report, and set the step's metrics.

    Raises:
        SmokeTestFailed: a question got no answer; all were asked.
        BadInput: there is nothing to ask, or the address is not one.
    """
    if not questions or not all(isinstance(question, str) and question.strip() for question in questions):
        raise BadInput("questions: give at least one question, each a text that is not empty.", "no-questions")
    if not url.startswith(("http://", "https://")):
        raise BadInput(f"url: {url!r} is not an http address.", "invalid-url")
    name = model_name or _model_of(url, max_seconds)
    answers = [_ask(url, name, question, max_tokens, max_seconds) for question in questions]
    this.leave("smoke.json", [asdict(answer) for answer in answers])
    for answer in answers:
        say(f"{answer.seconds:.2f} s: {answer.question!r} -> {answer.answer!r}")
    good = [answer for answer in answers if answer.ok]
    this.metrics["answers"] = float(len(good))
    if good:
        seconds = [answer.seconds for answer in good]
        this.metrics["latency_p50_seconds"] = round(statistics.median(seconds), 4)
        this.metrics["latency_max_seconds"] = round(max(seconds), 4)
        if tokens := sum(answer.tokens for answer in good):
            this.metrics["answer_tokens_per_second"] = round(tokens / sum(seconds), 3)
    if len(good) < len(answers):
        bad = next(answer for answer in answers if not answer.ok)
        raise SmokeTestFailed(
            f"{len(answers) - len(good)} of {len(answers)} questions got no answer from {url}; the first, "
            f"{bad.question!r}, got {bad.answer!r} after {bad.seconds:.1f} s"
        )


def _model_of(url: str, max_seconds: float) -> str:
    try:
        served = _request(f"{url}/v1/models", None, max_seconds)["data"]
        return str(served[0]["id"])
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise SmokeTestFailed(f"{url}/v1/models names no model: {error}") from None


def _ask(url: str, model: str, question: str, max_tokens: int, max_seconds: float) -> Answer:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }
    started = time.monotonic()
    try:
        reply = _request(f"{url}/v1/chat/completions", body, max_seconds)
        text = str(reply["choices"][0]["message"]["content"] or "")
        tokens = int((reply.get("usage") or {}).get("completion_tokens") or 0)
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        return Answer(question, f"{type(error).__name__}: {error}", time.monotonic() - started, 0, False)
    return Answer(question, text, time.monotonic() - started, tokens, bool(text.strip()))


def _request(url: str, body: dict[str, Any] | None, max_seconds: float) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    # A service in the cluster or on this machine is never behind the user's proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=max_seconds) as reply:
        answer: dict[str, Any] = json.loads(reply.read())
        return answer
