"""Instruction data: what is accepted, what is refused and how, and that the split is a function of the content."""

import ast
import http.server
import json
import os
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tunesmith.errors import BadInput
from tunesmith.trainer import instructions
from tunesmith.trainer.instructions import BUILT_IN, prepare


def pair(prompt="What is 2 + 2?", completion="Four."):
    return {"prompt": prompt, "completion": completion}


def chat(*turns):
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def jsonl(folder: Path, *records) -> Path:
    file = folder / "data.jsonl"
    file.write_text("".join(one + "\n" if isinstance(one, str) else json.dumps(one) + "\n" for one in records))
    return file


def run(source, folder: Path, **options):
    """Prepare into ``folder`` and return the report with the lines of both files."""
    report = prepare(str(source), folder / "train.jsonl", folder / "heldout.jsonl", **options)
    read = [(folder / name).read_text("utf-8").splitlines() for name in ("train.jsonl", "heldout.jsonl")]
    return report, *read


def refusal(source, folder: Path, **options) -> str:
    """The sentence with which a source is refused; nothing may be left in the folder."""
    out = folder / "out"
    with pytest.raises(BadInput) as caught:
        run(source, out, **options)
    assert not out.exists() or not list(out.iterdir())
    return str(caught.value)


@pytest.mark.parametrize(
    ("record", "want"),
    [
        pytest.param(pair("q", "a"), [("user", "q"), ("assistant", "a")], id="texts of prompt and completion"),
        pytest.param(
            chat(("system", "s"), ("user", "q"), ("assistant", "a")),
            [("system", "s"), ("user", "q"), ("assistant", "a")],
            id="chat messages",
        ),
        pytest.param(
            {
                "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}],
                "completion": [{"role": "assistant", "content": "a"}],
            },
            [("system", "s"), ("user", "q"), ("assistant", "a")],
            id="prompt and completion as messages",
        ),
        pytest.param(
            {"id": 3, "messages": [{"role": "user", "content": "q", "x": 1}, {"role": "assistant", "content": "a"}]},
            [("user", "q"), ("assistant", "a")],
            id="fields that are not needed are dropped",
        ),
    ],
)
def test_every_accepted_form_becomes_chat_messages(tmp_path, record, want):
    report, train, heldout = run(jsonl(tmp_path, record), tmp_path)
    assert [(m["role"], m["content"]) for m in json.loads(train[0])["messages"]] == want
    assert (report["examples"], report["train"], report["heldout"], heldout) == (1, 1, 0, [])


def test_a_line_is_canonical_json_with_text_as_it_is(tmp_path):
    _, train, _ = run(jsonl(tmp_path, pair("Grüße <b>", "日本 'ok'")), tmp_path)
    assert train == [
        '{"messages": [{"content": "Grüße <b>", "role": "user"}, {"content": "日本 \'ok\'", "role": "assistant"}]}'
    ]


def test_a_byte_order_mark_blank_lines_and_windows_line_ends_are_no_mistakes(tmp_path):
    file = tmp_path / "data.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(pair()).encode() + b"\r\n\r\n" + json.dumps(pair("q", "a")).encode())
    assert run(file, tmp_path)[0]["examples"] == 2


def test_a_url_is_read_like_a_path(tmp_path):
    file = jsonl(tmp_path, pair(), pair("q", "a"))
    assert run(f"file://{file}", tmp_path)[1:] == run(file, tmp_path)[1:]


