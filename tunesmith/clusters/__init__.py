"""The only place that talks to a cluster.

``TUNESMITH_CLUSTER=local:<folder>`` names a LocalCluster; inside a pod of Kubernetes nothing need be said.
"""
