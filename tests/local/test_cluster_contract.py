"""What every cluster promises. Another implementation passes it by overriding the fixture ``cluster``."""

import itertools
import json
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from contextlib import closing

import pytest

from tunesmith.clusters.base import AlreadyExists, Cluster, Conflict, NotFound, Refused, Unavailable
from tunesmith.clusters.local import JOURNAL_ROWS, LocalCluster, difference, merge
from tunesmith.errors import BadInput
from tunesmith.resources import DEPLOYMENT, EVENT, POD, PYTORCHJOB

NAMESPACE = "default"


def event(name, labels=None, reason="Testing"):
    """An object that no controller touches."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels or {}},
        "involvedObject": {"kind": "Pod", "namespace": NAMESPACE, "name": "nobody"},
        "reason": reason,
        "type": "Normal",
    }


def suspended_job(name, **changes):
    """A job of which nothing runs."""
    container = {"name": "pytorch", "image": "busybox", "command": ["true"]}
    master = {"replicas": 1, "restartPolicy": "Never", "template": {"spec": {"containers": [container]}}}
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"runPolicy": {"suspend": True}, "pytorchReplicaSpecs": {"Master": master}},
    }
    return merge(job, changes)


def seen(cluster, name, wanted, **selection):
    """Types of the first ``wanted`` changes of an Event that a watch reports."""
    changes = cluster.watch(EVENT, NAMESPACE, name=name, timeout_s=20, **selection)
    return [(change.type, change.object["reason"]) for change in itertools.islice(changes, wanted)]


class ClusterContract:
    @pytest.fixture
    def unique(self):
        return f"t-{uuid.uuid4().hex[:8]}"

    def test_a_created_object_is_returned_as_the_server_keeps_it(self, cluster: Cluster, unique):
        created = cluster.create(event(unique))
        assert created["metadata"]["uid"]
        assert created["metadata"]["creationTimestamp"].endswith("Z")
        assert created["metadata"]["resourceVersion"]
        assert cluster.get(EVENT, NAMESPACE, unique)["metadata"]["uid"] == created["metadata"]["uid"]

    def test_a_name_can_be_taken_once(self, cluster: Cluster, unique):
        cluster.create(event(unique))
        with pytest.raises(AlreadyExists):
            cluster.create(event(unique))

    def test_a_server_chooses_the_end_of_a_generated_name(self, cluster: Cluster, unique):
        manifest = event(unique)
        del manifest["metadata"]["name"]
        manifest["metadata"]["generateName"] = f"{unique}-"
        names = {cluster.create(manifest)["metadata"]["name"] for _ in range(3)}
        assert len(names) == 3
        assert all(name.startswith(f"{unique}-") for name in names)

    def test_a_dry_run_checks_and_keeps_nothing(self, cluster: Cluster, unique):
        cluster.create(suspended_job(unique), dry_run=True)
        with pytest.raises(NotFound):
            cluster.get(PYTORCHJOB, NAMESPACE, unique)
        with pytest.raises(Refused):
            cluster.create(suspended_job("Not_A_Name"), dry_run=True)

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"Master": {"replicas": 2}}, "replicas"),
            ({"Master": {"replicas": None}}, "replicas"),
            ({"Driver": {"replicas": 1, "template": {"spec": {"containers": []}}}}, "Driver"),
            ({"Master": {"template": {"spec": {"containers": [{"name": "main", "image": "i"}]}}}}, "pytorch"),
            ({"Worker": {"replicas": 0, "template": {"spec": {"containers": []}}}}, "Worker"),
        ],
        ids=["two masters", "no number of masters", "unknown role", "container's name", "zero workers"],
    )
    def test_a_job_that_the_operator_refuses_is_refused_by_its_field(self, cluster: Cluster, unique, change, field):
        with pytest.raises(Refused, match=field):
            cluster.create(suspended_job(unique, spec={"pytorchReplicaSpecs": change}))

    def test_what_is_not_there_is_not_found(self, cluster: Cluster, unique):
        with pytest.raises(NotFound):
            cluster.get(EVENT, NAMESPACE, unique)
        with pytest.raises(NotFound):
            cluster.patch(EVENT, NAMESPACE, unique, {"reason": "x"})
        cluster.delete(EVENT, NAMESPACE, unique)

    def test_a_list_holds_the_objects_that_carry_all_labels(self, cluster: Cluster, unique):
        cluster.create(event(f"{unique}-a", {"run": unique, "step": "one"}))
        cluster.create(event(f"{unique}-b", {"run": unique}))
        found = cluster.list(EVENT, NAMESPACE, {"run": unique})
        assert {body["metadata"]["name"] for body in found} == {f"{unique}-a", f"{unique}-b"}
        assert len(cluster.list(EVENT, NAMESPACE, {"run": unique, "step": "one"})) == 1
        assert cluster.list(EVENT, NAMESPACE, {"run": unique, "step": "two"}) == []

    def test_a_patch_merges_and_null_removes(self, cluster: Cluster, unique):
        cluster.create(event(unique, {"keep": "1", "drop": "1"}))
        patched = cluster.patch(EVENT, NAMESPACE, unique, {"metadata": {"labels": {"drop": None, "new": "1"}}})
        assert patched["metadata"]["labels"] == {"keep": "1", "new": "1"}
        assert cluster.get(EVENT, NAMESPACE, unique)["metadata"]["labels"] == {"keep": "1", "new": "1"}

    def test_only_a_patch_that_changes_something_makes_a_new_version(self, cluster: Cluster, unique):
        created = cluster.create(event(unique))
        same = cluster.patch(EVENT, NAMESPACE, unique, {"reason": "Testing"})
        other = cluster.patch(EVENT, NAMESPACE, unique, {"reason": "Changed"})
        assert same["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]
        assert other["metadata"]["resourceVersion"] != created["metadata"]["resourceVersion"]

    def test_a_patch_of_a_version_that_is_gone_is_a_conflict(self, cluster: Cluster, unique):
        version = cluster.create(event(unique))["metadata"]["resourceVersion"]
        patch = {"metadata": {"resourceVersion": version}, "reason": "First"}
        assert cluster.patch(EVENT, NAMESPACE, unique, patch)["reason"] == "First"
        with pytest.raises(Conflict):
            cluster.patch(EVENT, NAMESPACE, unique, patch | {"reason": "Second"})
        assert cluster.get(EVENT, NAMESPACE, unique)["reason"] == "First"

    def test_the_generation_counts_changes_of_the_spec_alone(self, cluster: Cluster, unique):
        cluster.create(suspended_job(unique))
        labelled = cluster.patch(PYTORCHJOB, NAMESPACE, unique, {"metadata": {"labels": {"a": "b"}}})
        assert labelled["metadata"]["generation"] == 1
        changed = cluster.patch(PYTORCHJOB, NAMESPACE, unique, {"spec": {"runPolicy": {"backoffLimit": 5}}})
        assert changed["metadata"]["generation"] == 2

    def test_status_is_written_only_as_a_subresource(self, cluster: Cluster, unique):
        manifest = suspended_job(unique) | {"status": {"note": "from create"}}
        assert "note" not in cluster.create(manifest).get("status", {})
        start = {"startTime": "2026-01-01T00:00:00Z"}
        patched = cluster.patch(PYTORCHJOB, NAMESPACE, unique, {"status": start})
        assert "startTime" not in patched.get("status", {})
        patch = {"status": start, "spec": {"runPolicy": {"backoffLimit": 7}}}
        patched = cluster.patch(PYTORCHJOB, NAMESPACE, unique, patch, subresource="status")
        assert patched["status"]["startTime"] == start["startTime"]
        assert "backoffLimit" not in patched["spec"]["runPolicy"]

    def test_a_delete_that_means_another_object_is_a_conflict(self, cluster: Cluster, unique):
        created = cluster.create(event(unique))
        with pytest.raises(Conflict):
            cluster.delete(EVENT, NAMESPACE, unique, uid="00000000-0000-0000-0000-000000000000")
        cluster.delete(EVENT, NAMESPACE, unique, uid=created["metadata"]["uid"])
        with pytest.raises(NotFound):
            cluster.get(EVENT, NAMESPACE, unique)

    def test_what_an_object_owns_goes_with_it(self, cluster: Cluster, unique, until):
        job = cluster.create(suspended_job(unique))
        owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": unique, "uid": job["metadata"]["uid"]}
        labels = {"app": unique}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        deployment = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": unique, "namespace": NAMESPACE, "ownerReferences": [owner]},
            "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
        }
        cluster.create(deployment)
        cluster.delete(PYTORCHJOB, NAMESPACE, unique)
        until(lambda: unique not in [d["metadata"]["name"] for d in cluster.list(DEPLOYMENT, NAMESPACE)])

    def test_a_watch_begins_with_what_there_is_and_goes_on_with_each_change(self, cluster: Cluster, unique):
        cluster.create(event(unique))
        changes = cluster.watch(EVENT, NAMESPACE, name=unique, timeout_s=20)
        assert next(changes).type == "ADDED"
        cluster.patch(EVENT, NAMESPACE, unique, {"reason": "Changed"})
        change = next(changes)
        assert (change.type, change.object["reason"]) == ("MODIFIED", "Changed")
        cluster.delete(EVENT, NAMESPACE, unique)
        assert next(changes).type == "DELETED"
        cluster.create(event(unique))
        assert next(changes).type == "ADDED"

    def test_a_watch_reports_changes_made_while_nobody_listened_once_each(self, cluster: Cluster, unique):
        cluster.create(event(unique))
        changes = cluster.watch(EVENT, NAMESPACE, name=unique, timeout_s=20)
        assert next(changes).object["reason"] == "Testing"
        reasons = [f"n{number}" for number in range(20)]
        for reason in reasons:
            cluster.patch(EVENT, NAMESPACE, unique, {"reason": reason})
        cluster.delete(EVENT, NAMESPACE, unique)
        reported = [(change.type, change.object["reason"]) for change in itertools.islice(changes, 21)]
        assert reported == [("MODIFIED", reason) for reason in reasons] + [("DELETED", "n19")]

    def test_a_watch_ends_after_its_time(self, cluster: Cluster, unique):
        began = time.monotonic()
        assert list(cluster.watch(EVENT, NAMESPACE, name=unique, timeout_s=1)) == []
        assert 0.9 < time.monotonic() - began < 5

    def test_an_object_that_loses_the_label_leaves_the_watch(self, cluster: Cluster, unique):
        cluster.create(event(f"{unique}-other", {"run": "another"}))
        cluster.create(event(unique, {"run": unique}))
        changes = cluster.watch(EVENT, NAMESPACE, labels={"run": unique}, timeout_s=20)
        assert next(changes).object["metadata"]["name"] == unique
        cluster.patch(EVENT, NAMESPACE, unique, {"metadata": {"labels": {"run": "another"}}})
        assert next(changes).type == "DELETED"
        cluster.patch(EVENT, NAMESPACE, unique, {"metadata": {"labels": {"run": unique}}})
        assert next(changes).type == "ADDED"

    def test_several_may_watch_at_once(self, cluster: Cluster, unique):
        results = []
        watchers = [threading.Thread(target=lambda: results.append(seen(cluster, unique, 2))) for _ in range(3)]
        for watcher in watchers:
            watcher.start()
        cluster.create(event(unique))
        time.sleep(0.2)
        cluster.patch(EVENT, NAMESPACE, unique, {"reason": "Changed"})
        for watcher in watchers:
            watcher.join()
        assert results == [[("ADDED", "Testing"), ("MODIFIED", "Changed")]] * 3

    def test_logs_of_a_pod_that_is_not_there_are_not_found(self, cluster: Cluster, unique):
        with pytest.raises(NotFound):
            list(cluster.logs(NAMESPACE, unique))

    def test_a_role_is_asked_before_it_is_needed(self, cluster: Cluster):
        assert cluster.can_i("create", PYTORCHJOB, NAMESPACE) is True


WRITER = """
import json, sys
from pathlib import Path
from tunesmith.clusters.local import LocalCluster
from tunesmith.resources import EVENT

