"""`GET /penstock/v1/resources`: disk and memory of this host, and what the data folder uses.

Owns the sizes of the parts of the data folder, which take a walk over all of its files. A walk ends
after `WALK_S`, and rests for `WALK_RESTS` times as long as it took, so that a folder with millions
of files costs at most 1 % of a core. Does not own the memory of each process: `/status` has it.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.services.api.asgi import JsonResponse

if TYPE_CHECKING:
    from penstock.core.clock import Clock

RESOURCES: Final = "/penstock/v1/resources"
WALK_S: Final = 2.0
WALK_RESTS: Final = 100
WALK_EVERY_S: Final = 60.0

_OTHER: Final = "other files"
# Looking at the clock costs as much as looking at a file.
_FILES_PER_LOOK: Final = 256
_KIB: Final = 1024


@dataclass(frozen=True, slots=True)
class FolderUse:
    """Sizes of the parts of a folder.

    Attributes:
        parts: Bytes of the files in each folder within it, and of its own files.
        is_complete: Whether the walk saw all files; otherwise the sizes are lower bounds.
    """

    parts: Mapping[str, int]
    is_complete: bool

    def to_json(self) -> Sequence[Mapping[str, object]]:
        """Return the parts, the largest first."""
        largest = sorted(self.parts.items(), key=lambda one: (-one[1], one[0]))
        return [{"name": name, "bytes": size} for name, size in largest]


class HostResourceRoutes:
    """The route of resources. Thread-safe.

    Args:
        folder: The data folder; None: there is none on this host.
        clock: Limits walks.
    """

    def __init__(self, folder: Path | None, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        # One request walks at a time: others wait for its result.
        self._mutex = threading.Lock()
        self._use: FolderUse | None = None
        self._next_walk_s = 0.0

    def routes(self) -> list[BaseRoute]:
        """Return the route."""
        return [Route(RESOURCES, self.resources)]

    def resources(self, _request: Request) -> Response:
        """Return the disk of the data folder, its parts, and the memory of the host."""
        folder = self._folder
        use = FolderUse({}, is_complete=True)
        if folder is not None:
            with self._mutex:
                use = self._folder_use(folder)
        return JsonResponse(
            {
                "disk": None if folder is None else _disk(folder),
                "parts": use.to_json(),
                "isComplete": use.is_complete,
                "memory": _memory(),
            }
        )

    def _folder_use(self, folder: Path) -> FolderUse:
        now_s = self._clock.monotonic_s()
        if self._use is None or now_s >= self._next_walk_s:
            self._use = folder_use(folder, self._clock, WALK_S)
            ended_s = self._clock.monotonic_s()
            self._next_walk_s = ended_s + max(WALK_EVERY_S, WALK_RESTS * (ended_s - now_s))
        return self._use


def folder_use(folder: Path, clock: Clock, limit_s: float) -> FolderUse:
    """Add up the files of a folder by its parts, without following symbolic links.

    Args:
        folder: The folder; one that does not exist has no parts.
        clock: Time.
        limit_s: Time after which the walk ends. Each part gets an equal share of the rest of it,
            so that a large one does not hide the others.
    """
    parts: dict[str, int] = {}
    is_complete = True
    entries = list(_entries(folder))
    folders = [one for one in entries if one.is_dir(follow_symlinks=False)]
    own = sum(_size(one) for one in entries if one not in folders)
    until_s = clock.monotonic_s() + limit_s
    for number, one in enumerate(folders):
        now_s = clock.monotonic_s()
        share_s = max(0.0, until_s - now_s) / (len(folders) - number)
        parts[one.name], is_whole = _walk(one.path, clock, now_s + share_s)
        is_complete &= is_whole
    if own:
        parts[_OTHER] = own
    return FolderUse(parts, is_complete)


def _walk(path: str, clock: Clock, until_s: float) -> tuple[int, bool]:
    """Return the bytes of the files below a folder, and whether the walk saw all of them."""
    total, seen, folders = 0, 0, [path]
    while folders:
        for entry in _entries(folders.pop()):
            seen += 1
            if seen % _FILES_PER_LOOK == 0 and clock.monotonic_s() > until_s:
                return total, False
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            else:
                total += _size(entry)
    return total, True


def _entries(path: str | Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(path) as found:
            yield from found
    except OSError:  # narrow: deleted meanwhile, or of another user
        return


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except OSError:  # narrow: deleted meanwhile
        return 0


def _disk(folder: Path) -> Mapping[str, int] | None:
    try:
        found = shutil.disk_usage(folder)
    except OSError:  # narrow: it does not exist on this host
        return None
    return {"totalBytes": found.total, "freeBytes": found.free}


def _memory() -> Mapping[str, int] | None:
    """Return the memory of the host, as Linux reports it; None: it does not."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        fields = {name: int(rest.split()[0]) for name, _, rest in (x.partition(":") for x in lines)}
        return {
            "totalBytes": fields["MemTotal"] * _KIB,
            "availableBytes": fields["MemAvailable"] * _KIB,
        }
    except (OSError, KeyError, ValueError, IndexError):
        return None
