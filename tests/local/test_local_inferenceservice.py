"""InferenceServices on LocalCluster: ready when they answer, one address over all revisions, gone when deleted."""

import http.client
import json
import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from tunesmith.clusters.base import NotFound, Refused
from tunesmith.local import inventory
from tunesmith.resources import DEPLOYMENT, EVENT, INFERENCESERVICE, POD

pytestmark = pytest.mark.local
NAMESPACE = "default"

# Answers every GET with its mark; ends at once with a message if the mark is "broken".
SERVER = """
import http.server, os, pathlib, sys
mark = os.environ["MARK"]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(mark)))
        self.end_headers()
        self.wfile.write(mark.encode())
if mark == "broken":
    pathlib.Path(os.environ["TUNESMITH_TERMINATION_LOG"]).write_text("no weights")
    sys.exit(3)
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""


def service(predictor, *, port=None):
    annotations = {"serving.kserve.io/deploymentMode": "Standard"} | ({"tunesmith.dev/port": str(port)} if port else {})
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "llm", "namespace": NAMESPACE, "annotations": annotations},
        "spec": {"predictor": predictor},
    }


def custom(mark):
    command = ["python", "-c", SERVER]
    env = [{"name": "MARK", "value": mark}]
    return {"minReplicas": 1, "containers": [{"name": "main", "image": "i", "command": command, "env": env}]}


def status(cluster):
    return cluster.get(INFERENCESERVICE, NAMESPACE, "llm").get("status", {})


def conditions(cluster):
    return {c["type"]: (c["status"], c.get("reason", "")) for c in status(cluster).get("conditions", [])}


def is_ready(cluster):
    return conditions(cluster).get("Ready", ("",))[0] == "True"


def request(url, path="/", body=None):
    """Status and text of the answer."""
    host, port = url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        if body is None:
            connection.request("GET", path)
        else:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def answer(url):
    """The answer, or None if the connection breaks."""
    try:
        return request(url)
    except (OSError, http.client.HTTPException):
        return None


def serves(cluster, mark):
    """Whether the Deployment has rolled out the revision with that mark."""
    deployment = cluster.get(DEPLOYMENT, NAMESPACE, "llm-predictor")
    shown = deployment.get("status", {})
    env = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    reasons = {c["type"]: c["reason"] for c in shown.get("conditions", [])}
    return (
        {"name": "MARK", "value": mark} in env
        and shown["observedGeneration"] == deployment["metadata"]["generation"]
        and shown["updatedReplicas"] == shown["replicas"] == shown["availableReplicas"] == 1
        and reasons["Progressing"] == "NewReplicaSetAvailable"
    )


def update(cluster, mark):
    return cluster.patch(INFERENCESERVICE, NAMESPACE, "llm", {"spec": {"predictor": custom(mark)}})


@pytest.fixture
def up(cluster, until):
    """Create a service, wait until it is ready, and return its address."""

    def create(manifest):
        cluster.create(manifest)
        until(lambda: is_ready(cluster))
        return status(cluster)["address"]["url"]

    return create


def test_a_service_is_ready_when_it_answers_and_shows_where(cluster, up):
    url = up(service(custom("one")))
    assert request(url) == (200, "one")
    assert {type_: truth for type_, (truth, _) in conditions(cluster).items()} == {
        "IngressReady": "True",
        "PredictorReady": "True",
        "Ready": "True",
    }
    assert status(cluster)["url"] == url
    assert status(cluster)["modelStatus"]["transitionStatus"] == "UpToDate"
    assert serves(cluster, "one")
    (pod,) = cluster.list(POD, NAMESPACE, {"serving.kserve.io/inferenceservice": "llm"})
    template = cluster.get(DEPLOYMENT, NAMESPACE, "llm-predictor")["spec"]["template"]
    assert pod["metadata"]["labels"] == template["metadata"]["labels"]
    assert pod["metadata"]["labels"]["app"] == "isvc.llm-predictor"
    assert pod["metadata"]["labels"]["pod-template-hash"]
    reasons = [e["reason"] for e in cluster.list(EVENT, NAMESPACE) if e["involvedObject"]["name"] == "llm"]
    assert reasons == ["InferenceServiceReady"]
    assert [(row.state, row.url) for row in inventory.objects(cluster.folder)] == [("Ready", url)]


def test_a_new_revision_takes_over_without_a_gap_at_the_same_address(cluster, up, until):
    url, answers, stop = up(service(custom("one"))), [], threading.Event()

    def ask():
        while not stop.is_set():
            answers.append(request(url))

    asker = threading.Thread(target=ask)
    asker.start()
    update(cluster, "two")
    until(lambda: answers and answers[-1] == (200, "two"))
    until(lambda: serves(cluster, "two") and len(cluster.list(POD, NAMESPACE)) == 1)
    stop.set()
    asker.join()
    assert set(answers) == {(200, "one"), (200, "two")}
    assert answers == sorted(answers)
    assert status(cluster)["url"] == url


def test_the_old_revision_serves_on_when_the_new_one_cannot_start(cluster, up, until):
    url = up(service(custom("one")))
    update(cluster, "broken")
    until(lambda: status(cluster)["modelStatus"]["transitionStatus"] == "BlockedByFailedLoad")
    failure = {"exitCode": 3, "message": "no weights", "reason": "ModelLoadFailed"}
    assert status(cluster)["modelStatus"]["lastFailureInfo"] == failure
    assert conditions(cluster)["Ready"] == ("Unknown", "ReplicaSetUpdated")
    revision = cluster.get(DEPLOYMENT, NAMESPACE, "llm-predictor")["spec"]["template"]["metadata"]["labels"]
    (broken,) = cluster.list(POD, NAMESPACE, {"pod-template-hash": revision["pod-template-hash"]})
    (container,) = broken["status"]["containerStatuses"]
    assert container["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert container["lastState"]["terminated"]["message"] == "no weights"
    assert request(url) == (200, "one")
    assert not serves(cluster, "broken")
    update(cluster, "three")
    until(lambda: serves(cluster, "three"))
    assert request(url) == (200, "three")


def test_a_first_revision_that_cannot_start_is_never_ready(cluster, until):
    cluster.create(service(custom("broken")))
    until(lambda: status(cluster).get("modelStatus", {}).get("transitionStatus") == "BlockedByFailedLoad")
    assert conditions(cluster)["Ready"] == ("False", "MinimumReplicasUnavailable")
    assert "url" not in status(cluster)


def test_a_port_that_is_taken_is_named_and_used_once_it_is_free(cluster, until):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        cluster.create(service(custom("one"), port=port))
        until(lambda: conditions(cluster).get("IngressReady") == ("False", "PortInUse"))
        (pod,) = cluster.list(POD, NAMESPACE)
        terminated = pod["status"]["containerStatuses"][0]["state"]["terminated"]
        assert pod["status"]["phase"] == "Failed"
        assert f"port {port} of 127.0.0.1" in terminated["message"]
        assert "tunesmith.dev/port" in terminated["message"]
        assert conditions(cluster)["Ready"][0] == "False"
    until(lambda: is_ready(cluster))
    assert status(cluster)["url"] == f"http://127.0.0.1:{port}"


def test_a_service_answers_again_after_its_controller_was_killed(cluster, up, until, running):
    url = up(service(custom("one")))
    (pod,) = cluster.list(POD, NAMESPACE)
    (controller,) = [pid for pid, command in running(cluster.folder).items() if "local control" in command]
    os.kill(controller, signal.SIGKILL)
    assert until(lambda: answer(url)) == (200, "one")
    assert [p["metadata"]["uid"] for p in cluster.list(POD, NAMESPACE)] == [pod["metadata"]["uid"]]


def test_a_server_that_dies_is_started_again(cluster, up, until, running):
    url = up(service(custom("one")))
    (server,) = [pid for pid, command in running(cluster.folder).items() if command.startswith("python -c")]
    os.kill(server, signal.SIGKILL)
    until(lambda: answer(url) == (503, "no model server is ready.\n"))
    until(lambda: answer(url) == (200, "one"))
    (pod,) = cluster.list(POD, NAMESPACE)
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 1


def test_a_deleted_service_leaves_nothing(cluster, up, until, running):
    url = up(service(custom("one")))
    cluster.delete(INFERENCESERVICE, NAMESPACE, "llm")
    until(lambda: running(cluster.folder) == {})
    assert cluster.list(POD, NAMESPACE) == []
    assert cluster.list(DEPLOYMENT, NAMESPACE) == []
    with pytest.raises(NotFound):
        cluster.get(INFERENCESERVICE, NAMESPACE, "llm")
    with pytest.raises(ConnectionRefusedError):
        request(url)


def test_a_deleted_service_ends_though_its_supervisor_is_stopped(cluster, up, until, running):
    up(service(custom("one") | {"terminationGracePeriodSeconds": 0}))
    (supervisor,) = [pid for pid, command in running(cluster.folder).items() if "shim.py" in command]
    os.kill(supervisor, signal.SIGSTOP)
    cluster.delete(INFERENCESERVICE, NAMESPACE, "llm")
    until(lambda: cluster.list(POD, NAMESPACE) == [])
    assert not any("shim.py" in c or c.startswith("python -c") for c in running(cluster.folder).values())


def test_a_format_without_a_server_says_so_and_sets_no_condition(cluster, until):
    cluster.create(service({"model": {"modelFormat": {"name": "sklearn"}, "storageUri": "file:///m"}}))
    until(lambda: "modelStatus" in status(cluster))
    assert status(cluster)["modelStatus"]["lastFailureInfo"]["reason"] == "NoSupportingRuntime"
    assert conditions(cluster) == {}


@pytest.mark.parametrize(
    ("predictor", "message"),
    [
        ({}, "exactly one of model and containers"),
        ({"model": {"modelFormat": {"name": "huggingface"}, "storageUri": "hf://org/model"}}, "write file:///folder"),
        ({"model": {"storageUri": "file:///m"}}, "modelFormat.name"),
    ],
    ids=["nothing to serve", "a model elsewhere", "no format"],
)
def test_a_service_that_can_never_run_is_refused(cluster, predictor, message):
    with pytest.raises(Refused, match=message):
        cluster.create(service(predictor))


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory) -> Path:
    """A random Llama of a few thousand weights, with a tokenizer of words and a chat template."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny")
    words = ["<unk>", "<s>", "</s>", "hello", "world", "user", "assistant", *(f"w{n}" for n in range(25))]
    plain = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}assistant "
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=32, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def client(model_folder):
    from fastapi.testclient import TestClient

    from tunesmith.local.model_server import build_app, load

    with TestClient(build_app(load(model_folder, "tiny"))) as client:
        yield client


