"""Batch engine on Spark: from the inputs of batch tasks to final segment files.

Owns cancellation, the scratch folder and the translation of errors; `batch_run` executes a request.
Spark's workers must reach folders of this host under the same paths.

Invariants: a call changes only its output folder and its scratch folder, and deletes the scratch
folder. A result lists all files in the output folder, and these are durable.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.core.cleanup import CleanupSteps
from penstock.core.errors import (
    CorruptData,
    Dependency,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from penstock.indexing.batch.batch_engine import (
    BatchRequest,
    BatchResult,
    EngineProgress,
)
from penstock.indexing.engine import (
    EngineFailure,
    EngineUnavailable,
)
from penstock.spark.batch.batch_run import BatchRun, BatchSessions
from penstock.spark.batch.final_files import is_remote
from penstock.spark.batch.options import SparkBatchOptions
from penstock.spark.connect.running_calls import RunningCall
from penstock.spark.connect.spark_sessions import SparkSessions
from penstock.spark.tables import TableSource
from penstock.spark.transforms.transform_errors import translate_transform_errors


class SparkBatchEngine:
    """`BatchEngine` on Spark; thread-safe, with several calls at once.

    A mutex guards two tables. `cancel` looks up the calls of a task from another thread while their
    own threads are blocked; and a task may be cancelled just before its call.

    Args:
        sessions: Provider of Spark sessions; the engine uses a session of its own, or that of
            these sessions if they have `ENGINE_CONF`.
        options: Sizes and permissions.
        tables: The visible files, for queries; None: queries are refused.
    """

    def __init__(
        self,
        sessions: SparkSessions,
        options: SparkBatchOptions | None = None,
        tables: TableSource | None = None,
    ) -> None:
        self._options = options or SparkBatchOptions()
        self._sessions = BatchSessions(sessions, tables)
        self._mutex = threading.Lock()
        self._running: dict[str, list[RunningCall]] = {}
        self._cancelled: set[str] = set()

    def write(self, request: BatchRequest, progress: EngineProgress | None = None) -> BatchResult:
        """Write the input's rows as final segment files; see `BatchEngine.write`.

        Raises:
            EngineUnavailable: Spark or a store is unavailable; retry with another folder.
            EngineLost: Subclass of it: Spark crashed during this work.
            EngineFailure: The request fails permanently, or was cancelled.
        """
        folder = _local_path(request.output_folder)
        scratch = self._scratch(folder)
        with self._registered(request.task_id) as running:
            try:
                with translate_transform_errors(request.schema):
                    return BatchRun(
                        self._sessions, self._options, request, running, folder, scratch, progress
                    ).run()
            except (InvalidRequest, NotFound, CorruptData) as error:
                raise EngineFailure(str(error)) from error
            except (EngineFailure, EngineUnavailable) as error:  # narrow: translates
                if running.stopped:
                    raise EngineFailure(running.stopped) from error
                raise
            except Unavailable as error:
                raise EngineUnavailable(str(error), dependency=error.dependency) from error
            except OSError as error:
                # Only for the scratch folder: readers of inputs translate their own errors.
                reason = f"{scratch} cannot be written ({error.strerror or error})"
                raise EngineUnavailable(
                    f"{reason}: free its disk", dependency=Dependency.DISK
                ) from error
            finally:
                shutil.rmtree(scratch, ignore_errors=True)

    def cancel(self, task_id: str) -> None:
        """End current and later calls of a task; see `BatchEngine.cancel`."""
        with self._mutex:
            self._cancelled.add(task_id)
            found = list(self._running.get(task_id, ()))
        steps = CleanupSteps()
        for running in found:
            steps.take(running.stop, _cancelled(task_id))
        steps.finish()

    def close(self) -> None:
        """End the Spark sessions."""
        self._sessions.close()

    def _scratch(self, folder: str) -> Path:
        name = f".scratch-{uuid.uuid4().hex}"
        if self._options.scratch_folder is not None:
            return Path(self._options.scratch_folder) / name
        return Path(tempfile.gettempdir() if is_remote(folder) else folder) / name

    @contextlib.contextmanager
    def _registered(self, task_id: str) -> Iterator[RunningCall]:
        running = RunningCall()
        with self._mutex:
            if task_id in self._cancelled:
                raise EngineFailure(_cancelled(task_id))
            self._running.setdefault(task_id, []).append(running)
        try:
            yield running
        finally:
            with self._mutex:
                self._running[task_id].remove(running)
                if not self._running[task_id]:
                    del self._running[task_id]
            running.end()


def _cancelled(task_id: str) -> str:
    return f"the work of task {task_id} was cancelled"


def _local_path(folder: str) -> str:
    """Return the local path of a file URL or path; return other URLs unchanged.

    Raises:
        EngineFailure: The folder is neither.
    """
    if folder.startswith("file:"):
        folder = unquote(urlsplit(folder).path)
    if not folder.startswith("/") and "://" not in folder:
        raise EngineFailure(f"output folder {folder!r} is neither an absolute path nor a URL")
    return folder.rstrip("/")
