"""Journals of a repository and their snapshots: consecutive generations, each in its folder.

Owns which journal is written, which ones recovery must read, and when old ones may be deleted. Does
not own the records (`commit_records`), nor the threads that call it (`commits`).

    journals/<generation>/    commits; the next generation continues after them
    snapshots/<generation>/   state at its start, in parts; the last part is marked

Invariants:

- A snapshot is valid when its last part is durable. Only then are earlier generations deleted, so
  that recovery finds the journal with the snapshot's generation, or the first one.
- Commits have consecutive numbers over all generations. If one is missing, the later ones were
  never durable, or there is damage.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

from penstock.core.errors import PenstockError
from penstock.core.msgpack_encoding import pack
from penstock.flow.repository.commit_records import SnapshotPart
from penstock.storage.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.core.clock import Clock
    from penstock.flow.repository.repository_state import RepositoryState
    from penstock.storage.filesystem import FileSystem

FIRST_GENERATION: Final = 1
_DIGITS: Final = 12


def journal_folder(folder: str, generation: int) -> str:
    """Return the folder of a generation's journal."""
    return f"{folder}/journals/{generation:0{_DIGITS}d}"


def snapshot_folder(folder: str, generation: int) -> str:
    """Return the folder of the snapshot at the start of a generation."""
    return f"{folder}/snapshots/{generation:0{_DIGITS}d}"


def generations_in(fs: FileSystem, folder: str) -> list[int]:
    """Return the numbers of the folders that contain a file, ascending."""
    fs.mkdir(folder)
    return sorted(
        int(name)
        for name in fs.listdir(folder)
        if name.isdecimal() and any(one.endswith(".log") for one in fs.listdir(f"{folder}/{name}"))
    )


class FlowJournals:
    """Journals that recovery would read now; the newest one is written.

    Calls must not overlap, except `create_next`, `write_snapshot` and the function that
    `begin_sync` returns, which change nothing that the others use. No fsync may run during
    `drop_old` or `close`.

    Args:
        folder: Folder of the repository.
        fs: The file system.
        clock: For the times in the files.
        journals: Journals that recovery would read, by generation.
        snapshot_number: Number of the last commit in the existing snapshot; 0 without a snapshot.
        snapshot_bytes: Its size.
    """

    def __init__(
        self,
        folder: str,
        fs: FileSystem,
        clock: Clock,
        journals: dict[int, Journal],
        snapshot_number: int,
        snapshot_bytes: int,
    ) -> None:
        self._folder = folder
        self._fs = fs
        self._clock = clock
        self._journals = journals
        self._newest = max(journals)
        self._current = journals[self._newest]
        self._next: Journal | None = None
        self._old_bytes = (
            sum(one.size_bytes for one in journals.values()) - self._current.size_bytes
        )
        self.snapshot_number = snapshot_number
        self.snapshot_bytes = snapshot_bytes

    @property
    def size_bytes(self) -> int:
        """Return the size of the files that recovery would read."""
        return self._old_bytes + self._current.size_bytes

    @property
    def current_path(self) -> str:
        """Return the path of the file that is written."""
        return self._current.path

    def append(self, record: bytes) -> None:
        """Append a commit; `Unavailable` means that nothing was appended."""
        self._current.append((record,))

    def begin_sync(self) -> Callable[[], None]:
        """Return a function that makes all records up to now durable, older generations first."""
        finishing = [one.begin_sync() for one in self._journals.values() if one.unsynced]

        def finish_sync() -> None:
            for finish in finishing:
                finish()

        return finish_sync

    def create_next(self) -> None:
        """Create the next generation's journal, empty and durable.

        Raises:
            Unavailable: Full disk or I/O error.
        """
        folder = journal_folder(self._folder, self._newest + 1)
        journal = Journal.open(folder, fs=self._fs, clock=self._clock)
        journal.compact(b"")
        self._next = journal

    def switch(self) -> None:
        """Write to the generation that `create_next` created from now on."""
        assert self._next is not None
        self._journals[self._newest + 1] = self._next
        self._old_bytes = self.size_bytes
        self._newest += 1
        self._current, self._next = self._next, None

    def write_snapshot(
        self, state: RepositoryState, flowfiles_per_part: int, before_end: Callable[[], None]
    ) -> None:
        """Write the state at the start of the newest generation, durably.

        Args:
            state: Copy of the state that no thread changes.
            flowfiles_per_part: Number of FlowFiles encoded at once.
            before_end: Makes everything durable to which the state refers.

        Raises:
            Unavailable: Full disk or I/O error; the journals are used without the snapshot.
        """
        folder = snapshot_folder(self._folder, self._newest)
        try:
            snapshot = Journal.open(folder, fs=self._fs, clock=self._clock)
            snapshot.compact(pack(state.head()))
            try:
                for part in state.parts(flowfiles_per_part):
                    snapshot.append((pack(part),))
                # All parts must be durable before the last part marks the snapshot as complete.
                snapshot.sync()
                before_end()
                snapshot.append((pack(SnapshotPart(last=True)),))
                snapshot.sync()
            finally:
                snapshot.close()
        except BaseException:
            with suppress(PenstockError):  # frees space on a full disk
                self._remove(folder)
            raise
        self.snapshot_number = state.number
        self.snapshot_bytes = snapshot.size_bytes

    def drop_old(self) -> None:
        """Delete generations before the newest snapshot.

        Files that cannot be deleted are retried later.
        """
        for generation in [one for one in self._journals if one < self._newest]:
            self._journals.pop(generation).close()
        self._old_bytes = 0
        self.delete_before(self._newest)

    def delete_before(self, generation: int) -> None:
        """Delete the folders of earlier generations that can be deleted."""
        for kind in ("snapshots", "journals"):
            parent = f"{self._folder}/{kind}"
            with suppress(PenstockError):
                for name in self._fs.listdir(parent):
                    if name.isdecimal() and int(name) < generation:
                        self._remove(f"{parent}/{name}")

    def close(self) -> None:
        """Close the files, without syncing, each one even if closing another one raises."""
        with ExitStack() as steps:
            for journal in self._journals.values():
                steps.callback(journal.close)

    def __iter__(self) -> Iterator[Journal]:
        return iter(self._journals.values())

    def _remove(self, folder: str) -> None:
        names = self._fs.listdir(folder)
        for name in names:
            if not name.endswith(".bad"):
                self._fs.unlink(f"{folder}/{name}")
        if not any(name.endswith(".bad") for name in names):
            self._fs.rmdir(folder)