@pytest.mark.parametrize(
    ("record", "want"),
    [
        pytest.param('{"prompt": "x"', "line 2: not JSON: Expecting ',' delimiter at column 15", id="malformed"),
        pytest.param("[" * 100_000, "line 2: not JSON that can be read", id="brackets nested too deep"),
        pytest.param('{"prompt": ' + "9" * 5000 + "}", "line 2: not JSON that can be read", id="endless number"),
        pytest.param('["a"]', "line 2: an object with 'messages', or 'prompt' and 'completion', is wanted", id="array"),
        pytest.param("3", "line 2: an object with 'messages', or 'prompt'", id="number"),
        pytest.param({"prompt": "x"}, "line 2: no assistant answer: 'completion' is missing", id="no completion"),
        pytest.param({"completion": "x"}, "line 2: 'prompt' is missing", id="no prompt"),
        pytest.param({"question": "q", "answer": "a"}, "fields found: answer, question", id="another pair of names"),
        pytest.param({}, "fields found: none", id="no fields"),
        pytest.param(pair("q", " \n"), "line 2: no assistant answer: message 2 is empty", id="blank answer"),
        pytest.param(pair("", "a"), "line 2: message 1 is empty", id="blank question"),
        pytest.param(pair("q", 3), "line 2: 'completion' is a number: a text or a list", id="completion is a number"),
        pytest.param(pair("q", None), "line 2: 'completion' is null", id="completion is null"),
        pytest.param({"messages": "hello"}, "line 2: 'messages' is a text: a list of messages", id="messages a text"),
        pytest.param({"messages": []}, "line 2: 'messages' is an empty list", id="no messages"),
        pytest.param({"messages": [{"role": "user"}]}, "message 1 of 'messages' has no text", id="no content"),
        pytest.param({"messages": ["hi"]}, "message 1 of 'messages' has no text", id="messages are texts"),
        pytest.param(chat(("user", "q")), "line 2: no assistant answer: the last message", id="no answer"),
        pytest.param(chat(("assistant", "a")), "line 2: no question", id="no question"),
        pytest.param(chat(("human", "q")), "message 1 has the role 'human': one of system, user", id="unknown role"),
        pytest.param(
            chat(("user", "q"), ("system", "s"), ("assistant", "a")),
            "message 2 has the role 'system'",
            id="late system",
        ),
        pytest.param('{"prompt": "\\ud800", "completion": "a"}', "half a surrogate pair", id="half a surrogate"),
        pytest.param('{"prompt": "\\u0000", "completion": "a"}', "NUL character", id="escaped NUL"),
    ],
)
def test_a_bad_record_is_refused_with_its_line(tmp_path, record, want):
    file = jsonl(tmp_path, pair(), record)
    message = refusal(file, tmp_path)
    assert want in message
    assert message.startswith(f"{file}, line 2")
    assert "\n" not in message


def test_all_bad_lines_are_counted_and_twenty_listed(tmp_path):
    with pytest.raises(BadInput) as caught:
        run(jsonl(tmp_path, *[{"prompt": "x"}] * 30, pair()), tmp_path)
    assert "30 of 31 records cannot be used (the first 20 follow)" in str(caught.value)
    assert [one.split(":")[0] for one in caught.value.problems] == [f"line {n}" for n in range(1, 21)]


@pytest.mark.parametrize(
    ("content", "want"),
    [
        pytest.param(b"", "is empty: write one JSON object a line", id="empty"),
        pytest.param(b"\n\n  \n", "has no examples: write one JSON object", id="only blank lines"),
        pytest.param(b"PK\x03\x04abc", "is a compressed or binary file: unpack it", id="zip"),
        pytest.param(b"\x1f\x8babc", "is a compressed or binary file: unpack it", id="gzip"),
        pytest.param(b'{"a": "\0"}', "line 1 holds a NUL byte", id="NUL"),
        pytest.param(b'{"a": "\xff"}', "line 1 is not UTF-8 at byte 7: convert it", id="not UTF-8"),
        pytest.param(b"x" * (1 << 20) + b"y", "line 1 is longer than 1048576 bytes", id="over-long line"),
    ],
)
def test_a_file_that_is_no_jsonl_is_refused_in_one_sentence(tmp_path, content, want):
    file = tmp_path / "data.jsonl"
    file.write_bytes(content)
    message = refusal(file, tmp_path)
    assert want in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("source", "want"),
    [
        pytest.param("nowhere.jsonl", "there is no file nowhere.jsonl: write the path or URL of", id="missing file"),
        pytest.param("python_docstrings", "did you mean python-docstrings?", id="misspelt built-in"),
        pytest.param(".", ". is a folder: name the JSONL file in it", id="folder"),
        pytest.param("file:///nowhere/x.jsonl", "there is no file file:///nowhere/x.jsonl", id="missing URL"),
        pytest.param("nfs5://a/b", "nfs5://a/b cannot be read: Protocol not known: nfs5", id="unknown scheme"),
        pytest.param("hf://org/name", "write hf://datasets/org/name", id="a model's address"),
    ],
)
def test_a_source_that_is_not_there_is_refused_in_one_sentence(tmp_path, source, want):
    message = refusal(source, tmp_path)
    assert want in message
    assert "\n" not in message


def test_secrets_in_a_url_are_not_repeated(tmp_path):
    message = refusal("nfs5://me:hunter2@host/d.jsonl?X-Signature=hunter2", tmp_path)
    assert "nfs5://host/d.jsonl?..." in message
    assert "hunter2" not in message


@pytest.fixture
def web():
    """An HTTP server; ``/whole`` answers two examples, ``/cut`` claims more than it sends."""
    body = "".join(json.dumps(pair(str(n))) + "\n" for n in range(2)).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path.startswith("/none"):
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(body) + (1000 if self.path == "/cut" else 0)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_web_address_is_read_and_its_query_is_not_recorded(tmp_path, web):
    report, train, heldout = run(f"{web}/whole?token=hunter2", tmp_path)
    assert len(train + heldout) == 2
    assert report["source"] == f"{web}/whole?..."


