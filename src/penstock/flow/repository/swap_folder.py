"""Folder of swap files: their names, the check at start, and the deletion of files.

Owns paths, setting aside, deleting. Does not own which files are valid (`state`), nor their bytes
(`swap.swapfile`).

Invariants:

- A file that no record mentions is never read: it is set aside as `*.unknown`. It can hold
  otherwise lost FlowFiles only if the journal was damaged; after a crash they are still in the
  journal.
- A deleted file is forgotten only once its deletion is durable, because otherwise a crash could
  bring it back as an unknown file.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from penstock.core.errors import NotFound, PenstockError, counted
from penstock.flow.repository.changes import RecoveryEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.flow.repository.state import RepositoryState
    from penstock.storage.filesystem import FileSystem

_UNKNOWN: Final = ".unknown"
_BAD: Final = ".bad"
_TEMPORARY: Final = ".tmp"


class SwapFolder:
    """Folder `swap` of a repository. It has no state.

    Args:
        fs: The file system.
        folder: Folder of the repository.
    """

    def __init__(self, fs: FileSystem, folder: str) -> None:
        self._fs = fs
        self._folder = f"{folder}/swap"

    def path(self, name: str) -> str:
        """Return the path of a file."""
        return f"{self._folder}/{name}"

    def tidy(self, state: RepositoryState) -> list[RecoveryEvent]:
        """Check the folder at start, when the state is durable.

        Raises:
            Unavailable: I/O error.
        """
        self._fs.mkdir(self._folder)
        names = self._fs.listdir(self._folder)
        events = []
        for name in names:
            state.sequences.observe_file(name)
            if name in state.files or name in state.leaving or name.endswith((_UNKNOWN, _BAD)):
                continue
            if name.endswith(_TEMPORARY):
                self._fs.unlink(self.path(name))
                continue
            self._fs.rename(self.path(name), self.path(name + _UNKNOWN))
            message = (
                f"{self.path(name)}: no record mentions this swap file, so it is set aside as "
                f"*{_UNKNOWN}; its FlowFiles are in the journal: delete the file"
            )
            events.append(RecoveryEvent("swap-file-unknown", message, 1))
        self._fs.fsync_folder(self._folder)
        for name, file in state.files.items():
            if name not in names:
                held = counted(file.left, "FlowFile")
                message = f"{self.path(name)}: is missing with {held}: restore a copy"
                events.append(RecoveryEvent("swap-file-missing", message, file.left))
        return events

    def remove(self, leaving: Mapping[str, bool]) -> bool:
        """Delete files, or keep them aside, durably; return whether all are gone.

        Args:
            leaving: Files by name; True: keep the file aside as `*.bad`.
        """
        try:
            for name, kept_aside in leaving.items():
                path = self.path(name)
                with suppress(NotFound):
                    if kept_aside:
                        self._fs.rename(path, path + _BAD)
                    else:
                        self._fs.unlink(path)
            self._fs.fsync_folder(self._folder)
        except PenstockError:
            return False
        return True