CHAT = {"messages": [{"role": "user", "content": "hello world"}], "max_tokens": 5, "temperature": 0}


@pytest.mark.trainer
class TestModelServer:
    @pytest.mark.parametrize("prefix", ["/v1", "/openai/v1"])
    def test_a_chat_is_answered_and_its_tokens_are_counted(self, client, prefix):
        answer = client.post(f"{prefix}/chat/completions", json={"model": "tiny", **CHAT}).json()
        assert answer["object"] == "chat.completion"
        assert answer["model"] == "tiny"
        assert answer["choices"][0]["message"]["role"] == "assistant"
        usage = answer["usage"]
        assert usage["prompt_tokens"] == 4
        assert 1 <= usage["completion_tokens"] <= 5
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]

    def test_a_stream_holds_the_same_answer_and_ends_with_done(self, client):
        whole = client.post("/v1/chat/completions", json=CHAT).json()
        lines = client.post("/v1/chat/completions", json={**CHAT, "stream": True}).text.split("\n\n")
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        assert text == whole["choices"][0]["message"]["content"]
        assert chunks[-1]["usage"] == whole["usage"]
        assert [line for line in lines if line][-1] == "data: [DONE]"

    def test_a_prompt_is_completed(self, client):
        body = {"model": "tiny", "prompt": "hello", "max_tokens": 3}
        answer = client.post("/v1/completions", json=body).json()
        assert answer["object"] == "text_completion"
        assert answer["usage"]["prompt_tokens"] == 1

    def test_only_its_own_model_is_listed_and_answers(self, client):
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["tiny"]
        response = client.post("/v1/chat/completions", json={**CHAT, "model": "org/other"})
        assert response.status_code == 404
        assert "org/other" in response.json()["error"]["message"]

    @pytest.mark.parametrize(
        ("change", "word"),
        [
            ({"messages": None}, "messages"),
            ({"messages": []}, "messages"),
            ({"messages": [{"content": "x"}]}, "role"),
            ({"messages": [{"role": "user"}]}, "content"),
            ({"max_tokens": "many"}, "many"),
            ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "text"),
        ],
    )
    def test_a_wrong_request_is_told_what_is_wrong(self, client, change, word):
        response = client.post("/v1/chat/completions", json={**CHAT, **change})
        assert response.status_code == 400
        assert word in response.json()["error"]["message"]

    def test_it_is_healthy(self, client):
        assert client.get("/health").json() == {"status": "ok"}

    def test_it_is_deployed_by_its_folder_and_answers(self, up, model_folder):
        model = {"modelFormat": {"name": "huggingface"}, "storageUri": f"file://{model_folder}"}
        url = up(service({"model": model, "minReplicas": 0}))
        code, text = request(url, "/v1/chat/completions", {"model": "llm", **CHAT})
        assert code == 200
        assert json.loads(text)["usage"]["prompt_tokens"] == 4

    def test_a_folder_without_a_model_is_named_in_the_failure(self, cluster, until, tmp_path):
        model = {"modelFormat": {"name": "huggingface"}, "storageUri": str(tmp_path)}
        cluster.create(service({"model": model}))
        until(lambda: "lastFailureInfo" in status(cluster).get("modelStatus", {}))
        message = status(cluster)["modelStatus"]["lastFailureInfo"]["message"]
        assert message == f"{tmp_path}: no config.json there: name the folder of a Hugging Face model"

    def test_pickled_weights_are_not_loaded(self, model_folder, tmp_path):
        from tunesmith.local.model_server import CannotServe, load

        (tmp_path / "config.json").write_text((model_folder / "config.json").read_text())
        (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
        with pytest.raises(CannotServe, match="safetensors"):
            load(tmp_path, "pickled")
