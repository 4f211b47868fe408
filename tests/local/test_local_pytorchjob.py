"""PyTorchJobs on LocalCluster behave as the training-operator has them behave, and leave no process behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tunesmith.clusters.local import LocalCluster
from tunesmith.local import inventory, shim
from tunesmith.local.__main__ import _lock
from tunesmith.local.kubelet import _expand
from tunesmith.local.pytorchjob import PyTorchJobController
from tunesmith.resources import EVENT, POD, PYTORCHJOB

pytestmark = pytest.mark.local
NAMESPACE = "default"


def replica(command, count=1, policy="Never", env=(), **container):
    words = ["sh", "-c", command] if isinstance(command, str) else command
    main = {"name": "pytorch", "image": "busybox", "command": words, "env": list(env), **container}
    spec = {"containers": [main], "terminationGracePeriodSeconds": 5}
    return {"replicas": count, "restartPolicy": policy, "template": {"spec": spec}}


def job(master=None, worker=None, *, name="job", policy=None, **spec):
    replicas = {"Master": master, "Worker": worker}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "nprocPerNode": "1",
            "runPolicy": policy or {},
            "pytorchReplicaSpecs": {role: spec for role, spec in replicas.items() if spec},
            **spec,
        },
    }


def conditions(cluster, name="job"):
    """Conditions by type: (status, reason)."""
    status = cluster.get(PYTORCHJOB, NAMESPACE, name).get("status", {})
    return {c["type"]: (c["status"], c["reason"]) for c in status.get("conditions", [])}


def truths(body):
    return [c["type"] for c in body.get("status", {}).get("conditions", []) if c["status"] == "True"]


def counts(body, role):
    shown = body["status"]["replicaStatuses"][role]
    return {key: value for key, value in shown.items() if key != "selector"}


def pod(cluster, name="job-master-0"):
    return cluster.get(POD, NAMESPACE, name)


def pod_names(cluster):
    return sorted(pod["metadata"]["name"] for pod in cluster.list(POD, NAMESPACE))


def phase(cluster, name="job-master-0"):
    found = {pod["metadata"]["name"]: pod for pod in cluster.list(POD, NAMESPACE)}
    return found.get(name, {}).get("status", {}).get("phase")


def container(cluster, name="job-master-0"):
    return pod(cluster, name)["status"]["containerStatuses"][0]


def log(cluster, name="job-master-0"):
    return list(cluster.logs(NAMESPACE, name))


def reasons(cluster, about):
    return [e["reason"] for e in cluster.list(EVENT, NAMESPACE) if e["involvedObject"]["name"] == about]


def pids(running, cluster, words):
    return [pid for pid, command in running(cluster.folder).items() if words in command]


def slept(cmdline):
    """How long the process sleeps, by its command line; empty if it is something else or gone."""
    try:
        program, seconds, *_ = [*cmdline.read_text().split("\0"), "", ""]
    except OSError:
        return ""
    return seconds if program == "sleep" else ""


@pytest.fixture
def ended(cluster, until):
    """Wait until the job has ended and return it."""

    def wait(name="job"):
        until(lambda: {"Succeeded", "Failed"} & set(truths(cluster.get(PYTORCHJOB, NAMESPACE, name))))
        return cluster.get(PYTORCHJOB, NAMESPACE, name)

    return wait


class Supervisor:
    """One that is about to start."""

    def poll(self):
        return None


@pytest.fixture
def own_controller(cluster, monkeypatch):
    """Create a job whose controller is driven by the test, in its process."""
    locks = []

    def create(manifest):
        with monkeypatch.context() as patch:
            patch.setattr(LocalCluster, "_ensure_controller", lambda self, uid: None)
            uid = cluster.create(manifest)["metadata"]["uid"]
        locks.append(_lock(cluster.lock_file(uid)))
        return PyTorchJobController(LocalCluster(cluster.folder, revive=False), uid)

    yield create
    for lock in locks:
        lock.close()


@pytest.fixture
def set_clock_back(monkeypatch):
    """Set the clock of this process back by an hour."""
    real = time.time
    return lambda: monkeypatch.setattr(time, "time", lambda: real() - 3600)


def waiting_or_not(cluster):
    """The state of the master's container; empty before there is one."""
    statuses = [s for p in cluster.list(POD, NAMESPACE) for s in p.get("status", {}).get("containerStatuses", [])]
    return statuses[0]["state"] if statuses else {}


