"""The report's step: read the run's records, render, write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tunesmith.launch.progress import say
from tunesmith.lineage.digest import digest_text
from tunesmith.report import render
from tunesmith.tasks.step import Step


def write_report(this: Step, pipeline_name: str, status: Any, report: Any, summary: Any) -> None:
    """Render the run's report and write both artifacts.

    Args:
        this: the step; its record will name every record of the run.
        pipeline_name: for the title.
        status: KFP's final status of the run's tasks; KFP knows of failures that left no record.
        report: output artifact for HTML.
        summary: output artifact for Markdown.
    """
    this.prev |= {digest_text(text) for _, text in this.store.records()}
    state = str(getattr(status, "state", "") or "")
    rendered = render(this.place.root, pipeline=pipeline_name, state="FAILED" if state == "FAILED" else None)
    for artifact, text in ((report, rendered.html), (summary, rendered.markdown)):
        Path(artifact.path).parent.mkdir(parents=True, exist_ok=True)
        Path(artifact.path).write_text(text, encoding="utf-8")
    this.leave("summary.json", rendered.summary)
    say(f"report: {report.path}")
