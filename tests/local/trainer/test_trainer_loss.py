"""The loss: on answers only, and the same packed as alone. These tests guard against upgrades of the libraries."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.local, pytest.mark.trainer]


@pytest.fixture(scope="module")
def tokenizer(tiny_model):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.fixture(params=["sdpa", "eager"])
def model(request, tiny_model):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation=request.param).eval()


@pytest.fixture(scope="module")
def samples(train_file, tokenizer):
    from tunesmith.trainer.conversations import read_conversations, tokenize

    return tokenize(read_conversations(train_file), tokenizer, 128)[:4]


def labelled_text(tokenizer, messages) -> str:
    from tunesmith.trainer.conversations import IGNORED, Conversation, tokenize

    (tokens,) = tokenize([Conversation(messages, "test")], tokenizer, 512)
    assert all(label in (IGNORED, token) for token, label in zip(tokens.input_ids, tokens.labels, strict=True))
    return tokenizer.decode([label for label in tokens.labels if label != IGNORED])


def test_labels_cover_every_answer_with_its_end_and_nothing_else(tokenizer):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is small?"},
        {"role": "assistant", "content": "Not big."},
        {"role": "user", "content": "And assistant is?"},
        {"role": "assistant", "content": "Me, assistant."},
        {"role": "user", "content": "Thanks."},
    ]
    assert labelled_text(tokenizer, messages) == "Not big.<|im_end|>\nMe, assistant.<|im_end|>\n"


def test_a_template_that_rewrites_earlier_turns_leaves_the_last_answer_labelled(tokenizer):
    import copy

    changed = copy.deepcopy(tokenizer)
    changed.chat_template = tokenizer.chat_template.replace(
        "message['content']", "(message['content'] if loop.last or message['role'] == 'user' else 'cut')"
    )
    messages = [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "Long thoughts."},
        {"role": "user", "content": "Two?"},
        {"role": "assistant", "content": "Answer."},
    ]
    assert labelled_text(changed, messages) == "Answer.<|im_end|>\n"


def test_a_conversation_the_template_refuses_is_named(tokenizer):
    import copy

    from tunesmith.trainer.conversations import BadData, Conversation, tokenize

    strict = copy.deepcopy(tokenizer)
    strict.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(BadData, match=r"data\.jsonl line 7: .*roles must alternate"):
        tokenize([Conversation([{"role": "assistant", "content": "x"}], "data.jsonl line 7")], strict, 64)


def test_an_answer_beyond_the_length_is_left_out_and_none_left_is_refused(tokenizer, samples):
    from tunesmith.trainer.conversations import BadData, Conversation, tokenize

    long = [{"role": "user", "content": "why " * 50}, {"role": "assistant", "content": "So."}]
    short = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    kept = tokenize([Conversation(long, "1"), Conversation(short, "2")], tokenizer, 100)
    assert len(kept) == 1
    with pytest.raises(BadData, match="100 tokens"):
        tokenize([Conversation(long, "1")], tokenizer, 100)


def test_packed_samples_have_the_loss_of_padded_ones(model, samples, tokenizer):
    import torch

    from tunesmith.trainer.loss import row_of, summed_loss

    longest = max(len(s.input_ids) for s in samples)
    assert len({len(s.input_ids) for s in samples}) > 1
    ids = torch.full((len(samples), longest), tokenizer.pad_token_id)
    labels, mask = torch.full_like(ids, -100), torch.zeros_like(ids)
    for i, s in enumerate(samples):
        n = len(s.input_ids)
        ids[i, :n], labels[i, :n], mask[i, :n] = torch.tensor(s.input_ids), torch.tensor(s.labels), 1
    answers = sum(s.answer_tokens for s in samples)
    with torch.no_grad():
        padded = float(model(input_ids=ids, attention_mask=mask, labels=labels).loss)
        packed = float(summed_loss(model, row_of(samples, "cpu"))) / answers
    assert packed == pytest.approx(padded, rel=1e-6)


def test_the_second_packed_sample_has_exactly_the_logits_it_has_alone(model, samples):
    import torch

    from tunesmith.trainer.loss import row_of

    first = len(samples[0].input_ids)
    packed = {k: v for k, v in row_of(samples[:2], "cpu").items() if k != "labels"}
    with torch.no_grad():
        together = model(**packed, use_cache=False).logits[0, first:]
        alone = model(input_ids=torch.tensor([samples[1].input_ids]), use_cache=False).logits[0]
        seeing_each_other = model(
            **packed, attention_mask=torch.ones_like(packed["input_ids"]), use_cache=False
        ).logits[0, first:]  # fmt: skip
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)
    # That this can fail is shown by what must not be done: with a mask of ones the samples see each other.
    assert (seeing_each_other - alone).abs().max() > 1e-2


@pytest.fixture
def trainer(tiny_model, samples, tokenizer, tmp_path):
    from transformers import AutoModelForCausalLM
    from trl import SFTConfig

    from tunesmith.trainer.environment import Rank
    from tunesmith.trainer.settings import TrainSettings
    from tunesmith.trainer.sft import ResumableSFTTrainer, as_dataset, lora_config

    class NoSignal:
        received = loop_asks = False

    settings = TrainSettings(max_length=128)
    made = ResumableSFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(tiny_model),
        args=SFTConfig(
            output_dir=str(tmp_path), packing=True, max_length=128, use_cpu=True, bf16=False, report_to="none",
            gradient_checkpointing=False, per_device_train_batch_size=1, max_steps=1,
        ),
        train_dataset=as_dataset(samples), processing_class=tokenizer, peft_config=lora_config(settings),
    )  # fmt: skip
    made.attach(settings, None, {}, Rank(), NoSignal(), lambda values: None)
    return made


def test_trl_hands_out_rows_without_mask_whose_positions_restart(trainer):
    batch = next(iter(trainer.get_train_dataloader()))

    assert "attention_mask" not in batch
    positions = batch["position_ids"][0]
    starts = (positions == 0).nonzero().flatten().tolist()
    assert len(starts) > 1
    assert starts[0] == 0
    assert all(label == -100 for label in batch["labels"][0, starts])


def test_the_loss_on_labels_only_is_the_loss_that_trl_computes(trainer):
    import torch
    from trl import SFTTrainer

    batch = next(iter(trainer.get_train_dataloader()))
    count = torch.tensor(7)
    with torch.no_grad():
        ours = trainer.compute_loss(trainer.model, dict(batch), num_items_in_batch=count)
        theirs = SFTTrainer.compute_loss(trainer, trainer.model, dict(batch), num_items_in_batch=count)
    assert trainer._labels_only
    assert float(ours) == pytest.approx(float(theirs), rel=1e-5)
