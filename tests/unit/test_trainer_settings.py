from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tunesmith.errors import BadInput
from tunesmith.trainer.__main__ import main
from tunesmith.trainer.settings import TrainSettings, parse_settings


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--max-steps", "0"], "error: --max-steps 0 is not possible: it must be greater than or equal to 1"),
        (["--learning-rate", "-1"], "error: --learning-rate -1 is not possible: it must be greater than 0"),
        (["--learning-rate", "nan"], "error: --learning-rate nan is not possible: it must be a finite number"),
        (["--method", "qlora"], "error: --method qlora is not possible: it must be 'lora' or 'full'"),
        (["--max-step", "3"], "error: No such option '--max-step'"),
        (["surplus"], "error: Got unexpected extra argument"),
    ],
)
def test_a_bad_option_is_one_sentence_and_exit_code_2(arguments, sentence, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("TUNESMITH_TERMINATION_LOG", str(tmp_path / "log"))

    assert main(arguments) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(sentence)
    assert '"fault": "user"' in (tmp_path / "log").read_text()


def test_a_batch_that_ranks_cannot_share_names_the_multiple_to_write():
    with pytest.raises(BadInput, match="--batch-size 8 cannot be shared evenly by 3 ranks: write a multiple of 3"):
        TrainSettings(batch_size=8).accumulation(3, gpu=False)


def test_passes_that_do_not_divide_a_ranks_share_are_refused():
    with pytest.raises(BadInput, match="--gradient-accumulation-steps 3"):
        TrainSettings(batch_size=8, gradient_accumulation_steps=3).accumulation(2, gpu=False)


def test_a_cpu_takes_one_sample_a_pass_and_a_gpu_all_at_once():
    settings = TrainSettings(batch_size=8)
    assert (settings.accumulation(2, gpu=False), settings.accumulation(2, gpu=True)) == (4, 1)


def test_the_fingerprint_ignores_where_a_run_stops_but_not_its_schedule():
    one = TrainSettings(max_steps=10, schedule_steps=40, save_every=5)
    assert one.fingerprint() == TrainSettings(max_steps=40, save_every=7).fingerprint()
    assert one.fingerprint() != TrainSettings(max_steps=10).fingerprint()


def test_unknown_settings_are_refused():
    with pytest.raises(BadInput, match="--turbo"):
        parse_settings({"turbo": True})


def test_help_names_every_setting_and_loads_no_torch():
    program = (
        "import sys; from tunesmith.trainer.__main__ import main; main(['--help']);"
        "sys.exit(sum(m in sys.modules for m in ('torch', 'transformers', 'trl', 'kfp', 'kubernetes')))"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    options = set(re.findall(r"--[a-z-]+", shown.stdout))
    assert {f"--{name.replace('_', '-')}" for name in TrainSettings.model_fields} <= options
