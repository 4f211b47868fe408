"""Instruction data, validated, deduplicated and split."""

from kfp import dsl


@dsl.component(base_image="ghcr.io/tunesmith/launcher:0.1.0", install_kfp_package=False)
def prepare_instructions(
    train: dsl.Output[dsl.Dataset],
    heldout: dsl.Output[dsl.Dataset],
    record: dsl.Output[dsl.Artifact],
    source: str = "python-docstrings",
    tokenizer: dsl.Input[dsl.Model] = None,
    heldout_fraction: float = 0.1,
    max_examples: int = 0,
    seed: int = 17,
    system_prompt: str = "",
):
    """Validate, deduplicate and split instruction data into one JSONL file to train on and one held out.

    The step is green when every line of the source is good; the same input gives the same bytes. Nothing is written
    otherwise, and the error names up to 20 lines.

    Args:
        train: JSONL file of chat ``messages`` to train on.
        heldout: JSONL file of chat ``messages`` that training never sees.
        record: the step's record: what was read and written, with digests, and what it cost.
        source: ``python-docstrings`` (docstrings of this Python's standard library, nothing is downloaded); a JSONL
            file as a path or URL (``file://``, ``https://``, ``s3://``, ``gs://``) whose lines have ``messages`` or
            ``prompt`` and ``completion``; or ``hf://datasets/org/name[@revision][#split]``.
        tokenizer: model whose tokenizer counts the tokens; without it the token counts are "unknown".
        heldout_fraction: share of the examples held out, between 0 and 1.
        max_examples: use only the first so many distinct examples; 0 means all.
        seed: another seed is another split.
        system_prompt: put before every example that has no system message of its own.
    """
    from pathlib import Path

    from tunesmith.tasks.step import step
    from tunesmith.trainer.instructions import prepare

    given = {
        "source": source,
        "heldout_fraction": heldout_fraction,
        "max_examples": max_examples,
        "seed": seed,
        "system_prompt": system_prompt,
    }
    reads, writes = {"tokenizer": tokenizer}, {"train": train, "heldout": heldout}
    with step(
        record,
        component="prepare_instructions",
        parameters=given,
        reads=reads,
        writes=writes,
    ) as this:
        report = prepare(
            source,
            Path(train.path),
            Path(heldout.path),
            heldout_fraction=heldout_fraction,
            max_examples=max_examples,
            seed=seed,
            system_prompt=system_prompt or None,
            tokenizer=Path(tokenizer.path) if tokenizer else None,
        )
        this.details.update({name: value for name, value in report.items() if not name.endswith("_histogram")})
        in_tokens = report.get("token_histogram")
        histogram = in_tokens or report["chars_histogram"]
        this.leave("length_histogram.json", {**histogram, "unit": "tokens" if in_tokens else "characters"})
        train.metadata["examples"] = str(report["train"])
        heldout.metadata["examples"] = str(report["heldout"])
