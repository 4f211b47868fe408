import json
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest

from tunesmith.lineage.record import Attempt, Failure, Item
from tunesmith.lineage.store import Store
from tunesmith.report import render

NOW = datetime(2026, 12, 1, 10, tzinfo=UTC)
HOSTILE = "</title></style><script>alert(1)</script><img src=x onerror=alert(1)> {{ 7*7 }} | `x` [a](javascript:b) \x00"
COST = {"amount": "1", "currency": "USD", "tier": "derived", "unknown": [], "lines": [], "card_digest": ""}
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Collects tags, checks that they close in order, and gathers the text."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], set(), [], []
        self.feed(html)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def page_of(root, **more):
    rendered = render(root, pipeline="llm-finetune", now=NOW, **more)
    page = Page(rendered.html)
    return rendered, page, " ".join(" ".join(page.text).split())


def test_a_good_run_shows_loss_cost_answers_gate_and_restart(build_run):
    rendered, page, text = page_of(build_run())
    assert "3.07 \u2192 2.07" in text
    assert "\u221233 %" in text
    assert "$0.0054" in text
    assert "1 restart" in text
    assert "restarted from checkpoint (step 20)" in text
    assert "Return the square root of x, and raise ValueError for a negative x." in text
    assert "\u2264 2.5" in text
    assert "licence: Apache-2.0" in text
    assert "OpenCost" in text
    assert "2026-11-30" in text
    assert "1.31 s" in text
    assert rendered.summary["status"] == "SUCCEEDED"


def test_the_page_needs_nothing_from_outside_and_runs_nothing(build_run):
    rendered, page, _ = page_of(build_run())
    assert "script" not in page.tags
    assert not {name for name, _ in page.attributes} & {"src", "href", "srcset", "action", "onclick", "onload"}
    assert any(name == "content" and "default-src 'none'" in value for name, value in page.attributes)
    assert "url(" not in rendered.html
    assert len(rendered.html.encode()) < 100_000


def test_charts_have_axes_units_and_a_text_for_those_who_cannot_see_them(build_run):
    _, page, text = page_of(build_run())
    labels = [value for name, value in page.attributes if name == "aria-label"]
    assert any("train loss, held-out loss in nats/token over step 0 to 60" in label for label in labels)
    assert any("Samples by length: 978 from 0 to 256 tokens" in label for label in labels)
    assert "nats/token" in text
    assert {"thead", "caption", "th"} & page.tags


def test_a_histogram_whose_last_interval_has_no_end_is_drawn(run_builder, tmp_path):
    run = run_builder(tmp_path / "run")
    for task, counts in (("a", [5, 7, 2, 0]), ("b", [5, 7, 2, 1])):
        histogram = {"edges": [0, 32, 64, 128], "counts": counts, "unit": "tokens"}
        run.side_file(task, "length_histogram.json", histogram)
        run.record(task, "data/prepare_instructions", 1.0)
    _, page, text = page_of(run.root)
    labels = [value for name, value in page.attributes if name == "aria-label"]
    assert "Samples by length: 14 from 0 to 128 tokens" in labels
    assert "Samples by length: 15 from 0 tokens" in labels
    assert "1 128 or more tokens" in text


def test_a_failed_run_says_who_is_at_fault_and_why(build_run):
    rendered, _, text = page_of(build_run(failed=True))
    assert "fine-tune failed: OOMKilled" in text
    assert "the user: code, data or settings" in text
    assert "137" in text
    assert "Signal 9 (SIGKILL) received by PID 4711" in text
    assert "2 of 3" in text
    assert rendered.summary["status"] == "FAILED"
    assert rendered.summary["model_uri"] is None
    assert "## fine-tune failed: OOMKilled" in rendered.markdown


def test_a_price_that_is_unknown_is_never_shown_as_a_number(build_run):
    rendered, _, text = page_of(build_run(gpu="NVIDIA-H100"))
    assert "unknown (no rate for NVIDIA-H100; known part $0.0054)" in text
    assert "2\u00a0NVIDIA-H100" in rendered.html
    assert rendered.summary["cost"]["amount"] is None
    assert rendered.summary["cost"]["known_amount"] > 0


