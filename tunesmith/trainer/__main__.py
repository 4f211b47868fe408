"""``python -m tunesmith.trainer``: fine-tune the model and the data that the environment names."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any, get_args, get_origin

import click

from tunesmith.errors import BadInput
from tunesmith.trainer.environment import Rank, join, quieten, termination_log
from tunesmith.trainer.result import EXIT_STOPPED, Failure, failure_of, write_failure
from tunesmith.trainer.settings import TrainSettings, parse_settings
from tunesmith.trainer.stopping import StopSignal

_HELP = """Fine-tune a language model on conversations.

The environment names inputs and outputs: TUNESMITH_INPUT_MODEL, a folder with a Hugging Face model in safetensors;
TUNESMITH_INPUT_TRAIN, a JSONL file of {"messages": [...]}; TUNESMITH_OUTPUT_MODEL, the folder to write;
TUNESMITH_CHECKPOINTS, the folder for checkpoints, from which a later run resumes (optional);
TUNESMITH_TERMINATION_LOG, the file for the result (default /dev/termination-log).

Start it once for each rank with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set, or as: torchrun -m tunesmith.trainer
"""


def _option(name: str, field: Any) -> click.Option:
    """One command line option for one field of the settings; pydantic checks the values."""
    flag = "--" + name.replace("_", "-")
    shared = {"default": field.default, "show_default": field.default is not None, "help": field.description}
    kinds = [kind for kind in (get_args(field.annotation) or [field.annotation]) if kind is not type(None)]
    if kinds == [bool]:
        return click.Option([f"{flag}/--no-{flag[2:]}"], **shared)
    if all(isinstance(kind, str) for kind in kinds) and get_origin(field.annotation):
        return click.Option([flag], metavar="|".join(kinds), **shared)
    return click.Option([flag], metavar={int: "N", float: "X"}.get(kinds[0], "TEXT"), type=str, **shared)


def _collect(**values: Any) -> TrainSettings:
    return parse_settings({name: value for name, value in values.items() if value is not None})


_COMMAND = click.Command(
    "python -m tunesmith.trainer",
    help=_HELP,
    params=[_option(name, field) for name, field in TrainSettings.model_fields.items()],
    callback=_collect,
    context_settings={"max_content_width": 110},
)


def main(arguments: list[str] | None = None) -> int:
    """Run; returns the exit code. Every way out but SIGTERM's leaves a termination message."""
    place = Rank()
    try:
        settings = _COMMAND.main(arguments, standalone_mode=False)
        if not isinstance(settings, TrainSettings):  # --help was printed
            return 0
        stop = StopSignal()
        place = join(os.environ)
        quieten(os.environ)
        from tunesmith.trainer.run import run

        return EXIT_STOPPED if run(settings, place, stop) is None else 0
    except click.ClickException as error:
        return _fail(Failure("user", "BadArguments", error.format_message()), place)
    except BadInput as error:
        return _fail(failure_of(error), place)
    except Exception as error:
        traceback.print_exc()
        return _fail(failure_of(error), place)


def _fail(failure: Failure, place: Rank) -> int:
    write_failure(termination_log(os.environ), failure)
    if place.local_rank == 0 or failure.fault != "user":
        print(f"error: {failure.message}", file=sys.stderr, flush=True)
    return failure.exit_code


def _exit(code: int) -> None:
    """End at once: with a lost peer, the process group's own end would wait for it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _exit(main())