def test_a_job_goes_through_the_operators_conditions_to_success(cluster, tmp_path):
    cluster.create(job(replica(f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"), replica("true", 2)))
    seen = []
    for change in cluster.watch(PYTORCHJOB, NAMESPACE, name="job", timeout_s=40):
        holding = truths(change.object)
        if not seen or seen[-1] != holding:
            seen.append(holding)
        if "Running" in holding and counts(change.object, "Worker") == {"succeeded": 2}:
            assert counts(change.object, "Master") == {"active": 1}
            (tmp_path / "go").touch()
        if "Succeeded" in holding:
            break
    assert seen[-3:] == [["Created"], ["Created", "Running"], ["Created", "Succeeded"]]
    assert conditions(cluster) == {
        "Created": ("True", "PyTorchJobCreated"),
        "Running": ("False", "PyTorchJobRunning"),
        "Succeeded": ("True", "PyTorchJobSucceeded"),
    }
    assert counts(change.object, "Master") == {"succeeded": 1}
    assert change.object["status"]["startTime"] <= change.object["status"]["completionTime"]


def test_pods_carry_the_operators_labels_and_their_owner(cluster, ended):
    created = cluster.create(job(replica("true"), replica("true", 2)))
    ended()
    labels = pod(cluster)["metadata"]["labels"]
    assert labels == {
        "training.kubeflow.org/operator-name": "pytorchjob-controller",
        "training.kubeflow.org/job-name": "job",
        "training.kubeflow.org/replica-type": "master",
        "training.kubeflow.org/replica-index": "0",
        "training.kubeflow.org/job-role": "master",
    }
    worker = pod(cluster, "job-worker-1")["metadata"]
    assert worker["labels"]["training.kubeflow.org/replica-index"] == "1"
    assert "training.kubeflow.org/job-role" not in worker["labels"]
    assert worker["ownerReferences"][0]["uid"] == created["metadata"]["uid"]
    events = reasons(cluster, "job")
    assert events.count("SuccessfulCreatePod") == 3
    assert events.count("ImageNotUsed") == 1
    assert "PyTorchJobSucceeded" in events


def test_replicas_get_the_operators_environment_and_nothing_of_the_callers(cluster, ended, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "must-not-leak")
    monkeypatch.setenv("PYTHONPATH", "/must/not/leak")
    own = [{"name": "GREETING", "value": "hello"}, {"name": "RANK", "value": "the operator's counts"}]
    cluster.create(job(replica("env", env=own), replica("env", env=own), nprocPerNode="2"))
    ended()
    master = dict(line.split("=", 1) for line in log(cluster))
    worker = dict(line.split("=", 1) for line in log(cluster, "job-worker-0"))
    shared = {"WORLD_SIZE": "4", "PET_NNODES": "2", "PET_NPROC_PER_NODE": "2", "MASTER_ADDR": "127.0.0.1"}
    shared |= {"PET_MASTER_ADDR": "127.0.0.1", "PYTHONUNBUFFERED": "1", "GREETING": "hello"}
    assert shared.items() <= master.items()
    assert shared.items() <= worker.items()
    assert (master["RANK"], master["PET_NODE_RANK"], worker["RANK"], worker["PET_NODE_RANK"]) == ("0", "0", "1", "1")
    assert master["MASTER_PORT"] == worker["PET_MASTER_PORT"]
    assert not {"AWS_SECRET_ACCESS_KEY", "PYTHONPATH", "OMP_NUM_THREADS"} & master.keys()


def test_an_elastic_job_gets_its_rendezvous_and_one_success_completes_it(cluster, ended, running, until):
    command = 'env | grep PET_; [ "$HOSTNAME" = job-worker-1 ] || sleep 600'
    elastic = {"minReplicas": 1, "maxReplicas": 3, "maxRestarts": 7, "rdzvConf": [{"key": "a", "value": "b"}]}
    cluster.create(job(worker=replica(command, 2), elasticPolicy=elastic, policy={"cleanPodPolicy": "All"}))
    assert truths(ended()) == ["Created", "Succeeded"]
    until(lambda: pod_names(cluster) == [])
    (path,) = [path for path in (cluster.folder / "logs").iterdir() if "PET_NNODES=1:3" in path.read_text()][:1]
    environment = dict(line.split("=", 1) for line in path.read_text().splitlines())
    assert environment["PET_RDZV_ENDPOINT"].startswith("127.0.0.1:")
    assert environment["PET_RDZV_BACKEND"] == "c10d"
    assert environment["PET_RDZV_CONF"] == "a=b"
    assert environment["PET_MAX_RESTARTS"] == "7"


def test_python_is_the_one_that_runs_tunesmith_and_variables_are_filled_in(cluster, ended, tmp_path):
    (tmp_path / "inside").mkdir()
    fields = [("POD", "metadata.name"), ("NS", "metadata.namespace"), ("ID", "metadata.uid")]
    env = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields]
    env.append({"name": "BOTH", "value": "$(POD)/$(NS)"})
    script = "import os, sys; print(sys.prefix, os.getcwd(), sys.argv[1:], os.environ['BOTH'])"
    words = ["python", "-c", script]
    cluster.create(
        job(replica(words, env=env, args=["$(BOTH)", "$(ELSE)", "$$(POD)"], workingDir=str(tmp_path / "inside")))
    )
    ended()
    given = ["job-master-0/default", "$(ELSE)", "$(POD)"]
    assert log(cluster) == [f"{sys.prefix} {tmp_path}/inside {given} job-master-0/default"]


def test_a_failing_command_fails_the_job_and_tells_code_and_message(cluster, ended):
    cluster.create(job(replica('echo no data > "$TUNESMITH_TERMINATION_LOG"; echo last line; exit 3')))
    assert conditions(cluster) is not None
    assert truths(ended()) == ["Created", "Failed"]
    assert conditions(cluster)["Failed"] == ("True", "PyTorchJobFailed")
    terminated = container(cluster)["state"]["terminated"]
    assert (terminated["exitCode"], terminated["reason"], terminated["message"]) == (3, "Error", "no data\n")
    assert log(cluster) == ["last line"]
    assert phase(cluster) == "Failed"
    assert "ExitedWithCode" in reasons(cluster, "job")


def test_a_failing_worker_fails_the_job_though_the_master_runs(cluster, ended):
    cluster.create(job(replica("sleep 600"), replica("exit 4"), policy={"cleanPodPolicy": "Running"}))
    body = ended()
    message = next(c["message"] for c in body["status"]["conditions"] if c["type"] == "Failed")
    assert message == "PyTorchJob job is failed because 1 Worker replica(s) failed."


def test_the_end_of_the_log_is_the_message_where_that_is_asked_for(cluster, ended):
    asked = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    cluster.create(job(replica("seq 200; echo boom >&2; exit 1", **asked)))
    ended()
    message = container(cluster)["state"]["terminated"]["message"]
    assert message.splitlines()[-2:] == ["200", "boom"]
    assert len(message.splitlines()) == 80


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [(["sh", "-c", "kill -9 $$$$"], 137, "Error"), (["no-such-program"], 128, "StartError")],
    ids=["killed", "not found"],
)
def test_an_end_by_signal_and_a_start_that_fails_have_their_codes(cluster, ended, words, code, reason):
    cluster.create(job(replica(words)))  # Kubernetes makes one $ of two
    ended()
    terminated = container(cluster)["state"]["terminated"]
    assert (terminated["exitCode"], terminated["reason"]) == (code, reason)


def test_on_failure_restarts_in_place_and_may_still_succeed(cluster, ended, tmp_path):
    command = f"echo attempt; [ -e {tmp_path}/again ] || {{ touch {tmp_path}/again; exit 7; }}"
    cluster.create(job(replica(command, policy="OnFailure"), policy={"backoffLimit": 3}))
    changes = cluster.watch(POD, NAMESPACE, timeout_s=40)
    waited = [s["state"] for c in changes for s in c.object.get("status", {}).get("containerStatuses", [])
              if c.object["status"].get("phase") != "Succeeded" or changes.close()]  # fmt: skip
    assert truths(ended()) == ["Created", "Succeeded"]
    assert any(state.get("waiting", {}).get("reason") == "CrashLoopBackOff" for state in waited)
    status = container(cluster)
    assert status["restartCount"] == 1
    assert status["lastState"]["terminated"]["exitCode"] == 7
    assert log(cluster) == ["attempt", "attempt"]
    assert "BackOff" in reasons(cluster, "job-master-0")


def test_exit_code_makes_a_new_pod_for_a_code_from_128(cluster, ended, tmp_path):
    command = f"[ -e {tmp_path}/again ] || {{ touch {tmp_path}/again; exit 130; }}"
    cluster.create(job(replica(command, policy="ExitCode")))
    seen = set()
    for change in cluster.watch(PYTORCHJOB, NAMESPACE, timeout_s=40):
        seen |= set(truths(change.object))
        if "Succeeded" in seen:
            break
    assert "Restarting" in seen
    assert container(cluster)["restartCount"] == 0
    assert reasons(cluster, "job").count("SuccessfulCreatePod") == 2


def test_exit_code_does_not_retry_a_users_error(cluster, ended):
    cluster.create(job(replica("exit 1", policy="ExitCode")))
    body = ended()
    assert truths(body) == ["Created", "Failed"]
    assert "completionTime" not in body["status"]


def test_the_backoff_limit_ends_the_job_and_takes_its_pods(cluster, ended, until):
    cluster.create(job(replica("exit 1", policy="OnFailure"), replica("sleep 600"), policy={"backoffLimit": 1}))
    body = ended()
    assert body["status"]["conditions"][-1]["message"].endswith("it has reached the specified backoff limit")
    until(lambda: pod_names(cluster) == [])


def test_the_deadline_ends_the_job_and_takes_its_pods(cluster, ended, until, running):
    cluster.create(job(replica("sleep 600"), policy={"activeDeadlineSeconds": 1}))
    body = ended()
    assert body["status"]["conditions"][-1]["message"].endswith("it was active longer than specified deadline")
    until(lambda: pod_names(cluster) == [])
    assert pids(running, cluster, "sleep 600") == []


def test_a_suspended_job_has_no_pods_and_starts_anew_when_it_is_resumed(cluster, until, running):
    def suspend(truth):
        cluster.patch(PYTORCHJOB, NAMESPACE, "job", {"spec": {"runPolicy": {"suspend": truth}}})

    cluster.create(job(replica("sleep 600"), policy={"suspend": True}))
    until(lambda: conditions(cluster).get("Suspended") == ("True", "PyTorchJobSuspended"))
    assert pod_names(cluster) == []
    suspend(False)
    until(lambda: truths(cluster.get(PYTORCHJOB, NAMESPACE, "job")) == ["Created", "Running"])
    assert conditions(cluster)["Suspended"] == ("False", "PyTorchJobResumed")
    first = pod(cluster)["metadata"]["uid"]
    suspend(True)
    until(lambda: pod_names(cluster) == [])
    assert conditions(cluster)["Running"] == ("False", "PyTorchJobSuspended")
    assert pids(running, cluster, "sleep 600") == []
    suspend(False)
    until(lambda: phase(cluster) == "Running")
    assert pod(cluster)["metadata"]["uid"] != first


@pytest.mark.parametrize(
    ("policy", "left"),
    [("None", ["job-master-0", "job-worker-0"]), ("Running", ["job-master-0"]), ("All", [])],
)
def test_the_clean_pod_policy_says_what_stays_after_the_end(cluster, ended, until, policy, left):
    cluster.create(job(replica("sleep 0.5"), replica("sleep 600"), policy={"cleanPodPolicy": policy}))
    body = ended()
    until(lambda: pod_names(cluster) == left)
    assert truths(body) == ["Created", "Succeeded"]
    assert phase(cluster, "job-worker-0") == ("Running" if policy == "None" else None)
    until(lambda: counts(cluster.get(PYTORCHJOB, NAMESPACE, "job"), "Worker") == {"succeeded": 1})


def test_without_a_master_all_workers_must_succeed(cluster, ended, tmp_path, until):
    command = f'[ "$HOSTNAME" = job-worker-0 ] || until [ -e {tmp_path}/go ]; do sleep 0.05; done'
    cluster.create(job(worker=replica(command, 2)))
    until(lambda: phase(cluster, "job-worker-0") == "Succeeded")
    assert "Succeeded" not in truths(cluster.get(PYTORCHJOB, NAMESPACE, "job"))
    (tmp_path / "go").touch()
    assert counts(ended(), "Worker") == {"succeeded": 2}
    assert pod(cluster, "job-worker-0")["metadata"]["labels"]["training.kubeflow.org/job-role"] == "master"


def test_a_deleted_job_may_save_first_and_its_log_is_followed_to_the_end(cluster, until):
    cluster.create(job(replica("trap 'echo saved; exit 143' TERM; echo ready; while :; do sleep 0.05; done")))
    until(lambda: phase(cluster) == "Running")
    lines = []
    reader = threading.Thread(target=lambda: lines.extend(cluster.logs(NAMESPACE, "job-master-0", follow=True)))
    reader.start()
    until(lambda: lines == ["ready"])
    cluster.delete(PYTORCHJOB, NAMESPACE, "job")
    reader.join(20)
    assert lines[-1] == "saved"


def test_a_deleted_job_leaves_no_process_even_of_those_that_hide(cluster, until, running):
    hide = "trap '' TERM; setsid sh -c 'trap \"\" TERM; while :; do sleep 601; done' & sh -c 'sleep 602 & sleep 603'"
    stubborn = replica(hide, 2)
    stubborn["template"]["spec"]["terminationGracePeriodSeconds"] = 0
    cluster.create(job(replica("sleep 600"), stubborn))
    until(lambda: all(pids(running, cluster, f"sleep 60{number}") for number in range(4)))
    cluster.delete(PYTORCHJOB, NAMESPACE, "job")
    until(lambda: pod_names(cluster) == [])
    until(lambda: running(cluster.folder) == {})


def test_a_deleted_job_ends_though_its_supervisor_is_stopped(cluster, until, running):
    stubborn = replica("trap '' TERM; setsid sleep 611 & env -i setsid sleep 612 & sleep 613")
    stubborn["template"]["spec"]["terminationGracePeriodSeconds"] = 0
    cluster.create(job(stubborn))
    hidden = until(lambda: [int(p.parent.name) for p in Path("/proc").glob("[0-9]*/cmdline") if slept(p) == "612"])
    until(lambda: pids(running, cluster, "sleep 613"))
    (supervisor,) = pids(running, cluster, "shim.py")
    os.kill(supervisor, signal.SIGSTOP)
    cluster.delete(PYTORCHJOB, NAMESPACE, "job")
    until(lambda: pod_names(cluster) == [])  # and then, at once:
    assert pids(running, cluster, "sleep 61") == []
    assert pids(running, cluster, "shim.py") == []
    assert [pid for pid in hidden if shim.start_time(pid)] == []  # a zombie has none


def test_what_a_replica_leaves_behind_ends_with_it(cluster, ended, until, running):
    cluster.create(job(replica("setsid sleep 604 & (setsid sleep 605 &) ; sleep 0.2")))
    assert truths(ended()) == ["Created", "Succeeded"]
    assert pids(running, cluster, "sleep 60") == []
    until(lambda: running(cluster.folder) == {})


def test_a_job_outlives_the_death_of_its_controller(cluster, ended, until, running, tmp_path):
    uid = cluster.create(job(replica(f"echo once; until [ -e {tmp_path}/go ]; do sleep 0.05; done")))["metadata"]["uid"]
    until(lambda: phase(cluster) == "Running")
    (controller,) = pids(running, cluster, f"--uid {uid}")
    before = pod(cluster)["metadata"]["uid"]
    os.kill(controller, signal.SIGKILL)
    (tmp_path / "go").touch()
    assert truths(ended()) == ["Created", "Succeeded"]
    assert pod(cluster)["metadata"]["uid"] == before
    assert log(cluster) == ["once"]


@pytest.fixture
def forsaken(cluster, until, running):
    """A suspended job whose controller was killed, so that no supervisor starts it again; returns the job's uid."""
    uid = cluster.create(job(replica("true"), policy={"suspend": True}))["metadata"]["uid"]
    until(lambda: "Suspended" in conditions(cluster))
    (controller,) = pids(running, cluster, f"--uid {uid}")
    os.kill(controller, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{controller}").exists())
    return uid


def test_opening_the_folder_brings_back_a_controller(cluster, forsaken, until, running):
    LocalCluster(cluster.folder)
    until(lambda: pids(running, cluster, f"--uid {forsaken}"))


def test_a_watch_brings_back_a_controller(cluster, forsaken, until, running):
    watch = cluster.watch(PYTORCHJOB, NAMESPACE, name="job", timeout_s=10)
    watcher = threading.Thread(target=list, args=(watch,), daemon=True)
    watcher.start()
    until(lambda: pids(running, cluster, f"--uid {forsaken}"), patience_s=9)


def test_resuming_a_job_brings_back_its_controller(cluster, forsaken, ended):
    cluster.patch(PYTORCHJOB, NAMESPACE, "job", {"spec": {"runPolicy": {"suspend": False}}})
    assert truths(ended()) == ["Created", "Succeeded"]


def test_a_replica_whose_supervisor_is_killed_has_failed_and_is_gone(cluster, ended, until, running):
    cluster.create(job(replica("setsid sleep 606 & env -i sleep 614 & sleep 607")))
    until(lambda: pids(running, cluster, "sleep 607"))
    unmarked = until(lambda: [int(p.parent.name) for p in Path("/proc").glob("[0-9]*/cmdline") if slept(p) == "614"])
    (supervisor,) = pids(running, cluster, "shim.py")
    os.kill(supervisor, signal.SIGKILL)
    assert truths(ended()) == ["Created", "Failed"]
    assert container(cluster)["state"]["terminated"]["exitCode"] == 137
    assert pids(running, cluster, "sleep 60") == []
    assert [pid for pid in unmarked if shim.start_time(pid)] == []  # a zombie has none


def test_a_job_goes_on_when_its_creator_is_killed(cluster, ended, tmp_path):
    manifest = job(replica(f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"))
    script = (
        "import os, pathlib, signal\nfrom tunesmith.clusters.local import LocalCluster\n"
        f"LocalCluster(pathlib.Path({str(cluster.folder)!r})).create({manifest!r})\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    creator = subprocess.run([sys.executable, "-c", script], check=False)
    assert creator.returncode == -signal.SIGKILL
    (tmp_path / "go").touch()
    assert truths(ended()) == ["Created", "Succeeded"]


def test_processes_end_when_the_clusters_folder_is_deleted(cluster, until, running):
    cluster.create(job(replica("sleep 608")))
    until(lambda: pids(running, cluster, "sleep 608"))
    for part in sorted(cluster.folder.rglob("*"), reverse=True):
        if part.name.startswith("cluster.db"):
            part.unlink()
    until(lambda: running(cluster.folder) == {})


def test_a_job_of_the_same_name_waits_until_the_old_pods_are_gone(cluster, ended, until):
    slow = "trap 'sleep 0.7; exit 0' TERM; while :; do sleep 0.05; done"
    cluster.create(job(replica(slow)))
    until(lambda: phase(cluster) == "Running")
    old = pod(cluster)["metadata"]["uid"]
    cluster.delete(PYTORCHJOB, NAMESPACE, "job")
    cluster.create(job(replica("true")))
    assert pod(cluster)["metadata"]["uid"] == old
    assert truths(ended()) == ["Created", "Succeeded"]
    assert pod(cluster)["metadata"]["uid"] != old


def test_a_log_is_of_the_newest_pod_of_its_name_alone(cluster, ended, until):
    slow = "echo old; trap 'sleep 0.7; echo late; exit 0' TERM; while :; do sleep 0.05; done"
    cluster.create(job(replica(slow)))
    until(lambda: phase(cluster) == "Running" and log(cluster) == ["old"])
    old, lines = pod(cluster)["metadata"]["uid"], []
    reader = threading.Thread(target=lambda: lines.extend(cluster.logs(NAMESPACE, "job-master-0", follow=True)))
    reader.start()
    cluster.delete(PYTORCHJOB, NAMESPACE, "job")
    report = 'echo new; echo "$TUNESMITH_TERMINATION_LOG"; cat "$TUNESMITH_TERMINATION_LOG"; exit 0'
    cluster.create(job(replica(report)))
    ended()
    reader.join(20)
    assert (lines[0], lines[-1]) == ("old", "late")
    assert "new" not in lines
    new, said = pod(cluster)["metadata"]["uid"], log(cluster)
    assert new != old
    assert said[0] == "new"
    assert new in said[1]
    assert old not in "".join(said)


def test_a_pod_that_has_not_started_when_it_is_deleted_never_starts(own_controller, cluster, monkeypatch):
    controller = own_controller(job(replica("sleep 609")))
    monkeypatch.setattr("tunesmith.local.kubelet.subprocess.Popen", lambda *args, **kwargs: Supervisor())
    for _ in range(3):
        controller.step()
    (waiting,) = cluster.list(POD, NAMESPACE)
    monkeypatch.undo()
    folder = cluster.folder / "pods" / waiting["metadata"]["uid"]
    spec = (folder / "spec.0.json").read_text()
    cluster.delete(PYTORCHJOB, NAMESPACE, "job")
    while controller.step():
        pass
    (folder / "spec.0.json").write_text(spec)  # as if the supervisor had read it before
    late = subprocess.run([sys.executable, "-I", "-S", shim.__file__, str(folder), "0"], check=False, timeout=20)
    assert late.returncode == 0
    assert not (folder / "exit.0.json").exists()
    assert not (cluster.folder / "logs" / f"{waiting['metadata']['uid']}.0.log").exists()


@pytest.mark.parametrize("deleted", [False, True], ids=["ended", "deleted"])
def test_a_pod_has_not_ended_while_a_process_of_it_lives(request, own_controller, cluster, until, monkeypatch, deleted):
    controller = own_controller(job(replica("sleep 0.5")))
    until(lambda: controller.step() and phase(cluster) == "Running")
    mark = {"TUNESMITH_POD_UID": pod(cluster)["metadata"]["uid"]}
    escaped = subprocess.Popen(["sleep", "615"], env=mark)  # not below the supervisor
    request.addfinalizer(escaped.kill)
    until(lambda: shim.marked(f"TUNESMITH_POD_UID={mark['TUNESMITH_POD_UID']}"))
    monkeypatch.setattr("tunesmith.local.kubelet._KILL_S", 0.1)
    with monkeypatch.context() as patch:
        patch.setattr(shim, "kill", lambda *_: None)  # as if it waited for a disk that does not answer
        if deleted:
            cluster.delete(PYTORCHJOB, NAMESPACE, "job")
        until((cluster.folder / "pods" / mark["TUNESMITH_POD_UID"] / "exit.0.json").exists)
        for _ in range(5):
            controller.step()
            assert phase(cluster) == "Running"
    until(lambda: not controller.step() or phase(cluster) == "Succeeded")
    assert escaped.wait(5) == -signal.SIGKILL
    assert pod_names(cluster) == ([] if deleted else ["job-master-0"])


def test_a_clock_that_is_set_back_delays_no_restart_and_no_deadline(own_controller, cluster, until, set_clock_back):
    controller = own_controller(
        job(replica("echo run; exit 1", policy="OnFailure"), policy={"activeDeadlineSeconds": 4})
    )
    until(lambda: controller.step() and "waiting" in waiting_or_not(cluster))
    set_clock_back()
    until(lambda: controller.step() and waiting_or_not(cluster) and container(cluster)["restartCount"] >= 1, 20)
    until(lambda: controller.step() and "Failed" in truths(cluster.get(PYTORCHJOB, NAMESPACE, "job")), 20)


def test_a_clock_that_is_set_back_lengthens_no_time_to_live(cluster, ended, until, set_clock_back):
    cluster.create(job(replica("true"), policy={"ttlSecondsAfterFinished": 2}))
    ended()
    cluster.revive()
    set_clock_back()
    until(lambda: cluster.revive() or cluster.list(PYTORCHJOB, NAMESPACE) == [], 20)


def test_a_folder_named_like_the_package_is_not_run_in_its_place(cluster, ended):
    (cluster.folder / "tunesmith").mkdir()
    (cluster.folder / "tunesmith" / "__init__.py").write_text("raise SystemExit('not me')")
    cluster.create(job(replica("true")))
    assert truths(ended()) == ["Created", "Succeeded"]


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)-$(A)", "a-a"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$a"),
        ("$$", "$"),
        ("$(X)", "$(X)"),
        ("$(ps $$) $()", "$(ps $$) $()"),
        ("$A $", "$A $"),
        ("$(A", "$(A"),
        ("$($$(A)", "$($$(A)"),
        ("$(a b)", "named oddly"),
    ],
)
def test_variables_are_expanded_by_the_rule_of_kubernetes(text, expanded):
    assert _expand(text, {"A": "a", "a b": "named oddly"}) == expanded


def test_a_deleted_pod_counts_as_failed_and_is_made_again(cluster, until):
    cluster.create(job(replica("sleep 600", policy="OnFailure")))
    until(lambda: phase(cluster) == "Running")
    first = pod(cluster)["metadata"]["uid"]
    cluster.delete(POD, NAMESPACE, "job-master-0")
    until(lambda: phase(cluster) == "Running" and pod(cluster)["metadata"]["uid"] != first)


def test_an_ended_job_is_deleted_when_its_time_to_live_is_over(cluster, ended, until):
    cluster.create(job(replica("true"), policy={"ttlSecondsAfterFinished": 1}))
    ended()
    assert "job" in [row.name for row in inventory.objects(cluster.folder)]
    time.sleep(2.1)
    assert inventory.objects(cluster.folder) == []
    until(lambda: pod_names(cluster) == [])


def test_the_inventory_lists_and_deletes_by_name(cluster, ended, until, running):
    cluster.create(job(replica("true"), name="first"))
    ended("first")
    cluster.create(job(replica("sleep 600"), name="second"))
    until(lambda: phase(cluster, "second-master-0") == "Running")
    until(lambda: [row.state for row in inventory.objects(cluster.folder)] == ["Succeeded", "Running"])
    assert [row.pods for row in inventory.objects(cluster.folder)] == [("first-master-0",), ("second-master-0",)]
    assert [row.name for row in inventory.delete(cluster.folder, "second")] == ["second"]
    assert [row.name for row in inventory.objects(cluster.folder)] == ["first"]
    until(lambda: running(cluster.folder) == {})
    assert inventory.objects(Path("/nowhere")) == []


@pytest.mark.trainer
def test_torchrun_finds_all_replicas_and_reduces_over_them(cluster, ended, tmp_path):
    script = tmp_path / "reduce.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "value = torch.tensor([dist.get_rank() + 1.0])\n"
        "dist.all_reduce(value)\n"
        "print(dist.get_world_size(), value.item())\n"
        "dist.destroy_process_group()\n"
    )
    run = replica(["torchrun", str(script)])
    cluster.create(job(run, run))
    assert truths(ended()) == ["Created", "Succeeded"]
    assert "2 3.0" in log(cluster)
    assert "2 3.0" in log(cluster, "job-worker-0")
