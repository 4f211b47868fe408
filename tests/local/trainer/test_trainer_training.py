"""One process: training, its checkpoints, its output and its refusals."""

from __future__ import annotations

import json
import re
import shutil

import pytest

pytestmark = [pytest.mark.local, pytest.mark.trainer]

STEPS = (
    *("--max-steps", "12", "--batch-size", "4", "--max-length", "128"),
    *("--learning-rate", "1e-2", "--save-every", "4"),
)


@pytest.fixture
def trained(make_job, monkeypatch):
    job = make_job("unbroken")
    assert job.main(monkeypatch, *STEPS) == 0
    return job


def test_training_lowers_the_loss_and_reports_it(trained, capsys):
    metrics = trained.result()["metrics"]

    assert metrics["train_loss"] < 0.9 * metrics["first_loss"]
    assert metrics["steps"] == 12
    assert metrics["ranks"] == 1
    assert metrics["resumed_from_step"] == 0
    assert metrics["tokens"] == metrics["useful_tokens"] > 12 * 100  # packed: no padding


def test_every_step_is_a_line_that_katib_reads(make_job, monkeypatch, capsys):
    assert make_job().main(monkeypatch, *STEPS) == 0

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12
    for number, line in enumerate(lines, start=1):
        assert re.match(rf"\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z step={number} loss=\d", line)
        # Katib's default filter for the StdOut collector
        found = dict(re.findall(r"([\w|-]+)\s*=\s*([+-]?\d*(?:\.\d+)?(?:[Ee][+-]?\d+)?)", line))
        assert set(found) == {"step", "loss", "learning_rate", "tokens_per_second"}


def test_the_output_is_a_complete_model_that_loads_without_peft(trained, tiny_model):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tunesmith.lineage.digest import digest_path

    names = {p.name for p in trained.output.iterdir()}
    assert names >= {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "adapter"}
    assert not [p for p in trained.output.rglob("*") if p.suffix in (".bin", ".pt", ".pth")]
    model = AutoModelForCausalLM.from_pretrained(trained.output)
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    name = "model.layers.0.mlp.down_proj.weight"
    assert not torch.equal(model.state_dict()[name], base.state_dict()[name])
    assert model.dtype == base.dtype
    tokenizer = AutoTokenizer.from_pretrained(trained.output)
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(tiny_model).chat_template
    reported = trained.result()["outputs"]["model"]
    assert reported == {"digest": digest_path(trained.output).text, "bytes": digest_path(trained.output).bytes}


def test_the_merged_model_answers_as_the_base_with_the_adapter_does(trained, tiny_model):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model), trained.output / "adapter")
    merged = AutoModelForCausalLM.from_pretrained(trained.output)
    ids = torch.arange(40)[None]
    with torch.no_grad():
        torch.testing.assert_close(adapted(ids).logits, merged(ids).logits, rtol=1e-4, atol=1e-5)


def test_a_resumed_run_has_the_losses_of_an_unbroken_one_to_the_last_digit(trained, make_job, monkeypatch):
    cut = make_job("cut")
    cut.checkpoints.mkdir()
    shutil.copytree(trained.checkpoints / "checkpoint-8", cut.checkpoints / "checkpoint-8")

    assert cut.main(monkeypatch, *STEPS) == 0

    assert cut.history() == trained.history()
    before, after = trained.result()["metrics"], cut.result()["metrics"]
    assert after["resumed_from_step"] == 8
    for name in ("tokens", "useful_tokens", "train_loss", "first_loss"):
        assert after[name] == before[name]


def test_a_run_whose_checkpoint_is_at_the_last_step_only_writes_the_output(trained, monkeypatch, capsys):
    digest = trained.result()["outputs"]
    shutil.rmtree(trained.output)

    assert trained.main(monkeypatch, *STEPS) == 0

    assert capsys.readouterr().out == ""
    assert trained.result()["metrics"]["resumed_from_step"] == 12
    assert trained.result()["metrics"]["steps"] == 12
    assert (trained.output / "model.safetensors").exists()
    assert trained.result()["outputs"].keys() == digest.keys()


def test_only_the_two_newest_checkpoints_are_kept(trained):
    assert sorted(p.name for p in trained.checkpoints.glob("checkpoint-*")) == ["checkpoint-12", "checkpoint-8"]


def test_half_a_checkpoint_is_ignored_and_removed(trained, monkeypatch):
    (trained.checkpoints / "checkpoint-12" / "complete.json").unlink()
    (trained.checkpoints / ".writing" / "checkpoint-16").mkdir(parents=True)
    (trained.checkpoints / ".writing" / "checkpoint-16" / "optimizer.pt").write_bytes(b"half")
    history = trained.history()

    assert trained.main(monkeypatch, *STEPS) == 0

    assert trained.result()["metrics"]["resumed_from_step"] == 8
    assert trained.history() == history
    assert not (trained.checkpoints / ".writing" / "checkpoint-16").exists()