def test_all_attempts_are_in_the_cost(build_run):
    _, _, text = page_of(build_run())
    assert "attempt 1 (FAILED) 1 min 10 s 2 cores, 4 GiB" in text
    assert "attempt 2 1 min 52 s" in text


def test_old_rates_deserve_a_warning(build_run):
    rendered = render(build_run(), pipeline="p", now=datetime(2027, 3, 1, tzinfo=UTC))
    assert "The rates are 91 days old" in rendered.html


def test_a_run_without_records_says_so(tmp_path):
    for root in (tmp_path, tmp_path / "missing"):
        rendered, _, text = page_of(root)
        assert "No step left a record" in text
        assert "No step left a record" in rendered.markdown
        assert rendered.summary["status"] == "UNKNOWN"
        assert rendered.summary["steps"] == []


def test_the_callers_word_on_the_end_of_the_run_counts(build_run):
    assert render(build_run(), pipeline="p", state="CANCELLED").summary["status"] == "CANCELLED"
    assert render(build_run(name="b"), pipeline="p", state="COMPLETE").summary["status"] == "SUCCEEDED"


def hostile_run(run_builder, root, text):
    """A run in which every text that a model, a user or a file can choose is hostile."""
    run = run_builder(root)
    run.data()
    run.model()
    task = "train"
    curve = {"x": text, "series": [{"name": text, "unit": text, "points": [[0, 1, 2], [1, 2, 3]]}],
             "marks": [{"step": 1, "label": text}]}  # fmt: skip
    run.side_file(task, "curve.json", curve)
    run.side_file(task, "samples.json", [dict.fromkeys(("prompt", "reference", "base", "tuned"), text)])
    run.side_file(task, "smoke.json", [{"question": text, "answer": text, "seconds": 1, "ok": text}])
    run.side_file(task, "gate.json", [{"metric": text, "value": text, "threshold": text, "comparison": text}])
    run.side_file(task, "length_histogram.json", {"edges": [0, 1, 2], "counts": [1, 2], "unit": text})
    output = Item(text[:60], f"/nowhere/{text}", text, text, 5)
    attempt = run_attempt(text)
    run.record(task, text, 3.0, inputs=["import-model/model"], outputs=[output], attempts=[attempt],
               footprint=run.footprint(), state="FAILED", parameters={text: text, "nested": {"a": [text]}},
               metrics={text: 1.0}, code={text[:50]: text}, details={"license": text, "serving_url": text},
               failure=failure_of(text))  # fmt: skip
    return run.root


def run_attempt(text):
    return Attempt(text, text, text, "FAILED", text, text, 1, text, "2026-12-01T09:30:20Z", "2026-12-01T09:30:22Z", 2.0)


def failure_of(text):
    return Failure(text, text, text, (text, text))


def test_hostile_text_is_text_in_every_place(run_builder, tmp_path):
    root = hostile_run(run_builder, tmp_path / "run", HOSTILE)
    rendered = render(root, pipeline=HOSTILE, state=HOSTILE, now=NOW)
    page = Page(rendered.html)
    assert not page.tags & {"script", "img", "iframe", "a", "object", "form"}
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert rendered.html.count("<script") == 0
    assert rendered.html.count("<style>") == 1
    assert rendered.html.count("{{ 7*7 }}") > 10
    assert "\x00" not in rendered.html


