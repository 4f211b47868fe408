"""Reference pages: every command with its options, and every error with its explanation."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import yaml
from pages import GENERATED

from tunesmith.cli import cli

_ROOTS = {"TunesmithError", "Problem"}


def cli_page() -> str:
    """docs/cli.md: every command, from the definitions that ``--help`` prints."""
    head = [GENERATED.format(sources="tunesmith/cli"), "# The command `tunesmith`", _text(cli.help)]
    return "\n\n".join([*head, *_commands(cli, "tunesmith")]) + "\n"


def _commands(group: click.Group, path: str) -> Iterator[str]:
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        full = f"{path} {name}"
        arguments = [one for one in command.params if isinstance(one, click.Argument)]
        subcommand = ["COMMAND"] if isinstance(command, click.Group) else []
        usage = " ".join([full, "[OPTIONS]", *(one.make_metavar(context) for one in arguments), *subcommand])
        yield f"## {full}\n\n```text\n{usage}\n```"
        yield _text(command.help)
        if options := [one for one in command.params if isinstance(one, click.Option)]:
            yield "| Option | Default | Meaning |\n|---|---|---|\n" + "\n".join(map(_option, options))
        if isinstance(command, click.Group):
            yield from _commands(command, full)


def _text(help: str | None) -> str:
    r"""A command's help as Markdown: a paragraph after ``\b`` keeps its lines."""
    blocks = inspect.cleandoc(help or "").split("\n\n")
    return "\n\n".join(f"```text\n{one[1:].strip(chr(10))}\n```" if one.startswith("\b") else one for one in blocks)


def _option(option: click.Option) -> str:
    value = "" if option.is_flag else f" {option.metavar or option.type.name.upper()}"
    names = ", ".join(f"`{name}{value}`" for name in sorted(option.opts, key=len))
    default = "" if option.is_flag or option.multiple or not _given(option.default) else f"`{option.default}`"
    return f"| {names} | {default} | {option.help or ''} |"


def _given(default: Any) -> bool:
    return isinstance(default, (str, int, float, Path)) and not isinstance(default, bool)


def error_ids(package: Path) -> dict[str, list[str]]:
    """Ids of the errors and problems that the source below ``package`` can raise, each with the files that do."""
    found: dict[str, list[str]] = {}
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in sorted(package.rglob("*.py"))}
    classes = _error_classes(trees.values())
    for file, tree in trees.items():
        mine = _imported_errors(tree, classes)
        for id in (id for node in ast.walk(tree) for id in _ids(node, mine)):
            found.setdefault(id, []).append(file.relative_to(package).as_posix())
    return {id: sorted(set(files)) for id, files in sorted(found.items())}


def _error_classes(trees: Any) -> set[str]:
    """`Problem`, `TunesmithError`, and what derives from it directly or not."""
    definitions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    known = set(_ROOTS)
    while more := {one.name for one in definitions if {ast.unparse(base) for base in one.bases} & known} - known:
        known |= more
    return known


def _imported_errors(tree: ast.Module, classes: set[str]) -> set[str]:
    """Which of the classes this file means by their names: the trainer has a BadInput of its own."""
    foreign = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and not {ast.unparse(base) for base in node.bases} & classes:
            foreign.add(node.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tunesmith.trainer"):
            foreign |= {alias.name for alias in node.names}
    foreign -= _ROOTS
    return classes - foreign


def _ids(node: ast.AST, classes: set[str]) -> Iterator[str]:
    if isinstance(node, ast.ClassDef) and node.name in classes:
        for line in node.body:
            if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "default_id":
                yield from _literal(line.value)
    elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in classes:
        place = 3 if ast.unparse(node.func).endswith("Problem") else 1
        yield from (id for one in node.args[place : place + 1] for id in _literal(one))
        yield from (id for one in node.keywords if one.arg == "id" for id in _literal(one.value))


def _literal(value: ast.expr) -> Iterator[str]:
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value


def load_errors(file: Path) -> dict[str, Any]:
    """The explanations by id."""
    loaded: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return loaded


def errors_page(errors: dict[str, Any]) -> str:
    """docs/errors.md: for every id who is at fault, when it is raised, and what to do."""
    head = [
        GENERATED.format(sources="docs/errors.yaml"),
        "# Errors",
        "Every error that tunesmith raises on purpose ends with an id in brackets. Exit code 2 means that the input "
        "cannot be used and nothing was started, or what was started is undone; 1 means that the work failed. A step's "
        "record says who is at fault: `user`, `system` or `capacity`. Only the last two are retried.",
    ]
    return "\n\n".join([*head, *(_error(id, one) for id, one in sorted(errors.items()))]) + "\n"


def _error(id: str, one: dict[str, Any]) -> str:
    where = f"\n\nRaised by: {', '.join(f'`{name}`' for name in one['components'])}." if one.get("components") else ""
    return f"## {id}\n\n**At fault:** {one['fault']}. **When:** {one['when']}\n\n**What to do:** {one['do']}{where}"
