"""The real launch loop on the real LocalCluster: what it says about a job is true, and nothing is left over.

Kubernetes turns ``$$`` in a command into ``$``, so a shell's own pid is written ``$$$$`` here.
"""

import dataclasses
import functools

import pytest

from tunesmith.clusters.base import AlreadyExists, Unavailable
from tunesmith.errors import BadInput
from tunesmith.launch.loop import LaunchFailed, Refused, Request, launch
from tunesmith.resources import POD, PYTORCHJOB, Policy
from tunesmith.workloads import pytorchjob
from tunesmith.workloads.base import Fault, State
from tunesmith.workloads.pytorchjob import PyTorchJobSpec


class Faulty:
    """A real cluster with one verb replaced; counts what was created."""

    def __init__(self, cluster, **verbs):
        self._cluster, self._verbs, self.created = cluster, verbs, []

    def __getattr__(self, name):
        verb = getattr(self._cluster, name)
        if name == "create":
            verb = self._count(verb)
        return functools.partial(self._verbs[name], verb) if name in self._verbs else verb

    def _count(self, create):
        def counting(manifest, *, dry_run=False):
            stored = create(manifest, dry_run=dry_run)
            if not dry_run:
                self.created.append(stored["metadata"]["uid"])
            return stored

        return counting


class InstantClock:
    """Retries are not waited for."""

    def __init__(self):
        from tunesmith.launch.loop import SystemClock

        self._real = SystemClock()

    def now(self):
        return self._real.now()

    def sleep(self, seconds):
        self._real.sleep(min(seconds, 0.05))


def request(script, *, resume_key="w1", identity="0123456789abcdef0123", retries=2, replicas=1, **more):
    spec = PyTorchJobSpec(
        image="any",
        command=["sh", "-c", script],
        replicas=replicas,
        policy=Policy(retries=retries, deadline_seconds=60),
    )
    build = functools.partial(pytorchjob.build, spec)
    return Request(
        pytorchjob, build, task="train it", namespace="default", identity=identity, resume_key=resume_key,
        retries=retries, **more,
    )  # fmt: skip


def states(outcome):
    return [(one.number, one.observation.state) for one in outcome.tries]


def test_a_job_that_succeeds_is_one_object_and_success(cluster):
    outcome = launch(request("echo hello"), cluster)
    assert outcome.observation.state is State.SUCCEEDED
    assert [job["metadata"]["name"] for job in cluster.list(PYTORCHJOB, "default")] == ["train-it-0123456789-1"]
    assert outcome.log_tail[-1] == "hello"


def test_a_user_error_fails_at_once_with_exit_code_and_last_lines(cluster):
    outcome = launch(request("echo first; echo boom >&2; exit 7"), cluster)
    assert states(outcome) == [(1, State.FAILED)]
    assert (outcome.observation.fault, outcome.observation.exit_code) == (Fault.USER, 7)
    assert "boom" in outcome.log_tail
    assert "exit code 7" in str(LaunchFailed(outcome, "PyTorchJob x"))


def test_a_killed_job_is_launched_again_and_both_attempts_are_told(cluster, tmp_path):
    mark = tmp_path / "mark"
    outcome = launch(request(f"test -e {mark} || {{ touch {mark}; kill -9 $$$$; }}"), cluster, InstantClock())
    assert states(outcome) == [(1, State.FAILED), (2, State.SUCCEEDED)]
    assert outcome.tries[0].observation.fault is Fault.SYSTEM


def test_retries_end(cluster):
    outcome = launch(request("kill -9 $$$$", retries=1), cluster, InstantClock())
    assert states(outcome) == [(1, State.FAILED), (2, State.FAILED)]


def test_a_replica_that_outlives_the_failed_one_is_gone_before_the_next_attempt(cluster, tmp_path):
    mark, alive = tmp_path / "mark", tmp_path / "alive"
    script = (
        f"if [ -e {mark} ]; then test ! -e {alive}; exit $?; fi; "
        f'if [ "$RANK" = 0 ]; then sleep 0.5; touch {mark}; kill -9 $$$$; fi; '
        f"touch {alive}; trap 'rm {alive}; exit 143' TERM; while :; do sleep 0.05; done"
    )
    outcome = launch(request(script, replicas=2), cluster, InstantClock())
    assert states(outcome) == [(1, State.FAILED), (2, State.SUCCEEDED)]


