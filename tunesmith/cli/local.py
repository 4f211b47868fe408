"""``tunesmith local``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click

from tunesmith.errors import BadInput

_workdir = click.option(
    "--workdir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".tunesmith"),
    show_default=True,
    help="The WORKDIR of the runs.",
)


@click.group(name="local", short_help="See and end what runs on this machine: jobs and services.")
def command() -> None:
    """See and end what runs on this machine: jobs and services that pipelines launched, also of earlier runs."""


@command.command(name="list", short_help="List jobs and services with their state.")
@_workdir
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(workdir: Path, as_json: bool) -> None:
    """List jobs and services with their state, age, pods and address."""
    from tunesmith.local.inventory import objects

    rows = objects(_cluster(workdir))
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(row) for row in rows], indent=2))
        return
    click.echo(f"{'KIND':<18}{'NAME':<46}{'STATE':<14}{'AGE':>8}  URL")
    for row in rows:
        click.echo(f"{row.kind:<18}{row.name:<46}{row.state:<14}{row.age_s:>6.0f} s  {row.url}".rstrip())


@command.command(short_help="Print the log of a job or service.")
@click.argument("name")
@_workdir
@click.option("-f", "--follow", is_flag=True, help="Go on until it ends.")
@click.option("--tail", type=click.IntRange(min=1), help="Only the last so many lines of each pod.")
def logs(name: str, workdir: Path, follow: bool, tail: int | None) -> None:
    """Print the log of the job or service NAME, pod by pod."""
    from tunesmith.clusters.local import LocalCluster
    from tunesmith.local.inventory import pods_of

    folder = _cluster(workdir)
    pods = pods_of(folder, name)
    if not pods:
        raise BadInput(f"nothing named {name} has pods in {workdir}. See: tunesmith local list", "no-such-object")
    cluster = LocalCluster(folder)
    for pod in pods:
        for line in cluster.logs("default", pod, follow=follow, tail=tail):
            click.echo(f"{pod}: {line}" if len(pods) > 1 else line)


@command.command(short_help="End a job or service, or all of them.")
@click.argument("name", required=False)
@_workdir
@click.option("--all", "everything", is_flag=True, help="End everything in the WORKDIR.")
def delete(name: str | None, workdir: Path, everything: bool) -> None:
    """End the job or service NAME and its processes."""
    from tunesmith.local.inventory import delete as end

    if bool(name) == everything:
        raise BadInput("name one job or service, or write --all.", "nothing-named")
    ended = end(_cluster(workdir), name)
    if not ended:
        raise (
            BadInput(f"nothing named {name} is in {workdir}. See: tunesmith local list", "no-such-object")
            if name
            else SystemExit(0)
        )
    for one in ended:
        click.echo(f"deleted {one.kind} {one.name}")


@command.command(short_help="Remove the artifacts of old runs.")
@_workdir
@click.option(
    "--keep", type=click.IntRange(min=0), default=1, show_default=True, help="How many of the newest to keep."
)
def prune(workdir: Path, keep: int) -> None:
    """Remove the artifacts and records of all but the newest runs; checkpoints and converted base models stay."""
    import shutil

    from tunesmith.clusters.local import LocalCluster
    from tunesmith.resources import INFERENCESERVICE

    _cluster(workdir)
    served = [str(one["spec"]) for one in LocalCluster(workdir / "cluster").list(INFERENCESERVICE, "default")]
    runs = sorted(
        (folder for folder in (workdir / "runs").iterdir() if folder.is_dir()), key=lambda f: f.stat().st_mtime
    )
    before = shutil.disk_usage(workdir).free
    for run in runs[: len(runs) - keep]:
        if any(run.name in spec for spec in served):
            click.echo(f"kept {run.name}, whose model is being served")
            continue
        shutil.rmtree(run)
        click.echo(f"removed {run.name}")
    click.echo(f"{max(0, shutil.disk_usage(workdir).free - before) / 1e9:.1f} GB freed")


def _cluster(workdir: Path) -> Path:
    folder = workdir / "cluster"
    if not folder.is_dir():
        raise BadInput(f"--workdir {workdir}: no pipeline was run there. Name the WORKDIR of a run.", "no-such-workdir")
    return folder
