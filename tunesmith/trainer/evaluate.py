"""Held-out loss and sample answers of a tuned model beside those of the model it came from."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tunesmith.trainer.conversations import Conversation, Message, Tokens, read_conversations, tokenize

ROW_TOKENS = 256  # tokens a pass over several samples takes: more are no faster on a CPU, and need more memory

Progress = Callable[[str, float], None]


def evaluate(
    base_model: Path,
    model: Path,
    heldout: Path,
    *,
    max_samples: int = 96,
    max_length: int = 1024,
    sample_questions: list[str] | None = None,
    samples: int = 4,
    max_new_tokens: int = 48,
    seed: int = 0,
    trust_remote_code: bool = False,
    progress: Progress = lambda what, fraction: None,
) -> dict[str, Any]:
    """Compare a tuned model with its base on conversations that neither was tuned on.

    Both are measured on the same tokens: the base model's tokenizer and chat template are used for both.

    Args:
        base_model: folder of the model before tuning.
        model: folder of the model after it.
        heldout: JSONL file, or a folder with one, of ``{"messages": [...]}``.
        max_samples: conversations to measure; of more, so many are drawn, the same for the same ``seed``.
        max_length: tokens of a conversation; what is longer is cut.
        sample_questions: questions to have answered; by default the first of the drawn conversations.
        samples: number of answers to write.
        max_new_tokens: tokens an answer may have; answers are greedy.
        seed: for the draw.
        trust_remote_code: run Python code that comes with the models.
        progress: told what is being done, and how much of all is done (0 to 1).

    Returns:
        ``eval_loss_base`` and ``eval_loss``: mean negative log-likelihood of an answer's token, in nats;
        ``perplexity_base`` and ``perplexity``: their exponentials; ``eval_tokens`` and ``eval_samples``: how much
        was measured; ``samples``: a list of ``prompt``, ``reference`` (None for a question of one's own), ``base``
        and ``tuned``; ``seconds``.

    Raises:
        BadData: the held-out data cannot be used.
    """
    from transformers import AutoTokenizer

    begin = time.monotonic()
    drawn = draw(read_conversations(heldout), max_samples, seed)
    tokenizer = AutoTokenizer.from_pretrained(base_model, trust_remote_code=trust_remote_code)
    tokens = tokenize(drawn, tokenizer, max_length)
    questions = _questions(drawn, sample_questions, samples)

    measured = []
    for index, (name, folder) in enumerate((("base", base_model), ("tuned", model))):
        progress(f"loading the {name} model", index / 2)
        loaded = _load(folder, trust_remote_code)
        progress(f"measuring the loss of the {name} model", index / 2 + 0.05)
        loss = mean_loss(loaded, tokens)
        progress(f"asking the {name} model", index / 2 + 0.35)
        measured.append((loss, _answers(loaded, tokenizer, [messages for messages, _ in questions], max_new_tokens)))
        del loaded
    progress("done", 1.0)
    (base_loss, base_answers), (loss, answers) = measured
    return {
        "eval_loss_base": base_loss,
        "eval_loss": loss,
        "perplexity_base": math.exp(base_loss),
        "perplexity": math.exp(loss),
        "eval_tokens": sum(t.answer_tokens for t in tokens),
        "eval_samples": len(tokens),
        "samples": [
            {"prompt": messages[-1]["content"], "reference": reference, "base": before, "tuned": after}
            for (messages, reference), before, after in zip(questions, base_answers, answers, strict=True)
        ],
        "seconds": round(time.monotonic() - begin, 2),
    }


def draw(conversations: list[Conversation], count: int, seed: int) -> list[Conversation]:
    """At most ``count`` conversations, the same ones for the same seed, in their own order."""
    if len(conversations) <= count:
        return conversations
    chosen = sorted(random.Random(seed).sample(range(len(conversations)), count))
    return [conversations[index] for index in chosen]


def rows_of(tokens: list[Tokens], limit: int) -> list[list[Tokens]]:
    """Conversations put together into rows of at most ``limit`` tokens (a longer one is a row of its own)."""
    rows: list[list[Tokens]] = []
    room = 0
    for one in sorted(tokens, key=lambda t: len(t.input_ids)):
        if len(one.input_ids) > room:
            rows.append([])
            room = limit
        rows[-1].append(one)
        room -= len(one.input_ids)
    return rows


def mean_loss(model: Any, tokens: list[Tokens]) -> float:
    """Mean negative log-likelihood of the labelled tokens, in nats; no padding is computed.

    Args:
        model: a causal language model on its device.
        tokens: what to measure; several go into one row, in which they do not see each other.
    """
    import torch

    from tunesmith.trainer.loss import labels_only_possible, row_of, summed_loss

    packs = labels_only_possible(model)
    total, count = 0.0, 0
    with torch.inference_mode():
        for row in rows_of(tokens, ROW_TOKENS if packs else 1):
            inputs = row_of(row, model.device)
            if packs:
                total += float(summed_loss(model, inputs))
            else:  # some architectures know nothing of packing: one conversation at a time
                answer_tokens = row[0].answer_tokens
                total += float(model(input_ids=inputs["input_ids"], labels=inputs["labels"]).loss) * answer_tokens
            count += sum(one.answer_tokens for one in row)
    return total / count


def _load(folder: Path, trust_remote_code: bool) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    gpu = torch.cuda.is_available()
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto" if gpu else torch.float32, trust_remote_code=trust_remote_code, use_safetensors=True
    )
    return model.to("cuda" if gpu else "cpu").eval()


def _questions(
    conversations: list[Conversation], asked: list[str] | None, count: int
) -> list[tuple[list[Message], str | None]]:
    """What to ask, as the messages before the answer, and the answer that the data has."""
    if asked:
        return [([{"role": "user", "content": question}], None) for question in asked[:count]]
    found: list[tuple[list[Message], str | None]] = []
    for conversation in conversations:
        *before, last = conversation.messages
        if last["role"] == "assistant" and before and len(found) < count:
            found.append((before, last["content"]))
    return found


def _answers(model: Any, tokenizer: Any, prompts: list[list[Message]], max_new_tokens: int) -> list[str]:
    """Greedy answers, all prompts at once (padded on the left, where the model does not look)."""
    import torch

    if not prompts:
        return []
    texts = [tokenizer.apply_chat_template(p, tokenize=False, add_generation_prompt=True) for p in prompts]
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    inputs = tokenizer(
        texts, add_special_tokens=False, padding=True, padding_side="left", return_tensors="pt"
    ).to(model.device)  # fmt: skip
    with torch.inference_mode():
        written = model.generate(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"],
            do_sample=False, max_new_tokens=max_new_tokens, pad_token_id=tokenizer.pad_token_id,
            temperature=None, top_p=None, top_k=None,
        )  # fmt: skip
    new = written[:, inputs["input_ids"].shape[1] :]
    return [text.strip() for text in tokenizer.batch_decode(new, skip_special_tokens=True)]