def test_lost_reply_to_create_leaves_exactly_one_job(cluster):
    lost = []

    def create(real, manifest, *, dry_run=False):
        stored = real(manifest, dry_run=dry_run)
        if not dry_run and not lost:
            lost.append(stored)
            raise AlreadyExists("the first answer was lost, and the client tried again")
        return stored

    faulty = Faulty(cluster, create=create)
    outcome = launch(request("echo once"), faulty)
    assert outcome.observation.state is State.SUCCEEDED
    assert faulty.created == [outcome.tries[0].object["metadata"]["uid"]]


def test_a_second_launcher_attaches_to_the_running_job(cluster, tmp_path):
    go = tmp_path / "go"
    wanted = request(f"while [ ! -e {go} ]; do sleep 0.05; done")
    first = cluster.create(wanted.manifest(1))
    go.touch()
    outcome = launch(wanted, cluster)
    assert outcome.tries[0].object["metadata"]["uid"] == first["metadata"]["uid"]
    assert len(cluster.list(PYTORCHJOB, "default")) == 1


def test_a_job_for_other_inputs_is_ended_and_not_attached_to(cluster):
    stale = cluster.create(request("sleep 600", resume_key="w0").manifest(1))
    outcome = launch(request("echo new", resume_key="w1"), cluster)
    assert outcome.observation.state is State.SUCCEEDED
    assert stale["metadata"]["uid"] not in [job["metadata"]["uid"] for job in cluster.list(PYTORCHJOB, "default")]


def test_a_launcher_that_comes_back_counts_the_attempts_before_it(cluster):
    wanted = request("kill -9 $$$$", retries=1)
    cluster.create(wanted.manifest(1))
    outcome = launch(wanted, cluster, InstantClock())
    assert states(outcome) == [(1, State.FAILED), (2, State.FAILED)]


def test_a_foreign_object_under_our_name_is_left_alone(cluster):
    foreign = request("sleep 600", identity="0123456789ffffffffff").manifest(1)
    cluster.create(foreign)
    with pytest.raises(BadInput, match="does not belong to this step"):
        launch(request("echo mine"), cluster)
    assert len(cluster.list(PYTORCHJOB, "default")) == 1


def test_a_job_that_somebody_deletes_is_lost_and_not_brought_back(cluster):
    def watch(real, kind, namespace, **options):
        for event in real(kind, namespace, **options):
            yield event
            if kind == PYTORCHJOB and event.type == "MODIFIED":
                cluster.delete(PYTORCHJOB, "default", event.object["metadata"]["name"])

    outcome = launch(request("sleep 600"), Faulty(cluster, watch=watch))
    assert states(outcome) == [(1, State.LOST)]


def test_a_job_with_problems_is_not_created(cluster):
    good = request("echo", replicas=2)

    def build(**names):
        manifest = good.build(**names)
        del manifest["spec"]["pytorchReplicaSpecs"]["Master"]
        return manifest

    with pytest.raises(Refused) as refused:
        launch(dataclasses.replace(good, build=build), cluster)
    assert [problem.id for problem in refused.value.problems] == ["pytorchjob-no-rendezvous"]
    assert cluster.list(PYTORCHJOB, "default") == []


def test_when_following_breaks_the_job_does_not_run_on(cluster):
    def watch(real, kind, namespace, **options):
        raise Unavailable("the cluster is gone")
        yield

    with pytest.raises(Unavailable):
        launch(request("sleep 600"), Faulty(cluster, watch=watch))
    assert all(job["metadata"].get("deletionTimestamp") for job in cluster.list(PYTORCHJOB, "default"))


def test_a_job_that_takes_too_long_for_the_step_fails_as_timeout(cluster):
    outcome = launch(request("sleep 600", retries=0, timeout_seconds=0.5), cluster)
    assert (outcome.observation.state, outcome.observation.reason) == (State.FAILED, "Timeout")
    assert all(job["metadata"].get("deletionTimestamp") for job in cluster.list(PYTORCHJOB, "default"))


def test_the_pods_of_a_finished_job_hold_nothing(cluster, until):
    launch(request('[ "$RANK" = 0 ] || sleep 600', replicas=2), cluster)
    until(lambda: {pod["status"]["phase"] for pod in cluster.list(POD, "default")} <= {"Succeeded", "Failed"})
