"""Class archive that halves the start of the JVM: made once for each (Java, PySpark) pair.

The JVM itself writes it at an orderly end. Owns the archive's name, and the step from a complete
temporary file to the archive. Invariant: a file has the archive's name only if the JVM completed
it, which its magic number shows, because that is written last.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

# The archive of a JVM that served has 200 MB. A JVM that failed at its start writes its few
# classes, too, which would make every later start slow.
_WHOLE_BYTES_MIN: Final = 100 << 20
_MAGIC_OF_DYNAMIC: Final = 0xF00BABA8
_MAKE: Final = "-XX:ArchiveClassesAtExit="
_USE: Final = "-XX:SharedArchiveFile="
_UNFINISHED: Final = ".unfinished"
# 200 MB each; an environment in use has its archive, and a removed one leaves its archive behind.
_KEPT: Final = 3


def archive_options(folder: Path, pair: str, *, may_make: bool) -> list[str]:
    """Return the JVM's options that use the archive, or create it if it is missing.

    A process that creates an archive calls this again only after its JVM has ended.

    Args:
        folder: The cache folder, shared by all data folders of the user.
        pair: Versions and the class path, on which the archive depends. Options of the JVM are not
            part of it: most fit any archive, and the JVM starts without one that does not fit.
        may_make: Whether this JVM may create it, which slows its start, and makes its stop take up
            to half a minute.
    """
    name = f"classes-{hashlib.sha256(pair.encode()).hexdigest()[:16]}.jsa"
    archive = folder / name
    if ":" in str(folder):
        return []  # the JVM would end the file name there
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        for unfinished in folder.glob(f"{name}.*{_UNFINISHED}"):
            _keep_or_delete(unfinished, archive)
        if archive.exists():
            os.utime(archive)  # time of its last use, for `_drop_old`
            return [f"{_USE}{archive}", "-Xlog:cds=off", "-Xlog:class+path=off"]
        if not may_make:
            return []
        _drop_old(folder)
        target = folder / f"{name}.{os.getpid()}{_UNFINISHED}"
        return [f"{_MAKE}{target}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    return []  # start without a cache


def makes_archive(argv: Sequence[str]) -> bool:
    """Return whether a JVM with this command line would write an archive at its end."""
    return any(argument.startswith(_MAKE) for argument in argv)


def uses_archive(argv: Sequence[str]) -> bool:
    """Return whether a JVM with this command line uses an archive."""
    return any(argument.startswith(_USE) for argument in argv)


def _drop_old(folder: Path) -> None:
    """Delete old archives before a new one is written; a JVM that has one mapped keeps its bytes.

    A temporary file of an environment that no longer exists is deleted like an old archive, because
    no process will complete it.
    """
    left = [path for path in folder.glob(f"classes-*{_UNFINISHED}") if not _is_written(path)]
    archives = [*folder.glob("classes-*.jsa"), *left]
    archives.sort(key=lambda path: path.stat().st_mtime)
    for old in archives[: 1 - _KEPT]:
        old.unlink(missing_ok=True)


def _is_written(unfinished: Path) -> bool:
    """Return whether another process's JVM may still write it; the name has that process's id."""
    maker = unfinished.suffixes[-2].lstrip(".")
    return maker != str(os.getpid()) and Path(f"/proc/{maker}").exists()


def _keep_or_delete(unfinished: Path, archive: Path) -> None:
    """Rename a complete archive; delete a truncated one, unless its JVM may still write it."""
    with unfinished.open("rb") as file:
        start = file.read(4)
        size = file.seek(0, 2)
    if len(start) == 4 and struct.unpack("=I", start)[0] == _MAGIC_OF_DYNAMIC:
        if size >= _WHOLE_BYTES_MIN:
            unfinished.replace(archive)
        else:
            unfinished.unlink()
    elif not _is_written(unfinished):
        unfinished.unlink()