@pytest.mark.parametrize("name", ["optimizer.pt", "rng_state.pth", "adapter_model.safetensors"])
def test_a_changed_byte_in_a_checkpoint_is_refused_before_it_is_opened(trained, monkeypatch, name):
    file = trained.checkpoints / "checkpoint-12" / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)

    assert trained.main(monkeypatch, *STEPS) == 1

    error = trained.result()["error"]
    assert (error["fault"], error["reason"]) == ("user", "CheckpointRefused")
    assert name in error["message"]


def test_a_checkpoint_of_other_settings_is_refused(trained, monkeypatch):
    assert trained.main(monkeypatch, *STEPS, "--lora-rank", "4") == 1

    error = trained.result()["error"]
    assert error["reason"] == "CheckpointRefused"
    assert "lora_rank" in error["message"]


def test_a_trial_that_ends_early_follows_the_schedule_of_the_whole(trained, make_job, monkeypatch):
    trial = make_job("trial")

    assert trial.main(monkeypatch, *STEPS, "--max-steps", "6", "--schedule-steps", "12") == 0

    assert trial.history() == trained.history()[:6]


def test_full_fine_tuning_trains_every_weight(make_job, monkeypatch, tiny_model):
    import torch
    from transformers import AutoModelForCausalLM

    job = make_job()
    assert job.main(monkeypatch, *STEPS, "--method", "full", "--max-steps", "3") == 0

    model, base = (AutoModelForCausalLM.from_pretrained(folder) for folder in (job.output, tiny_model))
    same = [name for name, weight in base.state_dict().items() if torch.equal(weight, model.state_dict()[name])]
    assert same == []
    assert not (job.output / "adapter").exists()


def test_padded_batches_count_padding_apart_from_what_is_useful(make_job, monkeypatch):
    job = make_job()
    options = ("--no-packing", "--gradient-accumulation-steps", "1", "--max-steps", "2")

    assert job.main(monkeypatch, *STEPS, *options) == 0

    metrics = job.result()["metrics"]
    assert metrics["useful_tokens"] < metrics["tokens"]


def test_recomputed_activations_give_the_same_losses(trained, make_job, monkeypatch):
    job = make_job("recomputed")
    assert job.main(monkeypatch, *STEPS, "--gradient-checkpointing", "on") == 0
    assert [loss for _, loss in job.history()] == pytest.approx([loss for _, loss in trained.history()], rel=1e-5)


def test_a_loss_that_is_no_number_fails_the_run(make_job, monkeypatch):
    job = make_job()
    assert job.main(monkeypatch, *STEPS, "--learning-rate", "1e30", "--method", "full") == 1
    assert "loss is" in job.result()["error"]["message"]
    assert not (job.output / "config.json").exists()


def test_an_output_folder_with_other_files_is_not_touched(make_job, monkeypatch):
    job = make_job()
    job.output.mkdir()
    (job.output / "thesis.txt").write_text("mine")

    assert job.main(monkeypatch, *STEPS) == 2

    assert (job.output / "thesis.txt").read_text() == "mine"
    assert job.result()["error"]["fault"] == "user"


def test_sharding_without_gpus_is_refused_rather_than_ignored(make_job, monkeypatch):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there are GPUs")
    job = make_job()
    assert job.main(monkeypatch, *STEPS, "--sharding", "fsdp") == 2
    assert "--sharding fsdp needs GPUs" in job.result()["error"]["message"]


def test_without_a_folder_for_checkpoints_the_model_is_written_all_the_same(trained, make_job, monkeypatch):
    job = make_job("bare", TUNESMITH_CHECKPOINTS="")
    assert job.main(monkeypatch, *STEPS) == 0
    assert job.history() == trained.history()
    weights = "model.safetensors"
    assert (job.output / weights).read_bytes() == (trained.output / weights).read_bytes()


def test_pickled_weights_are_refused(make_job, monkeypatch, tmp_path, tiny_model):
    folder = tmp_path / "pickled"
    shutil.copytree(tiny_model, folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")

    assert make_job(TUNESMITH_INPUT_MODEL=str(folder)).main(monkeypatch, *STEPS) == 2


def test_training_json_says_what_was_done(trained):
    about = json.loads((trained.output / "training.json").read_text())

    assert about["settings"]["learning_rate"] == 1e-2
    assert [step for step, _, _ in about["history"]] == list(range(1, 13))
    seconds = [s for _, _, s in about["history"]]
    assert seconds == sorted(seconds)
    assert about["libraries"]["trl"]
