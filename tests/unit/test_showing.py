"""What a run looks like in a terminal: text of others stays text."""

import pytest

from tunesmith.cli.showing import escape, sparkline
from tunesmith.targets.local.run import RunView


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param("[red]danger[/red]", id="rich markup"),
        pytest.param("[/]", id="a closing tag without an opening one"),
        pytest.param("\x1b]0;owned\x07", id="a terminal's title"),
        pytest.param("\x1b[2J", id="a cleared screen"),
        pytest.param("a\rb", id="an overwritten line"),
    ],
)
def test_text_of_others_is_shown_as_text(hostile):
    from rich.console import Console

    console = Console(width=60, force_terminal=True, color_system=None)
    with console.capture() as shown:
        console.print(escape(hostile))
    assert not set("\x1b\x07\r") & set(shown.get())
    assert all(word in shown.get() for word in hostile.split() if word.isprintable())


def test_a_sparkline_shows_the_course_of_many_values_in_few_characters():
    assert sparkline([float(100 - n) for n in range(100)], width=8) == "█▇▆▅▄▃▂▁"
    assert sparkline([1.0]) == ""


def test_a_view_follows_a_steps_events():
    view = RunView()
    for event in (
        {"event": "started", "root": "/r", "time": 1.0},
        {"event": "created", "kind": "PyTorchJob", "name": "j", "attempt": 1},
        {"event": "metric", "step": 3, "loss": 2.5},
        {"event": "something-new"},
    ):
        view.apply({"task": "train", **event})
    assert (view.root, view.steps["train"].note) == ("/r", "step 3, loss 2.500")
    assert view.unfinished is view.steps["train"]
    ended = {"state": "FAILED", "cost": {}, "metrics": {}, "failure": {"message": "x"}, "exit_code": 2, "time": 4.0}
    view.apply({"task": "train", "event": "finished", **ended})
    assert view.unfinished is None
    assert view.failed is view.steps["train"]
    assert view.failed.seconds(now=99.0) == 3.0
