"""``tunesmith pipelines``."""

from __future__ import annotations

import json
from typing import Any

import click

from tunesmith.cli.catalogue import PIPELINES, find


@click.command(name="pipelines", short_help="List the reference pipelines, or show one with its parameters.")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(name: str | None, as_json: bool) -> None:
    """List the reference pipelines, or show NAME (also FILE.py:function) with its parameters and their defaults."""
    if name is None:
        rows: list[dict[str, Any]] = [{"name": one, "description": text} for one, (_, text) in PIPELINES.items()]
        lines = [f"{row['name']}  {row['description']}" for row in rows]
        lines.append("\nParameters of one: tunesmith pipelines NAME.   Run it: tunesmith run NAME.")
    else:
        pipeline = find(name)
        rows = [
            {"name": p.name, "type": p.type.__name__, "default": p.default, "required": p.required, "help": p.help}
            for p in pipeline.parameters.values()
        ]
        lines = [pipeline.description, ""]
        for row in rows:
            default = "required" if row["required"] else f"default {json.dumps(row['default'])}"
            lines += [f"{row['name']}  ({row['type']}, {default})", f"    {row['help']}".rstrip()]
        if rows:
            lines.append(f"\nSet one with: tunesmith run {name} --set {rows[0]['name']}=VALUE")
    click.echo(json.dumps(rows, indent=2) if as_json else "\n".join(lines))
