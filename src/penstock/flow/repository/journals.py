"""The journals of a repository and their snapshots: one behind the other, each in its folder.

Owns: which journal is written, which ones a start must read, and when old ones may go. Does not own
the records (`records`), nor who may call when (`committing`).

    journals/<generation>/    commits; the next generation goes on where it ends
    snapshots/<generation>/   the state when this generation began, in pieces; the last one says so

Invariants:

- A snapshot counts when its last piece is durable; only then the generations before its own go, so
  that a start finds the one with the snapshot's number, or the first.
- Commits have consecutive numbers over all generations: where one is missing, the rest was never
  durable, or there is damage.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from penstock.core.errors import PenstockError
from penstock.core.packing import pack
from penstock.flow.repository.records import SnapshotPart
from penstock.storage.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.core.clock import Clock
    from penstock.flow.repository.state import State
    from penstock.storage.filesystem import FileSystem

FIRST_GENERATION: Final = 1
_DIGITS: Final = 12


def journal_folder(folder: str, generation: int) -> str:
    """Return the folder of a generation's journal."""
    return f"{folder}/journals/{generation:0{_DIGITS}d}"


def snapshot_folder(folder: str, generation: int) -> str:
    """Return the folder of the snapshot that a generation begins with."""
    return f"{folder}/snapshots/{generation:0{_DIGITS}d}"


def generations_in(fs: FileSystem, folder: str) -> list[int]:
    """Return the numbers of the folders that hold a file, ascending."""
    fs.mkdir(folder)
    return sorted(
        int(name)
        for name in fs.listdir(folder)
        if name.isdecimal() and any(one.endswith(".log") for one in fs.listdir(f"{folder}/{name}"))
    )


class Journals:
    """The journals that a start would read now; the newest one is written.

    Calls are one at a time, but for `create_next`, `write_snapshot` and what `begin_sync` gives,
    which touch nothing that the others do; and nothing runs beside `drop_old` and `close` that
    fsyncs.

    Args:
        folder: Of the repository.
        fs: The file system.
        clock: For the times in the files.
        journals: By generation, those that a start would read.
        snapshot_number: Of the last commit in the snapshot that is there; 0: none is.
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
        """Return the size of what a start would replay."""
        return self._old_bytes + self._current.size_bytes

    def append(self, record: bytes) -> None:
        """Append a commit; `Unavailable`: nothing was appended."""
        self._current.append((record,))

    def begin_sync(self) -> Callable[[], None]:
        """Return what makes durable what was appended up to now, older generations first."""
        finishing = [one.begin_sync() for one in self._journals.values() if one.unsynced]

        def finish_sync() -> None:
            for finish in finishing:
                finish()

        return finish_sync

    def create_next(self) -> None:
        """Make the next generation's journal, durably and empty.

        Raises:
            Unavailable: Full disk or I/O error.
        """
        folder = journal_folder(self._folder, self._newest + 1)
        journal = Journal.open(folder, fs=self._fs, clock=self._clock)
        journal.compact(b"")
        self._next = journal

    def switch(self) -> None:
        """Write to the generation that `create_next` made."""
        assert self._next is not None
        self._journals[self._newest + 1] = self._next
        self._old_bytes = self.size_bytes
        self._newest += 1
        self._current, self._next = self._next, None

    def write_snapshot(
        self, state: State, flowfiles_per_part: int, before_end: Callable[[], None]
    ) -> None:
        """Write the state at the beginning of the newest generation, durably.

        Args:
            state: A copy that nobody changes.
            flowfiles_per_part: So many are encoded in one go.
            before_end: Makes durable what the state refers to.

        Raises:
            Unavailable: Full disk or I/O error; the journals go on without it.
        """
        folder = snapshot_folder(self._folder, self._newest)
        try:
            snapshot = Journal.open(folder, fs=self._fs, clock=self._clock)
            snapshot.compact(pack(state.head()))
            try:
                for part in state.parts(flowfiles_per_part):
                    snapshot.append((pack(part),))
                # The pieces are durable before the end says that they are all there.
                snapshot.sync()
                before_end()
                snapshot.append((pack(SnapshotPart(last=True)),))
                snapshot.sync()
            finally:
                snapshot.close()
        except BaseException:
            with suppress(PenstockError):  # a full disk needs the room
                self._remove(folder)
            raise
        self.snapshot_number = state.number
        self.snapshot_bytes = snapshot.size_bytes

    def drop_old(self) -> None:
        """Delete what the newest generation's snapshot stands for. What cannot be goes later."""
        for generation in [one for one in self._journals if one < self._newest]:
            self._journals.pop(generation).close()
        self._old_bytes = 0
        self.delete_before(self._newest)

    def delete_before(self, generation: int) -> None:
        """Delete the folders of earlier generations, as far as they can be deleted."""
        for kind in ("snapshots", "journals"):
            parent = f"{self._folder}/{kind}"
            with suppress(PenstockError):
                for name in self._fs.listdir(parent):
                    if name.isdecimal() and int(name) < generation:
                        self._remove(f"{parent}/{name}")

    def close(self) -> None:
        """Let go of the files, without syncing."""
        for journal in self._journals.values():
            journal.close()

    def __iter__(self) -> Iterator[Journal]:
        return iter(self._journals.values())

    def _remove(self, folder: str) -> None:
        names = self._fs.listdir(folder)
        for name in names:
            if not name.endswith(".bad"):
                self._fs.unlink(f"{folder}/{name}")
        if not any(name.endswith(".bad") for name in names):
            self._fs.rmdir(folder)
