"""Deploy a model and hand its address on."""

from kfp import dsl

from tunesmith.components.data.import_model import import_model
from tunesmith.components.serving.kserve_deploy import kserve_deploy
from tunesmith.components.serving.smoke_test import smoke_test
from tunesmith.resources import Resources


@dsl.pipeline(name="deploy-a-model")
def deploy_a_model(reference: str = "hf://HuggingFaceTB/SmolLM2-135M-Instruct@main"):
    """Serve a model under a name, then ask it something."""
    base = import_model(reference=reference)
    served = kserve_deploy(
        model=base.outputs["model"],
        service_name="assistant",
        resources=Resources(cpu="2", memory="8Gi").to_kfp(),
    )
    served.set_caching_options(False)
    smoke_test(url=served.outputs["url"])
