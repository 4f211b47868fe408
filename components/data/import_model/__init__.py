"""A base model, fetched, checked and converted to safetensors."""

from tunesmith.components.data.import_model.component import import_model

__all__ = ["import_model"]
