"""Builds a wheel, installs it into an environment of its own, and checks it there: import-linter and mypy.

In an editable install neither tool sees the packages that setup.cfg maps (``tunesmith.components = components``).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_SOURCES = ("setup.cfg", "pyproject.toml", "LICENSE", "README.md")
_PACKAGES = ("tunesmith", "components", "pipelines", "katib_experiments")


def build(folder: Path) -> Path:
    """A wheel of the tree; built from a copy, because setuptools would take up what an earlier build left."""
    source = folder / "source"
    source.mkdir(parents=True)
    for name in filter(lambda name: (ROOT / name).exists(), _SOURCES):
        shutil.copy(ROOT / name, source)
    for name in _PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", ".", "--no-deps", "--no-build-isolation", "-w", str(folder)], cwd=source, check=True)
    return next(folder.glob("*.whl"))


def install(folder: Path) -> Path:
    """An environment below ``folder`` with the wheel and this environment's dependencies; returns its Python.

    The dependencies come by a path file. It names a folder, so that this environment's own path files, with the finder
    of the editable install among them, are not read.
    """
    wheel = build(folder)
    venv.create(folder / "venv", symlinks=True, with_pip=False)
    python = folder / "venv" / "bin" / "python"
    site_packages(folder).joinpath("dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", str(wheel)], check=True)
    return python


def site_packages(folder: Path) -> Path:
    """Where the wheel's files are."""
    return next(folder.glob("venv/lib/python3*/site-packages"))


def lint_imports(python: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts of .importlinter; a package that lies in ``folder`` goes before the installed one."""
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [str(python), "-c", code, "--config", str(ROOT / ".importlinter"), "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def mypy(python: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the types of the installed package; ``folder`` takes the cache."""
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    command += ["--python-executable", str(python), "--cache-dir", str(folder / "mypy"), "-p", "tunesmith"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def main() -> int:
    """Build, install and check; 0 if both tools are content."""
    with tempfile.TemporaryDirectory(prefix="tunesmith-wheel-") as place:
        folder = Path(place)
        python = install(folder)
        empty = folder / "empty"
        empty.mkdir()
        results = [lint_imports(python, empty), mypy(python, empty)]
    for result in results:
        print(result.stdout + (result.stderr if result.returncode else ""))
    return max(result.returncode for result in results)


if __name__ == "__main__":
    sys.exit(main())
