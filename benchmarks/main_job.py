"""Times the main job: `tunesmith run llm_finetune`, twice, with the peak memory of all its processes.

    python benchmarks/main_job.py [--install] [--json FILE]

With --install a new virtual environment is made first, and installing is timed apart. Memory is the sum of the
proportional set sizes (PSS) of every process that the run starts, jobs and model server included, looked at twice a
second. Times depend on what else the machine does: nothing here is a test.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOOK_SECONDS = 0.5


def main() -> None:
    """Measure, and print a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true", help="install into a new environment first")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="passed on to tunesmith run")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    figures: dict[str, Any] = {"cores": os.cpu_count()}
    with tempfile.TemporaryDirectory(prefix="tunesmith-main-job-") as folder:
        python = sys.executable
        if options.install:
            python, figures["install_s"] = install(Path(folder) / "venv")
        figures["help_s"] = help_seconds(python)
        for name, extra in (("first", []), ("second", ["--keep-serving"])):
            figures[name] = run(python, Path(folder), options.settings, extra)
    show(figures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def install(place: Path) -> tuple[str, float]:
    """A new environment with tunesmith[local], and the seconds that it took."""
    started = time.monotonic()
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    subprocess.run([place / "bin" / "pip", "install", "--quiet", f"{ROOT}[local]"], check=True)
    return str(place / "bin" / "python"), round(time.monotonic() - started, 1)


def help_seconds(python: str) -> float:
    """Median of nine starts of `tunesmith --help`."""
    times = []
    for _ in range(9):
        started = time.monotonic()
        subprocess.run([Path(python).parent / "tunesmith", "--help"], check=True, stdout=subprocess.DEVNULL)
        times.append(time.monotonic() - started)
    return round(statistics.median(times), 3)


def run(python: str, folder: Path, settings: list[str], extra: list[str]) -> dict[str, Any]:
    """One run: seconds in all and by step, peak memory, losses, and one question to the model if it still serves."""
    workdir, summary_file = folder / "work", folder / "summary.json"
    command = [Path(python).parent / "tunesmith", "run", "--workdir", workdir, "--json", summary_file, *extra]
    command += [part for setting in settings for part in ("--set", setting)]
    started, peak = time.monotonic(), 0
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        peak = max(peak, memory_bytes(str(workdir)))
        time.sleep(LOOK_SECONDS)
    seconds = time.monotonic() - started
    summary = json.loads(summary_file.read_text())
    figures = {
        "status": summary["status"],
        "seconds": round(seconds, 1),
        "steps": {step["name"]: step["seconds"] for step in summary["steps"]},
        "peak_gib": round(peak / 2**30, 2),
        "eval_loss_base": summary["metrics"].get("eval_loss_base"),
        "eval_loss": summary["metrics"].get("eval_loss"),
        "cost": summary["cost"],
    }
    if summary.get("serving_url"):
        figures["answer"] = ask(summary["serving_url"])
        subprocess.run(
            [Path(python).parent / "tunesmith", "local", "delete", "--all", "--workdir", workdir], check=True
        )
    return figures


def memory_bytes(mark: str) -> int:
    """Proportional set size of every process that has ``mark`` in its command line or environment."""
    total = 0
    for place in Path("/proc").glob("[0-9]*"):
        try:
            named = (place / "cmdline").read_bytes() + (place / "environ").read_bytes()
            if mark.encode() in named:
                rollup = (place / "smaps_rollup").read_text()
                total += 1024 * int(next(line for line in rollup.splitlines() if line.startswith("Pss:")).split()[1])
        except (OSError, StopIteration):
            continue
    return total


def ask(url: str) -> str:
    """One answer over the OpenAI API."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=60) as reply:
        model = json.loads(reply.read())["data"][0]["id"]
    body = {"model": model, "messages": [{"role": "user", "content": "What does the Python function len do?"}]}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps({**body, "max_tokens": 24}).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        return str(json.loads(reply.read())["choices"][0]["message"]["content"])


def show(figures: dict[str, Any]) -> None:
    """The figures as a table."""
    if "install_s" in figures:
        print(f"{'install':<24}{figures['install_s']:>10.1f} s")
    print(f"{'tunesmith --help':<24}{figures['help_s']:>10.3f} s (median of 9)")
    for name in ("first", "second"):
        one = figures[name]
        base, tuned = one["eval_loss_base"], one["eval_loss"]
        change = f"{base:.3f} -> {tuned:.3f} ({100 * (tuned / base - 1):+.1f} %)" if base and tuned else "not measured"
        print(
            f"{name + ' run':<24}{one['seconds']:>10.1f} s   {one['status']}, peak {one['peak_gib']} GiB, loss {change}"
        )
        for step, seconds in one["steps"].items():
            print(f"  {step:<22}{seconds:>10.1f} s")
        if "answer" in one:
            print(f"  it answers: {one['answer']!r}")


if __name__ == "__main__":
    main()