cluster, writer = LocalCluster(Path(sys.argv[1]), revive=False), sys.argv[2]
for number in range(40):
    manifest = json.loads(sys.argv[3])
    manifest["metadata"]["name"] = f"w{writer}-{number}"
    cluster.create(manifest)
    cluster.patch(EVENT, "default", "shared", {"metadata": {"labels": {f"w{writer}-{number}": "1"}}})
"""


@pytest.mark.local
class TestLocalCluster(ClusterContract):
    def test_writers_in_several_processes_lose_nothing(self, cluster):
        cluster.create(event("shared"))
        changes = cluster.watch(EVENT, NAMESPACE, timeout_s=30)
        next(changes)
        command = [sys.executable, "-c", WRITER, str(cluster.folder)]
        writers = [subprocess.Popen([*command, str(number), json.dumps(event("x"))]) for number in range(3)]
        versions = [int(change.object["metadata"]["resourceVersion"]) for change in itertools.islice(changes, 240)]
        assert [writer.wait() for writer in writers] == [0, 0, 0]
        assert versions == sorted(set(versions))
        assert len(cluster.list(EVENT, NAMESPACE)) == 121
        assert len(cluster.get(EVENT, NAMESPACE, "shared")["metadata"]["labels"]) == 120

    def test_a_watch_whose_place_in_the_journal_is_gone_compares_and_reports_once(self, cluster):
        for name in ("changes", "goes", "stays"):
            cluster.create(event(name))
        changes = cluster.watch(EVENT, NAMESPACE, timeout_s=1)
        assert {next(changes).object["metadata"]["name"] for _ in range(3)} == {"changes", "goes", "stays"}
        cluster.delete(EVENT, NAMESPACE, "goes")
        cluster.patch(EVENT, NAMESPACE, "changes", {"reason": "Once"})
        cluster.patch(EVENT, NAMESPACE, "changes", {"reason": "Twice"})
        cluster.create(event("comes"))
        with closing(sqlite3.connect(cluster.folder / "cluster.db")) as db:
            db.execute("DELETE FROM journal")
            db.commit()
        rest = sorted((change.type, change.object["metadata"]["name"]) for change in changes)
        assert rest == [("ADDED", "comes"), ("DELETED", "goes"), ("MODIFIED", "changes")]

    def test_the_journal_does_not_grow_for_ever(self, cluster):
        cluster.create(event("counter"))
        with closing(sqlite3.connect(cluster.folder / "cluster.db")) as db:
            db.execute("UPDATE sqlite_sequence SET seq = 20000 WHERE name = 'journal'")
            db.commit()
        for number in range(600):
            cluster.patch(EVENT, NAMESPACE, "counter", {"reason": str(number)})
        with closing(sqlite3.connect(cluster.folder / "cluster.db")) as db:
            (oldest,) = db.execute("SELECT min(version) FROM journal").fetchone()
        assert oldest > 20000 - JOURNAL_ROWS

    def test_a_pod_that_nothing_runs_is_deleted_at_once(self, cluster):
        container = {"name": "c", "image": "i", "command": ["true"]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}}
        cluster.create(pod)
        cluster.delete(POD, NAMESPACE, "p")
        assert cluster.list(POD, NAMESPACE) == []

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"command": None}, "write its entry point"),
            ({"args": [3]}, "quote it"),
            ({"env": [{"name": "N", "value": 3}]}, "quote it"),
            (
                {"env": [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
                "K comes from secretKey",
            ),
            ({"envFrom": [{"secretRef": {"name": "s"}}]}, "envFrom"),
            ({"volumeMounts": [{"name": "data", "mountPath": "/data"}]}, "mounts nothing at /data"),
        ],
        ids=["no command", "number as argument", "number in env", "secret", "all of a secret", "volume"],
    )
    def test_what_a_machine_without_containers_cannot_give_is_refused(self, cluster, change, message):
        container = merge({"name": "pytorch", "image": "i", "command": ["true"]}, change)
        template = {"spec": {"containers": [container], "volumes": [{"name": "data", "emptyDir": {}}]}}
        with pytest.raises(Refused, match=message):
            cluster.create(suspended_job("j", spec={"pytorchReplicaSpecs": {"Master": {"template": template}}}))
        assert cluster.list(PYTORCHJOB, NAMESPACE) == []

    def test_an_unknown_kind_is_refused_with_those_that_are_known(self, cluster):
        with pytest.raises(Refused, match="PyTorchJob"):
            cluster.create({"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": "x"}})


def damaged(folder):
    LocalCluster(folder)
    (folder / "cluster.db").write_bytes(b"this is no database" * 500)


def of_another_layout(folder):
    folder.mkdir()
    with closing(sqlite3.connect(folder / "cluster.db")) as db:
        db.execute("CREATE TABLE objects (other TEXT)")


def a_folder_instead(folder):
    (folder / "cluster.db").mkdir(parents=True)


@pytest.mark.parametrize("spoil", [damaged, of_another_layout, a_folder_instead])
def test_a_broken_database_is_told_in_a_sentence_with_its_remedy(tmp_path, spoil):
    folder = tmp_path / "cluster"
    spoil(folder)
    with pytest.raises(BadInput, match="remove that folder, or name another --workdir") as refused:
        LocalCluster(folder)
    assert refused.value.id == "broken-cluster"
    assert str(folder) in str(refused.value)


def test_a_path_too_long_for_sqlite_is_told_so(tmp_path):
    with pytest.raises(BadInput, match="too long for SQLite"):
        LocalCluster(tmp_path / ("a" * 200) / ("b" * 200) / ("c" * 200))


def test_damage_that_is_met_later_is_told_as_well(tmp_path):
    cluster = LocalCluster(tmp_path / "cluster")
    cluster.create(event("one"))
    del cluster._anchor
    for file in cluster.folder.glob("cluster.db-*"):
        file.unlink()
    (cluster.folder / "cluster.db").write_bytes(b"this is no database" * 500)
    with pytest.raises(BadInput, match="remove that folder"):
        cluster.list(EVENT, NAMESPACE)


def test_a_database_that_stays_locked_or_is_full_is_unavailable(tmp_path, monkeypatch):
    cluster, connect = LocalCluster(tmp_path / "cluster"), sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: connect(*args, **options | {"timeout": 0.1}))
    with closing(connect(cluster.folder / "cluster.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="database is locked"):
            cluster.create(event("one"))
        other.execute("ROLLBACK")

    def small(self):
        db = connect(self.folder / "cluster.db", isolation_level=None)
        db.execute("PRAGMA max_page_count = 1")
        return db

    monkeypatch.setattr(LocalCluster, "_connect", small)
    with pytest.raises(Unavailable, match="full"):
        cluster.create(event("two", reason="x" * 1_000_000))


def test_only_the_user_may_enter_the_folder_also_one_that_was_there(tmp_path):
    folder = tmp_path / "cluster"
    folder.mkdir(mode=0o755)
    LocalCluster(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_the_examples_of_rfc_7386_hold(target, patch, result):
    before = json.dumps(target)
    assert merge(target, patch) == result
    assert json.dumps(target) == before


def test_a_difference_is_the_patch_that_leads_from_one_to_the_other():
    old = {"a": {"b": 1, "c": {"d": 2}}, "l": [1], "gone": 1}
    new = {"a": {"b": 1, "c": {"e": 3}}, "l": [2], "come": {"x": {}}}
    assert difference(old, new) == {"a": {"c": {"d": None, "e": 3}}, "l": [2], "gone": None, "come": {"x": {}}}
    assert merge(old, difference(old, new)) == new