def test_hostile_text_is_text_in_markdown(run_builder, tmp_path):
    root = hostile_run(run_builder, tmp_path / "run", HOSTILE + " www.evil.test http://evil.test a@evil.test")
    text = render(root, pipeline=HOSTILE, now=NOW).markdown
    assert "<script" not in text
    assert "<img" not in text
    assert "[a](" not in text
    assert "http://" not in text
    assert "www." not in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in tables} <= {3, 4, 5, 6}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        "3",
        "null",
        pytest.param("[" * 100_000, id="deep"),
        '{"series": 3}',
        '{"series": [{"name": 1, "points": [[]]}]}',
        '{"series": [{"name": "a", "points": [["x", "y"], [1, NaN], [Infinity, 1]]}]}',
        '{"series": [{"name": "a", "points": [[1e308, -1e308], [-1e308, 1e308]]}], "marks": [{"step": 1e400}]}',
        '{"series": [{"name": "a", "points": [[1, 1]]}], "marks": [3]}',
        pytest.param(f'{{"series": [{{"name": "a", "points": [[{"9" * 400}, 2], [3, 5e-324]]}}]}}', id="huge"),
        '{"edges": [0, 1], "counts": [1, 2, 3]}',
        '{"edges": [0, 0, 0], "counts": [1, 1]}',
        '{"edges": [-1e308, 1e308], "counts": [1e308]}',
        '{"edges": [0, 1], "counts": [NaN]}',
        '[{"prompt": {"a": 1}, "base": null}, 3]',
        '[{"prompt": "\\ud800", "question": "\\ud800", "metric": "\\ud800"}]',
        '[{"value": Infinity, "threshold": 1e-300, "seconds": -1e300, "ok": "yes"}]',
    ],
)
def test_odd_files_beside_a_record_never_break_the_report(build_run, content):
    root = build_run()
    for task, name in (("fine-tune", "curve.json"), ("evaluate-llm", "samples.json"), ("smoke-test", "smoke.json"),
                       ("quality-gate", "gate.json"), ("prepare-instructions", "length_histogram.json")):  # fmt: skip
        (root / "tunesmith" / task / name).write_text(content)
    rendered, _, text = page_of(root)
    rendered.html.encode()
    json.dumps(rendered.summary, allow_nan=False)
    assert "is not the file that the step recorded" in text
    assert "nan" not in [value for _, value in Page(rendered.html).attributes]


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": "long"},
        {"seconds": -5},
        {"metrics": [1]},
        {"metrics": {"eval_loss": "nan", "eval_loss_base": True, "tokens_per_second": 1e300, "restarts": -1e300}},
        {"metrics": {"eval_loss": 0, "eval_loss_base": 0}},
        {"metrics": {"eval_loss": -1e308, "eval_loss_base": 1e308}},
        {"parameters": "x"},
        {"details": {"files": [], "license": {"a": 1}, "serving_url": 3}},
        {"started": "yesterday", "ended": 3},
        {"started": "2026-12-01T09:30:00"},
        {"started": "9999-12-31T00:00:00Z", "ended": "0001-01-01T00:00:00Z"},
        {
            "cost": {
                "amount": "1e999999999",
                "currency": "USD",
                "tier": "",
                "unknown": [],
                "lines": [],
                "card_digest": "",
            }
        },
        {"cost": {"amount": "1", "currency": "EUR", "tier": "x", "unknown": [], "lines": [], "card_digest": ""}},
        {"cost": {"amount": "9" * 40, "currency": "USD", "tier": "x", "unknown": [], "lines": [], "card_digest": ""}},
        {"state": 3, "task": ["x"], "attempt": {}},
        {"attempts": [{"name": 1, "kind": 2, "uid": 3, "state": 4, "seconds": "x", "exit_code": "y", "cost": 3}]},
        {"failure": {"fault": 1, "reason": 2, "message": 3, "log_tail": [1, 2]}, "state": "FAILED"},
        {"failure": {"fault": 1}},
        {"inputs": [{"name": 3, "uri": 4, "digest": None, "bytes": "x"}], "outputs": [{"name": "a", "uri": ""}]},
        {"prev": [1, 2]},
        {"run": 3, "code": 4},
    ],
)
def test_odd_records_never_break_the_report(build_run, change):
    root = build_run()
    for path in (root / "tunesmith").glob("*/*.1.json"):
        data = json.loads(path.read_text()) | change
        path.write_text(json.dumps(data, separators=(",", ":"), sort_keys=True))
    rendered, _, _ = page_of(root)
    json.dumps(rendered.summary, allow_nan=False)


