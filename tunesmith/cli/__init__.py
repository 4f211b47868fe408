"""The command ``tunesmith``. Commands are imported when they are called, so that ``--help`` is instant."""

from __future__ import annotations

import difflib
import importlib
import sys

import click

import tunesmith

# name: (module, first line of its help). The help stands here so that listing the commands imports none of them.
_COMMANDS = {
    "run": ("tunesmith.cli.run", "Run a pipeline on this machine, from data to a served model."),
    "pipelines": ("tunesmith.cli.pipelines", "List the reference pipelines, or show one with its parameters."),
    "local": ("tunesmith.cli.local", "See and end what runs on this machine: jobs and services."),
    "lineage": ("tunesmith.cli.lineage", "Check the records that every step of a run leaves."),
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(_COMMANDS[cmd_name][0]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and (near := difflib.get_close_matches(args[0], _COMMANDS, 1, 0.5)):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in _COMMANDS.items()])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(tunesmith.__version__, prog_name="tunesmith")
def cli() -> None:
    """Fine-tune, evaluate, deploy, trace and price language models with Kubeflow Pipelines.

    Start with: tunesmith run llm_finetune
    """


def main() -> None:
    """Entry point: an error of the user's is one sentence and exit code 2, a failure of the work exit code 1."""
    from tunesmith.errors import TunesmithError

    try:
        cli(standalone_mode=True)
    except TunesmithError as error:
        click.echo(f"error: {error}  [{error.id}]", err=True)
        sys.exit(error.exit_code)
