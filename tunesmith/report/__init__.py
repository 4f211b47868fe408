"""The report of a run: one HTML file for people, Markdown for the KFP UI, and a summary for programs."""

from tunesmith.report.render import Rendered, render
from tunesmith.report.summary import SCHEMA, summarize

__all__ = ["SCHEMA", "Rendered", "render", "summarize"]
