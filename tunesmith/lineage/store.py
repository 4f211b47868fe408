"""Where the records of a run live: ``<run root>/tunesmith/``, on any file system that fsspec knows.

Beside a step's records, a step may leave small JSON files there (a loss curve, sample answers) for the report.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import fsspec

from tunesmith.errors import BadInput

FOLDER = "tunesmith"
_RECORD = re.compile(r"(?P<identity>[0-9a-f]+)\.(?P<attempt>\d+)\.json")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class Place:
    """Where an output artifact stands in its run: the run's root, the step's task, and what names this execution."""

    root: str
    task: str
    key: str


def place_of(uri: str, environment: Mapping[str, str] | None = None) -> Place:
    """Read run and task from the URI that KFP gave to an output artifact; it holds them on every target.

    Kubeflow: ``<scheme>://<bucket>/<root>/<pipeline>/<run id>/<task>/<uuid>/<name>``; Vertex AI and kfp.local:
    ``<root>/<run>/<task>/<name>``. The key names this execution of the task: the URI itself, but on a laptop the run's
    folder in it is replaced by ``TUNESMITH_RUN_KEY``, which outlives the process, so that a run that is started again
    finds its jobs.
    """
    environment = os.environ if environment is None else environment
    parts = uri.rstrip("/").split("/")
    if len(parts) < 4:
        raise ValueError(f"{uri!r} is not the URI of an output artifact: a run and a task are missing in it")
    levels = 3 if _UUID.fullmatch(parts[-2]) else 2
    root, task = "/".join(parts[:-levels]), parts[-levels]
    pipeline_root = environment.get("TUNESMITH_PIPELINE_ROOT", "").rstrip("/")
    if pipeline_root and uri.startswith(f"{pipeline_root}/"):
        # Loops and sub-pipelines nest folders between the run and the task: the run is the first one.
        inside = uri.removeprefix(f"{pipeline_root}/").split("/")
        root = f"{pipeline_root}/{inside[0]}"
    run_key = environment.get("TUNESMITH_RUN_KEY")
    key = f"{run_key}{uri.removeprefix(root)}" if run_key else uri
    return Place(root, task, key)


class Store:
    """The folder of records below one run's root.

    Raises:
        BadInput: the root is on storage that fsspec does not know here.
    """

    def __init__(self, root: str | Path):
        self.root = str(root).rstrip("/")
        try:
            if "://" in self.root:
                self._fs, self._folder = fsspec.core.url_to_fs(f"{self.root}/{FOLDER}")
            else:  # a path of this machine as it is: fsspec would take '::' in it for a chain of file systems
                self._fs, self._folder = fsspec.filesystem("file"), str(Path(f"{self.root}/{FOLDER}").absolute())
        except (ValueError, ImportError) as error:
            raise BadInput(
                f"records cannot be written to {self.root}: {error}. Install its package (s3fs, gcsfs), or "
                "use a pipeline root that fsspec knows; minio:// is not in this version.",
                "unknown-storage",
            ) from None

    def write(self, path: str, text: str) -> str:
        """Write a text to ``path`` below the folder, whole or not at all, and return its URI."""
        target = f"{self._folder}/{path}"
        self._fs.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
        if self._is_local:
            partial = f"{target}.partial"
            Path(partial).write_text(text, encoding="utf-8")
            os.replace(partial, target)
        else:  # object stores show an object only when it is whole
            self._fs.pipe_file(target, text.encode())
        return f"{self.root}/{FOLDER}/{path}"

    def read(self, path: str) -> str:
        """The text at ``path``. Raises FileNotFoundError."""
        return str(self._fs.cat_file(f"{self._folder}/{path}").decode("utf-8"))

    def paths(self) -> list[str]:
        """All paths below the folder, sorted."""
        if not self._fs.exists(self._folder):
            return []
        found = self._fs.find(self._folder)
        return sorted(path[len(self._folder.rstrip("/")) + 1 :] for path in found)

    def record_paths(self) -> list[str]:
        """The paths of the records, sorted."""
        return [path for path in self.paths() if _RECORD.fullmatch(path.rsplit("/", 1)[-1])]

    def records(self) -> Iterator[tuple[str, str]]:
        """Path and text of each record, by path."""
        for path in self.record_paths():
            yield path, self.read(path)

    def of_identity(self, task: str, identity: str) -> list[str]:
        """Texts of the records of one execution of a task: in this run and, on a laptop, in those it goes on."""
        texts = [self.read(path) for path in self.paths() if path.startswith(f"{task}/{identity}.")]
        runs = os.environ.get("TUNESMITH_PIPELINE_ROOT")
        if runs and self._is_local:
            for file in sorted(Path(runs).glob(f"*/{FOLDER}/{task}/{identity}.*.json")):
                if not file.is_relative_to(self.root):
                    texts.append(file.read_text(encoding="utf-8"))
        return texts

    @property
    def _is_local(self) -> bool:
        protocol = self._fs.protocol
        return "file" in ([protocol] if isinstance(protocol, str) else list(protocol))
