import shutil

import pytest
from kfp import dsl

from tunesmith.components.data.import_model import import_model
from tunesmith.lineage.digest import digest_path
from tunesmith.tasks.step import StepFailed

pytestmark = pytest.mark.trainer


@pytest.fixture
def bring(step_folder):
    """Run the step; returns its model and its folder."""

    def run(reference, **arguments):
        step = step_folder("import")
        model = step.artifact(dsl.Model, "model")
        import_model.python_func(model, step.artifact(dsl.Artifact, "record"), reference=str(reference), **arguments)
        return model, step

    return run


def test_local_folder_becomes_a_model_that_transformers_loads_with_the_same_weights(bring, small_model):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, _ = bring(f"file://{small_model}")
    before, after = (AutoModelForCausalLM.from_pretrained(place).state_dict() for place in (small_model, model.path))
    assert before.keys() == after.keys()
    assert all((before[name] == after[name]).all() for name in before)
    assert AutoTokenizer.from_pretrained(model.path).chat_template


def test_record_and_metadata_say_what_the_model_is(bring, small_model, tmp_path):
    licensed = tmp_path / "licensed"
    shutil.copytree(small_model, licensed)
    (licensed / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    model, step = bring(licensed)
    record = step.record()
    assert record["outputs"][0]["digest"] == digest_path(model.path).text
    assert record["details"]["architecture"] == model.metadata["architecture"] == "LlamaForCausalLM"
    assert model.metadata["license"] == "apache-2.0"


def test_model_with_pickled_weights_only_is_refused_and_nothing_of_it_is_kept(bring, small_model, tmp_path):
    hostile = tmp_path / "hostile"
    shutil.copytree(small_model, hostile)
    (hostile / "model.safetensors").rename(hostile / "pytorch_model.bin")
    with pytest.raises(StepFailed) as raised:
        bring(hostile)
    assert "pickle" in raised.value.record.failure.message
    assert not list(tmp_path.glob("runs/run-1/import/model*"))


def test_code_of_the_models_own_is_refused_unless_it_is_asked_for(bring, small_model, tmp_path):
    custom = tmp_path / "custom"
    shutil.copytree(small_model, custom)
    config = custom / "config.json"
    config.write_text(config.read_text().replace("{", '{"auto_map": {"AutoModel": "modeling.Own"},', 1))
    (custom / "modeling.py").write_text("raise SystemExit('this code must not run')\n")
    with pytest.raises(StepFailed) as raised:
        bring(custom)
    assert "trust_remote_code" in raised.value.record.failure.message
    _, step = bring(custom, trust_remote_code=True)
    assert step.record()["details"]["custom_code"] == ["modeling.py"]


def test_reference_that_does_not_exist_fails_with_what_to_write_instead(bring, tmp_path):
    with pytest.raises(StepFailed) as raised:
        bring(tmp_path / "nowhere")
    failure = raised.value.record.failure
    assert (failure.fault, raised.value.code) == ("user", 2)
    assert "hf://" in failure.message