def test_a_record_that_cannot_be_read_is_named(build_run):
    root = build_run()
    path = next((root / "tunesmith" / "smoke-test").glob("*.1.json"))
    path.write_text("{")
    _, _, text = page_of(root)
    assert f"smoke-test/{path.name} could not be read" in text


def test_points_that_are_not_finite_are_counted_and_spikes_survive_thinning(run_builder, tmp_path):
    run = run_builder(tmp_path / "run")
    points = [[step, 2.0, step] for step in range(20_000)]
    points[777] = [777, 98765.0, 1]
    points[5] = [5, float("nan"), 1]
    run.side_file("t", "curve.json", {"x": "step", "series": [{"name": "loss", "unit": "nats", "points": points}]})
    run.record("t", "training/fine_tune", 1.0)
    rendered, _, text = page_of(run.root)
    assert "1 points were not finite numbers and are not drawn." in text
    assert "80,000" in text, "the axis reaches the spike"
    assert len(rendered.html) < 100_000


def test_a_curve_that_repeats_steps_after_a_restart_is_drawn_in_pieces(run_builder, tmp_path):
    run = run_builder(tmp_path / "run")
    steps = [1, 2, 3, 4, 2, 3, 4, 5]
    curve = {"series": [{"name": "loss", "unit": "", "points": [[s, 9 - s, s] for s in steps]}]}
    run.side_file("t", "curve.json", curve)
    run.record("t", "training/fine_tune", 1.0)
    rendered, _, _ = page_of(run.root)
    assert rendered.html.count('class="line s0"></path>') == 2


def test_the_page_stays_below_a_megabyte_whatever_the_run_holds(run_builder, tmp_path):
    run = run_builder(tmp_path / "run")
    samples = [dict.fromkeys(("prompt", "reference", "base", "tuned"), "<" * 20_000)] * 60
    for index in range(150):
        task = f"step-{index}"
        if index < 8:
            run.side_file(task, "samples.json", samples)
        run.record(task, "c", 1.0, parameters={f"p{i}": "<" * 250 for i in range(40)})
    rendered, _, text = page_of(run.root)
    assert len(rendered.html.encode()) < 1_000_000
    assert len(rendered.markdown) < 400_000
    assert "more are not shown here" in text


def test_more_records_than_can_be_shown_are_counted(run_builder, tmp_path):
    run = run_builder(tmp_path / "run")
    for index in range(205):
        run.record(f"step-{index}", "c", 1.0)
    _, _, text = page_of(run.root)
    assert "Only the first 200 of 205 records are shown." in text


def test_records_that_claim_a_circle_still_give_a_graph(run_builder, tmp_path):
    run = run_builder(tmp_path / "run")
    a, b = run.artifact("a", "x", "", "1"), run.artifact("b", "y", "", "2")
    run.digests = {"a": "sha256:1", "b": "sha256:2"}
    run.record("a", "c", 1.0, inputs=["b/y"], outputs=[a])
    run.digests["b"] = "sha256:2"
    run.record("b", "c", 1.0, inputs=["a/x"], outputs=[b])
    _, _, text = page_of(run.root)
    assert "Lineage" in text


def test_steps_repeated_by_the_platform_are_one_step_with_all_their_cost(run_builder, tmp_path):
    run = run_builder(tmp_path / "run")
    run.record("t", "c", 10.0, state="FAILED")
    run.record("t", "c", 20.0, number=2)
    summary = render(run.root, pipeline="p").summary
    assert [step["name"] for step in summary["steps"]] == ["t"]
    assert summary["steps"][0]["seconds"] == 30
    assert summary["steps"][0]["restarts"] == 1
    assert summary["steps"][0]["state"] == summary["status"] == "SUCCEEDED"


def test_an_object_store_serves_as_well_as_a_folder(run_builder, tmp_path, build_run):
    local, remote = Store(build_run()), Store("memory://bucket/report-run")
    for path in local.paths():
        remote.write(path, local.read(path))
    assert render("memory://bucket/report-run", pipeline="p").summary["status"] == "SUCCEEDED"
