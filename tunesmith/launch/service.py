"""Deploying a service: one object that outlives the run, replaced in place, rolled back when the new revision fails."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from tunesmith.clusters.base import Cluster, ClusterError, NotFound
from tunesmith.errors import BadInput
from tunesmith.launch.loop import (
    LABEL_RUN,
    MANAGED_BY,
    Clock,
    Outcome,
    Refused,
    Request,
    SystemClock,
    follow,
    preflight,
)
from tunesmith.launch.progress import emit, say
from tunesmith.workloads.base import LABEL_MANAGED_BY, Manifest, State


@dataclass(frozen=True)
class Service:
    """A service to deploy under a name of the user's choice.

    ``mark`` puts the revision's mark into a manifest, so that it can be told from the revision before.
    """

    request: Request
    name: str
    mark: Callable[[Manifest, str], Manifest]


def deploy(service: Service, cluster: Cluster, clock: Clock | None = None) -> Outcome:
    """Create the service or replace its revision, and wait until *this* revision serves.

    A first deploy that fails is removed again; a failed replacement is rolled back, and the old revision goes on
    serving.

    Raises:
        Refused: the manifest has problems; nothing was changed.
        BadInput: an object of that name exists that tunesmith did not make.
    """
    clock, request = clock or SystemClock(), service.request
    revision = f"{request.identity[:10]}-{request.resume_key[:10]}"
    built = request.build(name=service.name, namespace=request.namespace, labels=request.labels(1), annotations={})
    manifest = service.mark(built, revision)
    before = _existing(service, cluster)
    if before is None:
        handle = cluster.create(preflight(request, manifest, cluster))
        say(f"created {handle['kind']} {service.name}")
    elif before["spec"] == manifest["spec"]:
        handle = before
        say(f"{handle['kind']} {service.name} already has this revision")
    else:
        if problems := request.workload.problems(manifest):
            raise Refused(manifest, problems)
        handle = _replace(service, manifest, cluster)
        say(f"replaced the revision of {handle['kind']} {service.name}")
    emit("created", request.task, kind=handle["kind"], name=service.name, attempt=1)
    outcome = follow(request, handle, cluster, clock)
    if outcome.observation.state is not State.SUCCEEDED:
        _undo(service, handle, before, cluster)
    return outcome


def _existing(service: Service, cluster: Cluster) -> Manifest | None:
    try:
        found = cluster.get(service.request.workload.KIND, service.request.namespace, service.name)
    except NotFound:
        return None
    if found["metadata"].get("labels", {}).get(LABEL_MANAGED_BY) != MANAGED_BY:
        raise BadInput(
            f"{found['kind']} {service.name} exists in namespace {service.request.namespace} and was not made by "
            "tunesmith. Choose another service name, or delete that service.",
            "foreign-object",
        )
    return found


def _replace(service: Service, manifest: Manifest, cluster: Cluster) -> Manifest:
    # The run that made the service still owns it: a run that only replaces its revision must not end it.
    labels = {name: value for name, value in manifest["metadata"]["labels"].items() if name != LABEL_RUN}
    patch = {
        "metadata": {"labels": labels, "annotations": manifest["metadata"]["annotations"]},
        "spec": manifest["spec"],
    }
    return cluster.patch(service.request.workload.KIND, service.request.namespace, service.name, patch)


def _undo(service: Service, handle: Manifest, before: Manifest | None, cluster: Cluster) -> None:
    with contextlib.suppress(ClusterError):
        if before is None:
            cluster.delete(
                service.request.workload.KIND, service.request.namespace, service.name, uid=handle["metadata"]["uid"]
            )
            say(f"removed {service.name}, which never served")
        elif before["spec"] != handle["spec"]:
            _replace(service, before, cluster)
            say(f"rolled {service.name} back to the revision that served before")
