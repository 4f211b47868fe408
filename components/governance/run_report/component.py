"""One page about a whole run."""

from kfp import dsl


@dsl.component(base_image="ghcr.io/tunesmith/launcher:0.1.0", install_kfp_package=False)
def run_report(
    pipeline_name: str,
    report: dsl.Output[dsl.HTML],
    summary: dsl.Output[dsl.Markdown],
    record: dsl.Output[dsl.Artifact],
    status: dsl.PipelineTaskFinalStatus,
):
    """Write the run's report: what ran, loss curves, answers before and after, lineage, and the cost of every step.

    For an exit handler, so that a failed run has a report too. It takes no outputs of other tasks (an exit task
    cannot); it reads the records, curves and samples that every step leaves under the run's root. The step is green
    when the report is written, whatever became of the run.

    Args:
        pipeline_name: as the report's title names it.
        report: one self-contained HTML page.
        summary: the same in short, as Markdown.
        record: the step's record; it names the records of all steps before it.
        status: filled in by KFP: how the tasks of the run ended.
    """
    from tunesmith.tasks.reporting import write_report
    from tunesmith.tasks.step import step

    with step(
        record,
        component="run_report",
        parameters={"pipeline_name": pipeline_name},
        writes={"report": report, "summary": summary},
    ) as this:
        write_report(this, pipeline_name, status, report, summary)
