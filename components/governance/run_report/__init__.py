"""One page about a whole run."""

from tunesmith.components.governance.run_report.component import run_report

__all__ = ["run_report"]
