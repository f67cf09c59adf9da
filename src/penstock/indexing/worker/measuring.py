"""How much the folders of running tasks hold: walked on a lane, one round at a time.

Belongs to the worker's mailbox thread, which must not wait for a disk with very many files. What a
folder's size means for its task is `running`'s business. Invariants:

- a round begins only when the one before it has ended;
- a size is told only of a task that still runs: not of one that ended meanwhile, nor of another
  one that came under its id.
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
        calls: Brings the walks to a lane, and the sizes back.
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
        """Measure the tasks' folders, unless the round before still runs."""
        if self._busy:
            return
        self._busy = True
        # The lane gets paths alone: the tasks are the mailbox's.
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
        _log.warning("the folders of the tasks cannot be measured: %s", error)

    def _size(self, path: str) -> int | None:
        """Return how many bytes a folder holds, None if it cannot be seen. On the lane."""
        try:
            return sum(_sizes(self._fs, path))
        except PenstockError as error:
            _log.warning("the task folder %s cannot be measured: %s", path, error)
            return None


def _sizes(fs: FileSystem, path: str) -> Iterator[int]:
    # Files come and go: one that is gone holds nothing, and says nothing of the others.
    with suppress(NotFound):
        found = fs.stat(path)
        if not found.is_folder:
            yield found.size
            return
        for name in fs.listdir(path):
            yield from _sizes(fs, f"{path}/{name}")
