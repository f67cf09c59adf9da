"""Sizes of the folders of running tasks: measured on a lane, one round at a time.

Belongs to the worker's mailbox thread, which must not wait for a disk with very many files.
`running` handles the result. Invariants:

- a round begins only after the previous one has ended;
- a size is reported only for a task that still runs: neither for one that ended meanwhile, nor for
  another one with the same id.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.core.errors import NotFound, PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.indexing.errand import Calls
    from penstock.indexing.worker.running import RunningTask
    from penstock.storage.filesystem import FileSystem

_log = logging.getLogger(__name__)


class Measuring:
    """Measures the folders of tasks.

    Args:
        fs: The file system.
        calls: Runs the measurements on a lane, and returns the sizes as mail.
        is_running: Whether this very task still runs under the id.
    """

    def __init__(
        self, fs: FileSystem, calls: Calls, is_running: Callable[[str, RunningTask], bool]
    ) -> None:
        self._fs = fs
        self._calls = calls
        self._is_running = is_running
        self._busy = False

    def begin(self, tasks: Mapping[str, RunningTask]) -> None:
        """Measure the tasks' folders, unless the previous round still runs."""
        if self._busy:
            return
        self._busy = True
        # The lane gets only paths: the tasks belong to the mailbox.
        of_round = [(task_id, running, running.folder.path) for task_id, running in tasks.items()]
        self._calls.call(
            "measure",
            lambda: [self._size(path) for _id, _running, path in of_round],
            lambda sizes: self._tell(of_round, sizes),
            self._failed,
        )

    def _tell(self, of_round: list[tuple[str, RunningTask, str]], sizes: list[int | None]) -> None:
        self._busy = False
        for (task_id, running, _path), size_bytes in zip(of_round, sizes, strict=True):
            if size_bytes is not None and self._is_running(task_id, running):
                running.hold_to_limit(size_bytes)

    def _failed(self, error: PenstockError) -> None:
        self._busy = False
        _log.warning("cannot measure the folders of the tasks: %s", error)

    def _size(self, path: str) -> int | None:
        """Return the size of a folder in bytes, None if it cannot be read. On the lane."""
        try:
            return sum(_sizes(self._fs, path))
        except PenstockError as error:
            _log.warning("cannot measure the task folder %s: %s", path, error)
            return None


def _sizes(fs: FileSystem, path: str) -> Iterator[int]:
    # Files may be deleted meanwhile: a missing one has size 0, and does not end the round.
    with suppress(NotFound):
        found = fs.stat(path)
        if not found.is_folder:
            yield found.size
            return
        for name in fs.listdir(path):
            yield from _sizes(fs, f"{path}/{name}")
