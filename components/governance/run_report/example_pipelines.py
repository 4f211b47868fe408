"""A report of the run, also when a step failed."""

from kfp import dsl

from tunesmith.components.data.prepare_instructions import prepare_instructions
from tunesmith.components.governance.run_report import run_report


@dsl.pipeline(name="reported")
def reported():
    """The report is the exit task: it runs after all other steps, whatever became of them."""
    with dsl.ExitHandler(run_report(pipeline_name="reported")):
        prepare_instructions()