def test_a_download_that_breaks_off_is_refused_and_not_taken_for_the_whole(tmp_path, web):
    assert "/cut broke off after" in refusal(f"{web}/cut", tmp_path)


def test_a_web_address_that_does_not_exist_is_refused(tmp_path, web):
    message = refusal(f"{web}/none?token=hunter2", tmp_path)
    assert "/none?... cannot be read: HTTP Error 404" in message
    assert "hunter2" not in message


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 3])
def test_a_heldout_fraction_outside_its_range_is_refused(tmp_path, fraction):
    assert "write a share between 0 and 1" in refusal(jsonl(tmp_path, pair()), tmp_path, heldout_fraction=fraction)


def test_the_same_file_for_both_parts_is_refused(tmp_path):
    with pytest.raises(BadInput, match="same file"):
        prepare(str(jsonl(tmp_path, pair())), tmp_path / "a", tmp_path / "b" / ".." / "a")


def test_duplicates_by_white_space_and_unicode_form_are_dropped_and_the_first_kept(tmp_path):
    report, train, heldout = run(jsonl(tmp_path, pair("é  x"), pair("e\u0301 x\n"), pair("y")), tmp_path)
    assert (report["examples"], report["duplicates"]) == (2, 1)
    assert "é  x" in "".join(train + heldout)


def test_max_examples_keeps_the_first_distinct_ones_and_still_checks_the_rest(tmp_path):
    records = [pair("a"), pair("a"), pair("b"), pair("c")]
    report, train, heldout = run(jsonl(tmp_path, *records), tmp_path, max_examples=2)
    assert report["examples"] == 2
    assert {json.loads(one)["messages"][0]["content"] for one in train + heldout} == {"a", "b"}
    assert "line 5" in refusal(jsonl(tmp_path, *records, {}), tmp_path, max_examples=2)


def test_a_system_prompt_goes_before_examples_that_have_none(tmp_path):
    with_own = chat(("system", "own"), ("user", "q"), ("assistant", "a"))
    _, train, heldout = run(jsonl(tmp_path, pair(), with_own), tmp_path, system_prompt="ours")
    first = sorted(json.loads(one)["messages"][0]["content"] for one in train + heldout)
    assert first == ["ours", "own"]


def test_a_failed_write_leaves_neither_file(tmp_path):
    (tmp_path / "taken").write_text("a file, not a folder")
    with pytest.raises(BadInput, match="cannot write"):
        prepare(str(jsonl(tmp_path, pair(), pair("q"))), tmp_path / "train.jsonl", tmp_path / "taken" / "heldout.jsonl")
    assert sorted(os.listdir(tmp_path)) == ["data.jsonl", "taken"]


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).filter(lambda text: text.strip())
RECORDS = st.lists(st.builds(pair, TEXTS, TEXTS), min_size=1, max_size=30)
HYPOTHESIS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@HYPOTHESIS
@given(records=RECORDS, fraction=st.floats(0.01, 0.99), seed=st.integers(0, 5))
def test_the_split_is_complete_and_disjoint_and_no_part_is_empty(tmp_path, records, fraction, seed):
    report, train, heldout = run(jsonl(tmp_path, *records), tmp_path, heldout_fraction=fraction, seed=seed)
    normal = {instructions._content_hash(json.loads(line)["messages"]) for line in train + heldout}
    assert len(normal) == len(train) + len(heldout) == report["examples"]
    assert report["examples"] + report["duplicates"] == len(records)
    assert train
    assert heldout or report["examples"] == 1
    assert sum(report["chars_histogram"]["counts"]) == report["examples"]


@HYPOTHESIS
@given(records=RECORDS, shuffled=st.randoms(use_true_random=False))
def test_the_same_examples_in_another_order_give_the_same_bytes(tmp_path, records, shuffled):
    # Spellings that differ only in white space keep the first: take that accident out, it depends on the order.
    records = [pair(" ".join(one["prompt"].split()), " ".join(one["completion"].split())) for one in records]
    records = list(
        {json.dumps(instructions._content_hash(instructions._messages(one)).hex()): one for one in records}.values()
    )
    before = run(jsonl(tmp_path, *records), tmp_path)
    shuffled.shuffle(records)
    assert run(jsonl(tmp_path, *records), tmp_path) == before


