"""A model as a KServe InferenceService."""

from tunesmith.components.serving.kserve_deploy.component import kserve_deploy

__all__ = ["kserve_deploy"]
