"""Real questions to a service that was just deployed."""

from tunesmith.components.serving.smoke_test.component import smoke_test

__all__ = ["smoke_test"]