def test_another_seed_is_another_split_of_the_same_examples(tmp_path):
    file = jsonl(tmp_path, *[pair(str(n)) for n in range(50)])
    _, train, heldout = run(file, tmp_path)
    _, other_train, other_heldout = run(file, tmp_path, seed=18)
    assert heldout != other_heldout
    assert sorted(train + heldout) == sorted(other_train + other_heldout)


def test_the_split_does_not_change_from_version_to_version(tmp_path):
    _, _, heldout = run(jsonl(tmp_path, *[pair(str(n)) for n in range(20)]), tmp_path)
    assert [json.loads(one)["messages"][0]["content"] for one in heldout] == GOLDEN_HELDOUT


GOLDEN_HELDOUT = ["11", "10"]  # a change here is a change of every user's split


def test_docstrings_give_over_a_thousand_pairs_twice_the_same(tmp_path):
    report, train, heldout = run(BUILT_IN, tmp_path)
    assert run(BUILT_IN, tmp_path)[1:] == (train, heldout)
    assert 1000 <= report["examples"] <= 2000
    assert report["heldout"] == round(report["examples"] / 10)
    answers = [json.loads(one)["messages"][1]["content"] for one in train + heldout]
    assert len(set(answers)) == len(answers)
    assert all(20 <= len(answer) <= 400 for answer in answers)


def test_docstrings_are_parsed_and_never_imported(tmp_path, monkeypatch):
    """A library folder with a module that would do harm when imported gives its docstrings and does none."""
    harm = tmp_path / "harm"
    (tmp_path / "abc.py").write_text(
        f'open({str(harm)!r}, "w")\ndef f(self, x, *, y):\n    "Return the sum of x and y, for ever."\n'
        'class _Private:\n    def g(self):\n        "Nobody may ask about this one at all."\n'
    )
    monkeypatch.setattr(instructions.sysconfig, "get_path", lambda name: str(tmp_path))
    _, train, heldout = run(BUILT_IN, tmp_path)
    said = [one["content"] for one in json.loads((train + heldout)[0])["messages"]]
    assert said == ["What does Python's `abc.f(x, y)` do?", "Return the sum of x and y, for ever."]
    assert len(train + heldout) == 1
    assert not harm.exists()


def test_a_python_without_sources_is_told_to_bring_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(instructions.sysconfig, "get_path", lambda name: str(tmp_path))
    assert "give a JSONL file instead of python-docstrings" in refusal(BUILT_IN, tmp_path)


def test_without_a_tokenizer_token_counts_are_unknown_and_say_why(tmp_path):
    report, *_ = run(jsonl(tmp_path, pair()), tmp_path)
    assert report["tokens"] == "unknown: no tokenizer was given"
    assert "token_histogram" not in report


def word_tokenizer(folder: Path, template: str | None) -> Path:
    """A real tokenizer that makes one token of each word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    plain = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="[UNK]")
    fast.chat_template = template
    fast.save_pretrained(folder)
    return folder


@pytest.mark.trainer
def test_tokens_are_counted_with_the_chat_template(tmp_path):
    pytest.importorskip("transformers", reason="the extra 'trainer' is not installed")
    template = "{% for m in messages %}{{ m['role'] + ' ' + m['content'] + ' ' }}{% endfor %}"
    tokenizer = word_tokenizer(tmp_path / "tokenizer", template)
    file = jsonl(tmp_path, pair("a b c", "d"), pair("a", "b"))  # 6 and 4 with the two roles
    report, *_ = run(file, tmp_path, tokenizer=tokenizer, heldout_fraction=0.5)
    assert report["tokens"]["train"] + report["tokens"]["heldout"] == 10
    assert (report["tokens"]["mean"], report["tokens"]["max"]) == (5.0, 6)
    assert sum(report["token_histogram"]["counts"]) == 2


@pytest.mark.trainer
def test_a_tokenizer_without_a_chat_template_leaves_tokens_unknown(tmp_path):
    pytest.importorskip("transformers", reason="the extra 'trainer' is not installed")
    tokenizer = word_tokenizer(tmp_path / "tokenizer", None)
    report, *_ = run(jsonl(tmp_path, pair()), tmp_path, tokenizer=tokenizer)
    assert report["tokens"] == "unknown: the tokenizer has no chat template"


def test_a_missing_tokenizer_folder_is_refused(tmp_path):
    assert "there is no tokenizer folder" in refusal(jsonl(tmp_path, pair()), tmp_path, tokenizer=tmp_path / "none")


def test_only_modules_that_a_python_has_are_named_twice_nowhere():
    assert len(set(instructions._MODULES)) == len(instructions._MODULES)
    assert ast.parse("import " + ", ".join(name.replace("/", ".") for name in instructions._MODULES))
