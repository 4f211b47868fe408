"""Makes the environment .venv: checks Python and disk space first, installs only what setup.cfg changed.

Runs under any Python 3 with nothing installed, because it is what installs.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
OLDEST = (3, 11, 4)  # the first whose tarfile refuses hostile paths
NEEDED_BYTES = 10 * 10**9  # the CUDA build of torch alone makes 6 GB; pip unpacks beside it


def problem(version: tuple[int, ...], free_bytes: int) -> str | None:
    """Why the environment cannot be made, as a sentence with what to do; None if it can."""
    if version < OLDEST:
        found, wanted = (".".join(map(str, one)) for one in (version, OLDEST))
        return (
            f"Python {found} is too old, {wanted} is needed. Name a newer one, for example: make PYTHON=python3.12 run"
        )
    if free_bytes < NEEDED_BYTES:
        free, needed = f"{free_bytes / 1e9:.1f} GB", f"{NEEDED_BYTES / 1e9:.0f} GB"
        return f"{free} are free on the disk of {ROOT}, and installing needs {needed}. Free some, or use another disk."
    return None


def is_current(extras: str, venv: Path = VENV) -> bool:
    """Whether these extras, or more, are installed as setup.cfg has them now."""
    wanted, digest = set(extras.split(",")), _digest()
    return any(
        wanted <= set(stamp.name.split("-")[1:]) and stamp.read_text() == digest for stamp in venv.glob("installed-*")
    )


def _digest() -> str:
    return hashlib.sha256((ROOT / "setup.cfg").read_bytes()).hexdigest()


def install(extras: str) -> float:
    """Make the environment if it is missing and install tunesmith with these extras; returns the seconds it took."""
    began = time.monotonic()
    if not (VENV / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--retries", "10", "-e", f".[{extras}]"], cwd=ROOT, check=True)
    VENV.joinpath("-".join(["installed", *extras.split(",")])).write_text(_digest())
    return time.monotonic() - began


def main(extras: str) -> int:
    """Make the environment current; 2 if this machine does not allow it, 1 if installing failed."""
    if is_current(extras):
        return 0
    if wrong := problem(sys.version_info[:3], shutil.disk_usage(ROOT).free):
        print(f"error: {wrong}", file=sys.stderr)
        return 2
    print(f"installing tunesmith[{extras}] into .venv (some 6 GB at first; minutes on a fast line)", flush=True)
    try:
        seconds = install(extras)
    except subprocess.CalledProcessError as error:
        doing = " ".join(map(str, error.cmd[:4]))
        print(f"error: {doing} ended with {error.returncode}; its message stands above.", file=sys.stderr)
        return 1
    print(f"installed in {seconds:.0f} s (not part of the run's time)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
