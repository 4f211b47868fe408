"""The process that runs a pipeline with kfp.local; started by `tunesmith.targets.local.run`, never imported by it.

kfp.local leaves the component's process running when it is interrupted and tells nobody why a task failed. So it runs
in a process group of its own, which the parent ends, and which ends itself when the parent is gone.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from tunesmith.launch import lifeline


def main(request_file: str) -> int:
    """Run the pipeline that ``request_file`` describes; 0 when every step succeeded."""
    lifeline.hold(group=True)  # jobs live on when the command is killed; steps that nobody follows do not
    os.environ[lifeline.VARIABLE] = lifeline.mine()  # for the steps
    request: dict[str, Any] = json.loads(Path(request_file).read_text(encoding="utf-8"))
    warnings.filterwarnings("ignore")
    from kfp import local

    from tunesmith.targets.local.loading import load

    local.init(
        runner=local.SubprocessRunner(use_venv=False),
        pipeline_root=request["pipeline_root"],
        # No workspace_root: kfp.local deletes that folder after the run, even one that the user named.
        raise_on_error=True,
        enable_caching=False,
    )
    pipeline = load(request["pipeline"])
    try:
        pipeline(**request["arguments"])
    except RuntimeError as error:  # kfp.local's own sentence; the step's reason is in its record
        print(f"[engine] {error}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
