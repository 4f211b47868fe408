"""What the documentation says is so: commands exist, options and errors are listed, code runs, links lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tunesmith.cli import cli

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/*.md", "components/**/README.md", "pipelines/**/README.md")
    for page in ROOT.glob(pattern)
)
TARGETS = set(re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def python_blocks():
    for page in PAGES:
        for number, block in enumerate(
            re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        ):
            yield pytest.param(block, id=f"{name_of(page)}:{number}")


def commands(group, path="tunesmith"):
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")


def section(page, title):
    match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert match, f"there is no section {title}"
    return match[1]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_make_target_that_a_page_names_exists(page):
    named = set(re.findall(r"(?:^\$ |^    |`)make ([a-z]+)", page.read_text(), re.MULTILINE))
    assert named <= TARGETS


def test_make_alone_prints_every_target():
    found = subprocess.run(["make", "-s"], cwd=ROOT, capture_output=True, text=True)
    assert {line.split()[1] for line in found.stdout.splitlines() if line.startswith("  make ")} == TARGETS


def test_contributors_are_told_every_target_or_how_to_list_them():
    assert "`make` alone lists every command" in (ROOT / "CONTRIBUTING.md").read_text()


@pytest.mark.parametrize(("path", "command"), [pytest.param(path, one, id=path) for path, one in commands(cli)])
def test_every_option_of_a_command_is_documented(path, command):
    text = section((ROOT / "docs" / "cli.md").read_text(), path)
    for option in (one for one in command.params if isinstance(one, click.Option)):
        for name in option.opts:
            assert re.search(rf"`{re.escape(name)}[ `]", text), name


@pytest.mark.parametrize(("path", "command"), [pytest.param(path, one, id=path) for path, one in commands(cli)])
def test_help_shows_no_mark_that_click_should_have_taken_as_layout(path, command):
    assert "\\b" not in command.get_help(click.Context(command, info_name=path))


def test_every_tunesmith_command_in_a_page_exists():
    known = {path for path, _ in commands(cli)}
    for page in PAGES:
        for line in re.findall(r"(?:^\$ |`)(tunesmith(?: [a-z]+)+)", page.read_text(), re.MULTILINE):
            words = line.split()
            assert " ".join(words[:2]) in known, f"{name_of(page)}: {line}"


def test_every_error_is_explained_and_says_what_to_do():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from reference import error_ids, load_errors
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    page, explained = (ROOT / "docs" / "errors.md").read_text(), load_errors(ROOT / "docs" / "errors.yaml")
    raised = error_ids(ROOT / "tunesmith")
    assert {"gate-closed", "pytorchjob-no-rendezvous", "launch-failed"} <= set(raised)
    assert set(raised) == set(explained)
    for id in raised:
        assert "**What to do:**" in section(page, id)


@pytest.mark.parametrize("block", python_blocks())
def test_python_block_runs(block, tmp_path):
    (tmp_path / "block.py").write_text(block)  # a file, because kfp reads the source of the functions in it
    command = [sys.executable, "-W", "ignore", "block.py"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_pages_lead_to_files_and_sections(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if anchor:
            assert re.search(rf"^## {re.escape(anchor)}$", file.read_text(), re.MULTILINE), target


def test_files_that_architecture_and_contributing_name_exist():
    for page in ("docs/architecture.md", "CONTRIBUTING.md", "AGENTS.md"):
        text = (ROOT / page).read_text()
        for name in re.findall(r"`((?:tunesmith|tests|docs|scripts|components|pipelines)/[\w./]*)`", text):
            assert (ROOT / name).exists(), f"{page}: {name}"


def test_agents_page_is_one_screen():
    assert len((ROOT / "AGENTS.md").read_text().splitlines()) <= 50
