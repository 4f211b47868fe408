"""``tunesmith lineage``."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import click


@click.group(name="lineage", short_help="Check the records that every step of a run leaves.")
def command() -> None:
    """Check the records that every step of a run leaves."""


@command.command(short_help="Recompute every digest of a run, or of all runs of a WORKDIR.")
@click.argument("workdir", type=click.Path(exists=True, file_okay=False, path_type=Path), default=Path(".tunesmith"))
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def verify(workdir: Path, as_json: bool) -> None:
    """Recompute every digest below WORKDIR (default .tunesmith) and compare it with the records of the steps.

    Exit code 0 if nothing was changed, 1 if a byte differs or something is missing.
    """
    from tunesmith.lineage.verify import verify as check

    found = check(workdir)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found), indent=2, default=str))
    else:
        for problem in found.problems:
            click.echo(str(problem))
        click.echo(
            f"{found.records} records, {found.artifacts} artifacts, {found.bytes / 1e6:,.1f} MB: "
            + (f"{len(found.problems)} problems" if found.problems else "all as recorded")
        )
    sys.exit(1 if found.problems else 0)
