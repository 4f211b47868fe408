"""The only place that talks to a cluster, and the one function that says which.

``TUNESMITH_CLUSTER=local:<folder>`` names a LocalCluster. Which cluster is used is never guessed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tunesmith.clusters.base import Cluster
from tunesmith.errors import BadInput

VARIABLE = "TUNESMITH_CLUSTER"


def open_cluster(environment: Mapping[str, str] | None = None) -> Cluster:
    """The cluster that the environment names.

    Raises:
        BadInput: none is named, or it is not one that this version can use.
    """
    environment = os.environ if environment is None else environment
    named = environment.get(VARIABLE, "")
    scheme, _, place = named.partition(":")
    if scheme == "local" and place:
        from tunesmith.clusters.local import LocalCluster

        return LocalCluster(Path(place))
    if named:
        raise BadInput(f"{VARIABLE} is {named!r}. Write local:<folder>.", "unknown-cluster")
    raise BadInput(
        f"no cluster is named: {VARIABLE} is not set. This version launches on a LocalCluster only: run the pipeline "
        "with `tunesmith run`, or set TUNESMITH_CLUSTER=local:<folder>. Launching on Kubernetes is not in it yet.",
        "no-cluster",
    )


def namespace_of(environment: Mapping[str, str] | None = None) -> str:
    """The namespace in which this step creates its objects: the one that it runs in itself."""
    environment = os.environ if environment is None else environment
    mounted = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
    if environment.get(VARIABLE, "").startswith("local:") or not mounted.is_file():
        return environment.get("TUNESMITH_NAMESPACE", "default")
    return mounted.read_text(encoding="utf-8").strip()
