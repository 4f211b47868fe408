"""A model as a KServe InferenceService."""

from kfp import dsl


@dsl.component(base_image="ghcr.io/tunesmith/launcher:0.1.0", install_kfp_package=False)
def kserve_deploy(
    model: dsl.Input[dsl.Model],
    service_name: str,
    url: dsl.OutputPath(str),
    service: dsl.Output[dsl.Artifact],
    record: dsl.Output[dsl.Artifact],
    model_format: str = "huggingface",
    replicas: int = 1,
    args: list = [],  # noqa: B006 - kfp reads the default from the signature and never changes it
    env: dict = {},  # noqa: B006
    resources: dict = {"cpu": "1", "memory": "4Gi"},  # noqa: B006
    port: int = 0,
    timeout_seconds: int = 900,
    namespace: str = "",
):
    """Deploy a model with KServe, or replace what the service of that name serves, and wait for this revision.

    The step is green when every replica is of the revision that it deployed and the service is Ready; Ready from an
    earlier revision does not count. The service outlives the run. A first deploy that fails is removed again, a failed
    replacement is rolled back while the old revision goes on serving.

    Args:
        model: folder of the model.
        service_name: name of the InferenceService.
        url: address that answers the OpenAI API under ``/v1``.
        service: JSON with name, namespace, url and revision.
        record: the step's record: what was read and written, with digests, and what it cost.
        model_format: by which KServe finds a serving runtime.
        replicas: pods that serve.
        args: arguments of the runtime's server.
        env: environment variables of the server, as text.
        resources: of each replica: ``cpu``, ``memory``, ``gpus``, ``gpu_resource``; see tunesmith.resources.Resources.
        port: on a laptop, the port of 127.0.0.1 to serve on; 0 takes a free one.
        timeout_seconds: how long the revision may take until it serves.
        namespace: where the service is deployed; empty for the step's own.
    """
    from tunesmith.tasks.deployment import run_deployment
    from tunesmith.tasks.step import step

    given = {
        "model_format": model_format,
        "args": args,
        "env": env,
        "replicas": replicas,
        "resources": resources,
        "port": port or None,
    }
    parameters = {**given, "service_name": service_name}
    with step(
        record,
        component="kserve_deploy",
        parameters=parameters,
        reads={"model": model},
        writes={"service": service},
        launches=True,
    ) as this:
        run_deployment(
            this, given, name=service_name, model=model, service=service, url=url, timeout_seconds=timeout_seconds,
            namespace=namespace,
        )  # fmt: skip
