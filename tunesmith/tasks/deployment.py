"""From a step to a service: deploy a model, and say where it answers."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunesmith.clusters import namespace_of, open_cluster
from tunesmith.errors import BadInput
from tunesmith.launch.loop import LaunchFailed, Request
from tunesmith.launch.progress import say
from tunesmith.launch.service import Service, deploy
from tunesmith.resources import Footprint
from tunesmith.tasks.job import parse
from tunesmith.tasks.step import Step
from tunesmith.workloads import inferenceservice
from tunesmith.workloads.base import State, dns_label


def run_deployment(
    this: Step,
    values: Mapping[str, Any],
    *,
    name: str,
    model: Any,
    service: Any,
    url: str,
    timeout_seconds: int,
    namespace: str = "",
) -> None:
    """Deploy ``model`` under ``name`` and write the service's address.

    Args:
        this: the step that deploys.
        values: fields of `InferenceServiceSpec` but the storage URI.
        name: of the InferenceService.
        model: input artifact.
        service: output artifact; gets a JSON with name, namespace, url and revision.
        url: file for the address.
        timeout_seconds: how long the revision may take until it serves.
        namespace: empty for the step's own.

    Raises:
        LaunchFailed: the revision did not serve.
        BadInput: the name is not one that Kubernetes takes, or belongs to a service that is not ours.
    """
    if name != dns_label(name):
        raise BadInput(
            f"service_name: {name!r} is not a name in Kubernetes. Write {dns_label(name)!r}.", "invalid-name"
        )
    storage_uri = model.uri if "://" in model.uri else Path(model.uri).absolute().as_uri()
    spec = parse(inferenceservice.InferenceServiceSpec, {**values, "storage_uri": storage_uri})
    request = Request(
        workload=inferenceservice,
        build=functools.partial(inferenceservice.build, spec),
        task=this.place.task,
        namespace=namespace or namespace_of(),
        identity=this.identity,
        resume_key=this.resume_key,
        timeout_seconds=timeout_seconds,
    )
    this.job_footprint, this.is_service = Footprint.of(spec.resources, spec.replicas), True
    outcome = deploy(Service(request, name, inferenceservice.with_revision), open_cluster())
    if outcome.observation.state is not State.SUCCEEDED or outcome.snapshot.object is None:
        raise LaunchFailed(outcome, f"InferenceService {name}")
    address = inferenceservice.url(outcome.snapshot.object)
    say(f"InferenceService {name} serves at {address}")
    this.details.update({"serving_url": address, "service": name, "namespace": request.namespace})
    _write(Path(url), address)
    about = {"name": name, "namespace": request.namespace, "url": address, "revision": outcome.observation.message}
    _write(Path(service.path), json.dumps(about, sort_keys=True))
    service.metadata["url"] = address


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
