"""Any image and command as a PyTorchJob."""

from kfp import dsl


@dsl.component(base_image="ghcr.io/tunesmith/launcher:0.1.0", install_kfp_package=False)
def pytorch_job(
    image: str,
    command: list,
    model: dsl.Output[dsl.Model],
    record: dsl.Output[dsl.Artifact],
    dataset: dsl.Input[dsl.Dataset] = None,
    base_model: dsl.Input[dsl.Model] = None,
    args: list = [],  # noqa: B006 - kfp reads the default from the signature and never changes it
    env: dict = {},  # noqa: B006
    replicas: int = 1,
    nproc_per_node: str = "1",
    resources: dict = {},  # noqa: B006
    policy: dict = {},  # noqa: B006
    service_account: str = "",
    namespace: str = "",
):
    """Train with a PyTorchJob of any image and command.

    The step is green only if the job that it created (the same uid) reached Succeeded and wrote its output. A job that
    failed for a reason of system or capacity is launched again, up to ``policy.retries`` times; a user's error is not.
    The container finds ``TUNESMITH_INPUT_DATASET`` and ``TUNESMITH_INPUT_BASE_MODEL``, an empty folder
    ``TUNESMITH_OUTPUT_MODEL`` to write into, and ``TUNESMITH_CHECKPOINTS``, a folder that outlives a failed attempt.

    Args:
        image: container image; on a laptop it is ignored and the command runs on the machine itself.
        command: entry point and its arguments.
        model: folder that the job wrote.
        record: the step's record: what was read and written, with digests, every attempt, and what it cost.
        dataset: data for the job.
        base_model: model for the job.
        args: arguments appended to the command.
        env: environment variables as text; names with TUNESMITH_ or PET_ are refused.
        replicas: pods in all; the first is the master.
        nproc_per_node: processes that torchrun starts in each pod: a number, ``auto``, ``gpu`` or ``cpu``.
        resources: of each replica: ``cpu``, ``memory``, ``gpus``, ``gpu_resource``; see tunesmith.resources.Resources.
        policy: deadline, retries and clean-up; see tunesmith.resources.Policy.
        service_account: under which the pods run; without a token in any case.
        namespace: where the job is created; empty for the step's own.
    """
    from tunesmith.tasks.job import parse, run_job
    from tunesmith.tasks.step import step
    from tunesmith.workloads import pytorchjob

    given = {
        "image": image,
        "command": command,
        "args": args,
        "env": env,
        "replicas": replicas,
        "nproc_per_node": nproc_per_node,
        "resources": resources,
        "policy": policy,
        "service_account": service_account,
    }
    reads, writes = {"dataset": dataset, "base_model": base_model}, {"model": model}
    with step(record, component="pytorch_job", parameters=given, reads=reads, writes=writes, launches=True) as this:
        spec = parse(pytorchjob.PyTorchJobSpec, given)
        run_job(this, pytorchjob, spec, reads=reads, writes=writes, namespace=namespace)
