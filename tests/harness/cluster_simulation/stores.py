"""Deep storage in a folder, with file ages by the virtual clock; it may be full."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock.core.errors import Unavailable
from penstock.segments.deep_storage import DeepStore
from penstock.storage.disk import OsAppendFile, OsFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Buffer

    from penstock.segments.deep_storage import KnownFiles, PushedFile
    from penstock.segments.segment import SegmentId
    from tests.harness.cluster_simulation.world import Process


class Files:
    """Common state of all processes: the folder, and the virtual time of each file's first sight.

    Args:
        folder: Folder of the files.
        now_s: Returns the virtual time.

    Attributes:
        full_until_s: Time until which nothing can be written.
        deleting: Called with the path, from the root, of each file before it is deleted.
    """

    def __init__(self, folder: Path, now_s: Callable[[], float]) -> None:
        self.folder = folder
        self.full_until_s = 0.0
        self._now_s = now_s
        self.inner = DeepStore(str(folder), fs=_Disk(self))
        self.inner.make_root()
        self.born_ms: dict[str, int] = {}
        self.deleting: Callable[[str], None] = lambda _path: None

    @property
    def is_full(self) -> bool:
        """Return whether nothing can be written now."""
        return self.full_until_s > self._now_s()

    def every(self) -> set[str]:
        """Return all files."""
        return {f"{top}/{name}" for top, _, names in os.walk(self.folder) for name in names}

    def note(self, now_ms: int) -> None:
        """Record the age of new files."""
        for path in self.every():
            self.born_ms.setdefault(path, now_ms)


class _Disk(OsFileSystem):
    """A disk on which, while it is full, files can be created but not written."""

    def __init__(self, files: Files) -> None:
        super().__init__()
        self._files = files

    def create(self, path: str, *, replace: bool = False) -> OsAppendFile:
        """Create an empty file."""
        made = super().create(path, replace=replace)
        return _FullFile(made) if self._files.is_full else made


class _FullFile(OsAppendFile):
    """A file on a full disk."""

    __slots__ = ("_made",)

    def __init__(self, made: OsAppendFile) -> None:
        self._made = made

    @property
    def size(self) -> int:
        """Return 0, because nothing was written."""
        return 0

    def writev(self, buffers: Sequence[Buffer]) -> int:
        """Write nothing."""
        del buffers
        raise Unavailable("no space left on device in deep storage: free space and try again")

    def close(self) -> None:
        """Close it."""
        self._made.close()


class SimDeepStore:
    """Deep storage, for one process."""

    def __init__(self, process: Process, files: Files) -> None:
        self._process = process
        self._files = files

    @property
    def is_full(self) -> bool:
        """Return whether nothing can be written now."""
        return self._files.is_full

    def push(self, local_file: str, segment_id: SegmentId, unique: str) -> PushedFile:
        """Copy a file to its location."""
        self._reach("before it pushes")
        pushed = self._files.inner.push(local_file, segment_id, unique)
        self._files.note(self._process.clock.now_ms())
        self._process.moment("after it pushed")
        return pushed

    def probe(self) -> None:
        """Raise if it does not answer."""
        self._files.inner.probe()

    def attempt_folder(self, datasource: str, task_id: str, attempt: str) -> str:
        """Return the folder in which one call of an engine writes."""
        return self._files.inner.attempt_folder(datasource, task_id, attempt)

    def load_spec_of(self, uri: str) -> Mapping[str, object]:
        """Return the load spec of a file that an engine wrote."""
        return self._files.inner.load_spec_of(uri)

    def rebased(self, location: str) -> str:
        """Return the current location of a file."""
        return self._files.inner.rebased(location)

    def current(self, load_spec: Mapping[str, object]) -> Mapping[str, object]:
        """Return a load spec in the current format."""
        return self._files.inner.current(load_spec)

    def location(self, load_spec: Mapping[str, object]) -> str:
        """Return the location of a file."""
        return self._files.inner.location(load_spec)

    def kill(self, load_spec: Mapping[str, object]) -> None:
        """Delete a file."""
        self._reach("before it deletes a pushed file")
        self._files.deleting(str(load_spec["path"]))
        self._files.inner.kill(load_spec)

    def known_files(self, load_specs: Iterable[Mapping[str, object]]) -> KnownFiles:
        """Return the files that load specs name."""
        return self._files.inner.known_files(load_specs)

    def list_orphans(
        self, known: Iterable[Mapping[str, object]] | KnownFiles, *, modified_before_ms: int
    ) -> list[Mapping[str, object]]:
        """Return old files that no segment names."""
        self._reach("before it lists files")
        self._files.note(self._process.clock.now_ms())
        found = self._files.inner.list_orphans(known, modified_before_ms=1 << 60)
        born = self._files.born_ms
        return [one for one in found if born[self.location(one)] < modified_before_ms]

    def _reach(self, what: str) -> None:
        self._process.world.let_others_run()
        self._process.moment(what)
        if self._process.is_cut:
            raise Unavailable("deep storage does not answer")
