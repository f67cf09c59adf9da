"""A disk in memory: visible content, durable content, and possible states after a power loss.

Owns: files and folders, each with its changes since its last sync. Does not own: the steps, nor
which of them fail (`crashable`, `faults`).

Invariants:

- A change is visible at once, and durable once its file or folder was synced.
- After a power loss, durable content exists, with any subset of the other changes that a real disk
  may have kept: a lost page keeps its old bytes, or zeros where the file grew; one page is torn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from penstock.core.errors import NotFound

if TYPE_CHECKING:
    import random

S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)

_PAGE = 512  # small, so that small test files have several


class Change(Protocol[S_contra]):
    """A change of a file's bytes, or of the names in a folder."""

    def apply(self, state: S_contra, /) -> None:
        """Apply all of it."""
        ...

    def apply_partly(self, state: S_contra, rng: random.Random, /) -> None:
        """Apply a part that a power loss may leave."""
        ...


class Twofold(Generic[S]):
    """Visible and durable state of an object, and the changes between them."""

    __slots__ = ("durable", "pending", "visible")

    def __init__(self, visible: S, durable: S) -> None:
        self.visible = visible
        self.durable = durable
        self.pending: list[Change[S]] = []

    def change(self, change: Change[S]) -> None:
        """Apply a change to the visible state."""
        change.apply(self.visible)
        self.pending.append(change)

    def sync(self) -> None:
        """Make all changes durable."""
        for change in self.pending:
            change.apply(self.durable)
        self.pending.clear()


@dataclass(slots=True)
class Write:
    """Bytes at a position of a file."""

    position: int
    data: bytes

    def apply(self, content: bytearray) -> None:
        """Apply all of it."""
        end = self.position + len(self.data)
        if len(content) < end:
            content.extend(bytes(end - len(content)))
        content[self.position : end] = self.data

    def apply_partly(self, content: bytearray, rng: random.Random) -> None:
        """Keep any subset of the pages, and a page torn in the middle."""
        grown = self.position + rng.choice((0, len(self.data), rng.randint(0, len(self.data))))
        if len(content) < grown:
            content.extend(bytes(grown - len(content)))
        start = self.position
        end = self.position + len(self.data)
        while start < end:
            page_end = min(end, (start // _PAGE + 1) * _PAGE)
            kept = rng.choice((0, page_end - start, rng.randint(0, page_end - start)))
            kept = max(0, min(kept, len(content) - start))
            offset = start - self.position
            content[start : start + kept] = self.data[offset : offset + kept]
            start = page_end


@dataclass(slots=True)
class Truncate:
    """A file's new size; zeros where it grows."""

    size: int

    def apply(self, content: bytearray) -> None:
        """Apply all of it."""
        if len(content) > self.size:
            del content[self.size :]
        else:
            content.extend(bytes(self.size - len(content)))

    def apply_partly(self, content: bytearray, rng: random.Random) -> None:
        """Apply all of it or nothing."""
        if rng.random() < 0.5:
            self.apply(content)


class Inode(Twofold[bytearray]):
    """The bytes of a file."""

    __slots__ = ()

    def after_crash(self, rng: random.Random) -> Inode:
        """Return a possible state after a power loss, durable now."""
        content = bytearray(self.durable)
        fate = rng.random()
        if fate < 0.6:
            for change in self.pending:
                change.apply_partly(content, rng)
        elif fate < 0.8:
            # In order: a prefix, the last one torn.
            kept = rng.randint(0, len(self.pending))
            for change in self.pending[:kept]:
                change.apply(content)
            for change in self.pending[kept : kept + 1]:
                change.apply_partly(content, rng)
        elif fate < 0.9:
            for change in self.pending:
                change.apply(content)
        return Inode(bytearray(content), content)


@dataclass(slots=True)
class Rename:
    """One change of names in a folder: `removed` is deleted, `added` becomes `inode`."""

    removed: str | None
    added: str | None
    inode: Inode | None

    def apply(self, names: dict[str, Inode]) -> None:
        """Apply all of it."""
        if self.removed is not None:
            names.pop(self.removed, None)
        if self.added is not None and self.inode is not None:
            names[self.added] = self.inode

    def apply_partly(self, names: dict[str, Inode], rng: random.Random) -> None:
        """Apply all of it or nothing."""
        if rng.random() < 0.5:
            self.apply(names)


class Folder(Twofold[dict[str, Inode]]):
    """The names in a folder."""

    __slots__ = ()

    def after_crash(self, rng: random.Random) -> Folder:
        """Return a possible state of the folder and its files after a power loss, durable now."""
        names = dict(self.durable)
        all_or_any = rng.random()
        for change in self.pending:
            if all_or_any < 0.3:
                change.apply(names)
            elif all_or_any < 0.8:
                change.apply_partly(names, rng)
        kept = {name: inode.after_crash(rng) for name, inode in names.items()}
        return Folder(dict(kept), kept)


class Disk:
    """Folders by path, including the root. Folders are durable from the start."""

    def __init__(self) -> None:
        self._folders = {"/": Folder({}, {})}

    def after_crash(self, rng: random.Random) -> Disk:
        """Return a possible state after a power loss.

        Args:
            rng: Chooses among the legal outcomes.
        """
        after = Disk()
        after._folders = {path: one.after_crash(rng) for path, one in self._folders.items()}
        return after

    def used_bytes(self) -> int:
        """Return the bytes of all visible files."""
        return sum(
            len(inode.visible)
            for folder in self._folders.values()
            for inode in folder.visible.values()
        )

    # -- folders

    def has_folder(self, path: str) -> bool:
        """Return whether a folder exists."""
        return (path.rstrip("/") or "/") in self._folders

    def folder(self, path: str) -> Folder:
        """Return a folder.

        Raises:
            NotFound: There is no such folder.
        """
        folder = self._folders.get(path.rstrip("/") or "/")
        if folder is None:
            raise NotFound(f"{path}: no such folder")
        return folder

    def make_folder(self, path: str) -> None:
        """Create an empty folder."""
        self._folders[path] = Folder({}, {})

    def remove_folder(self, path: str) -> None:
        """Remove a folder."""
        del self._folders[path.rstrip("/")]

    def names_in(self, path: str) -> list[str]:
        """Return the sorted names in a folder.

        Raises:
            NotFound: There is no such folder.
        """
        prefix = path.rstrip("/") + "/"
        below = {
            other[len(prefix) :]
            for other in self._folders
            if other.startswith(prefix) and other != "/" and "/" not in other[len(prefix) :]
        }
        return sorted(below | set(self.folder(path).visible))

    # -- files

    def place(self, path: str) -> tuple[Folder, str]:
        """Return the folder of a file, and its name there.

        Raises:
            NotFound: There is no such folder.
        """
        folder, _, name = path.rpartition("/")
        return self.folder(folder or "/"), name

    def find(self, path: str) -> Inode | None:
        """Return a file, None if there is none."""
        folder, _, name = path.rpartition("/")
        found = self._folders.get(folder or "/")
        return None if found is None else found.visible.get(name)

    def file(self, path: str, doing: str) -> Inode:
        """Return a file.

        Args:
            path: Its path.
            doing: The operation, for the error.

        Raises:
            NotFound: There is no such file.
        """
        inode = self.find(path)
        if inode is None:
            raise NotFound(f"{path}: cannot {doing}: no such file or folder")
        return inode
