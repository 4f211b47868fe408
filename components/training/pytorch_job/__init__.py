"""Any image and command as a PyTorchJob."""

from tunesmith.components.training.pytorch_job.component import pytorch_job

__all__ = ["pytorch_job"]
