import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from kfp import dsl

from tunesmith.components.serving.smoke_test import smoke_test
from tunesmith.tasks.step import StepFailed


@pytest.fixture
def service():
    """A server of the OpenAI API. ``answers`` maps a question to its answer; ``asked`` holds the requests."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.reply(200, {"data": [{"id": "tuned"}]})

        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            server.asked.append(request)
            answer = server.answers.get(request["messages"][0]["content"])
            if answer is None:
                self.reply(500, {"error": "no"})
            else:
                usage = {"completion_tokens": len(answer.split())}
                self.reply(200, {"choices": [{"message": {"content": answer}}], "usage": usage})

        def reply(self, status, content):
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.answers, server.asked = {}, []
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def ask(step_folder):
    """Run the step; returns its metrics artifact and its folder."""

    def run(url, questions, **arguments):
        step = step_folder("smoke")
        metrics = step.artifact(dsl.Metrics, "metrics")
        smoke_test.python_func(url, metrics, step.artifact(dsl.Artifact, "record"), questions, **arguments)
        return metrics, step

    return run


def test_every_question_is_asked_of_the_model_that_the_service_names(ask, service):
    service.answers = {"Who?": "Somebody did.", "Why?": "Because."}
    metrics, step = ask(service.url, ["Who?", "Why?"], max_tokens=7)
    assert [(one["model"], one["max_tokens"]) for one in service.asked] == [("tuned", 7)] * 2
    assert [(one["question"], one["answer"]) for one in step.left("smoke.json")] == list(service.answers.items())
    assert metrics.metadata["answers"] == 2
    assert 0 < metrics.metadata["latency_p50_seconds"] <= metrics.metadata["latency_max_seconds"]


def test_name_of_the_model_may_be_given(ask, service):
    service.answers = {"Who?": "Somebody."}
    ask(service.url, ["Who?"], model_name="other")
    assert service.asked[0]["model"] == "other"


@pytest.mark.parametrize("answer", [pytest.param(None, id="an error"), pytest.param("  ", id="only white space")])
def test_question_without_an_answer_fails_the_step_after_all_were_asked(ask, service, step_folder, answer):
    service.answers = {"Who?": answer, "Why?": "Because."}
    with pytest.raises(StepFailed) as raised:
        ask(service.url, ["Who?", "Why?"])
    assert "1 of 2 questions got no answer" in raised.value.record.failure.message
    assert [one["ok"] for one in step_folder("smoke").left("smoke.json")] == [False, True]


def test_service_that_is_not_there_fails_the_step(ask, service):
    service.shutdown()
    service.server_close()
    with pytest.raises(StepFailed) as raised:
        ask(service.url, ["Who?"])
    assert raised.value.record.failure.reason == "SmokeTestFailed"


@pytest.mark.parametrize(
    ("url", "questions", "word"),
    [
        pytest.param("http://127.0.0.1:1", [], "at least one question", id="no questions"),
        pytest.param("http://127.0.0.1:1", ["Who?", " "], "not empty", id="an empty question"),
        pytest.param("file:///etc/hosts", ["Who?"], "not an http address", id="an address that is not http"),
    ],
)
def test_input_that_cannot_be_used_is_the_users_error(ask, url, questions, word):
    with pytest.raises(StepFailed) as raised:
        ask(url, questions)
    assert raised.value.code == 2
    assert word in raised.value.record.failure.message
