"""Ask a running service two questions."""

from kfp import dsl

from tunesmith.components.serving.smoke_test import smoke_test


@dsl.pipeline(name="ask-a-service")
def ask_a_service(url: str = "http://assistant.models.svc.cluster.local"):
    """The step fails if an answer is empty or takes longer than ten seconds."""
    asked = smoke_test(url=url, questions=["Who are you?", "What is a mutex?"], max_seconds=10.0)
    asked.set_caching_options(False)
