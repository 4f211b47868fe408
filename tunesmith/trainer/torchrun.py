"""torchrun that ends with its worker's exit code: ``python -m tunesmith.trainer.torchrun -m tunesmith.trainer ...``.

torchrun itself ends with 1 whatever happened. A PyTorchJob with restartPolicy ExitCode then takes a lost peer, or a
SIGTERM that was answered with a checkpoint, for a failure that no other attempt can mend.
"""

from __future__ import annotations

import sys


def main(arguments: list[str]) -> int:
    """Run torchrun; returns 0, the code of the worker that failed first, or 128 + the signal that ended it."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    try:
        torchrun(arguments)
    except SignalException as error:
        return 128 + int(error.sigval)
    except ChildFailedError as error:
        code = int(error.get_first_failure()[1].exitcode)
        return 128 - code if code < 0 else code  # a worker killed by signal n is reported as -n
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
