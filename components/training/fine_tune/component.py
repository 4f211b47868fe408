"""Supervised fine-tuning of a language model, LoRA or full, as a PyTorchJob."""

from kfp import dsl


@dsl.component(base_image="ghcr.io/tunesmith/launcher:0.1.0", install_kfp_package=False)
def fine_tune(
    base_model: dsl.Input[dsl.Model],
    train: dsl.Input[dsl.Dataset],
    model: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    record: dsl.Output[dsl.Artifact],
    method: str = "lora",
    max_steps: int = 40,
    batch_size: int = 8,
    learning_rate: float = 2e-4,
    lora_rank: int = 16,
    lora_alpha: int = 32,
    max_length: int = 1024,
    packing: bool = True,
    precision: str = "auto",
    save_every: int = 10,
    seed: int = 17,
    replicas: int = 1,
    nproc_per_node: str = "1",
    resources: dict = {},  # noqa: B006 - kfp reads the default from the signature and never changes it
    policy: dict = {},  # noqa: B006
    image: str = "ghcr.io/tunesmith/trainer:0.1.0",
    service_account: str = "",
    namespace: str = "",
):
    """Fine-tune a language model on chat messages with LoRA or in full; the loss counts the answers only.

    The step is green only if the PyTorchJob that it created reached Succeeded and wrote the model. Checkpoints are kept
    under a key made of component, parameters and input digests: a job that is launched again, by this run or a later
    one, goes on from the newest complete one. Failures of system or capacity are retried, the user's are not.

    Args:
        base_model: folder of a Hugging Face model in safetensors.
        train: JSONL file of chat ``messages``.
        model: the tuned model, complete (LoRA is merged into the base), with the adapter in ``adapter/``.
        metrics: first and last training loss, steps, tokens, tokens a second, seconds.
        record: the step's record: what was read and written, with digests, every attempt, and what it cost.
        method: ``lora`` or ``full``.
        max_steps: optimizer steps in all, those of earlier attempts included.
        batch_size: packed sequences (or samples, without packing) a step, over all ranks.
        learning_rate: the highest; it falls linearly to 0.
        lora_rank: rank of the adapters.
        lora_alpha: scale of the adapters; they count alpha/rank.
        max_length: tokens of a sequence.
        packing: put several short conversations into one sequence, without seeing each other.
        precision: ``auto`` (bf16 on a GPU that has it, else fp32), ``fp32`` or ``bf16``.
        save_every: steps between two checkpoints.
        seed: of the adapters' start and of the order of the data.
        replicas: pods in all; the first is the master.
        nproc_per_node: processes in each pod: a number, ``auto``, ``gpu`` or ``cpu``; one a GPU.
        resources: of each replica: ``cpu``, ``memory``, ``gpus``, ``gpu_resource``; see tunesmith.resources.Resources.
        policy: deadline, retries and clean-up; see tunesmith.resources.Policy.
        image: image with tunesmith[trainer]; on a laptop it is ignored.
        service_account: under which the pods run; without a token in any case.
        namespace: where the job is created; empty for the step's own.
    """
    from tunesmith.tasks.job import parse, run_job
    from tunesmith.tasks.step import step
    from tunesmith.tasks.training import leave_training, trainer_command
    from tunesmith.workloads import pytorchjob

    settings = {
        "method": method,
        "max_steps": max_steps,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "lora_rank": lora_rank,
        "lora_alpha": lora_alpha,
        "max_length": max_length,
        "packing": packing,
        "precision": precision,
        "save_every": save_every,
        "seed": seed,
    }
    job = {
        "image": image,
        "command": trainer_command(settings, nproc_per_node),
        "replicas": replicas,
        "nproc_per_node": nproc_per_node,
        "resources": resources,
        "policy": policy,
        "service_account": service_account,
    }
    reads, writes = {"base_model": base_model, "train": train}, {"model": model}
    with step(
        record,
        component="fine_tune",
        parameters={**settings, **job},
        reads=reads,
        writes={**writes, "metrics": metrics},
        launches=True,
    ) as this:
        spec = parse(pytorchjob.PyTorchJobSpec, job)
        named = {"model": base_model, "train": train}  # the trainer's names for its inputs
        run_job(this, pytorchjob, spec, reads=named, writes=writes, namespace=namespace)
        leave_training(this, model, metrics)
