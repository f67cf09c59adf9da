"""Folders that flows must not change: code that Penstock runs, and Penstock's own data.

Owns the list of these folders and the check of a path against it. Processors call it before they
write, move or delete files.

A flow that could write a module could run any code at the next start. So the guard protects the
folders and packages of `--flow-modules`, every folder that Python imports from or keeps bytecode
in, Penstock's own package, and the folders and files that the service adds, such as its data
folder.

Invariant: a path is checked after symbolic links and ``..`` are resolved. Folders are also compared
by their identity, so that a second name for a folder (a bind mount, another case) does not bypass
the check.
"""

# The guard queries the operating system about paths; it opens and changes nothing.
# ruff: noqa: PTH100, PTH117, PTH118, PTH120

from __future__ import annotations

import os
import site
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import penstock
from penstock.core.errors import InvalidRequest
from penstock.core.read_guard import identities, identity, is_below, real_path
from penstock.flow.user_modules import SERVICE_MODULES

_CODE: Final = "Penstock runs code from there"


class WriteGuard:
    """Paths that flows must not change; set when the service starts, read from any thread."""

    def __init__(self) -> None:
        self._kept: tuple[Path, ...] = ()
        self._programs: tuple[Path, ...] = ()

    def set(self, kept: Iterable[Path], programs: Iterable[Path] = ()) -> None:
        """Replace the paths that the service adds.

        Args:
            kept: Folders and files of the service itself, such as its data folder.
            programs: Folders and files that determine which programs it runs.
        """
        self._kept, self._programs = tuple(kept), tuple(programs)

    def check(self, path: str) -> str:
        """Return the actual path that a write, move or deletion would affect.

        Args:
            path: Path of a file or folder, which need not exist.

        Returns:
            The path with symbolic links of its folder resolved.

        Raises:
            InvalidRequest: A flow must not change it, or its links cannot be followed.
        """
        folder, name = os.path.split(os.path.abspath(path))
        real = os.path.join(real_path(folder), name)
        # A link itself is replaced and not followed; as a folder it is followed.
        for place in {real, real_path(real)}:
            around = frozenset(identities(place))
            for protected, why in self._protected():
                if is_below(place, real_path(protected)) or identity(protected) in around:
                    raise InvalidRequest(
                        f"{path}: a flow must not change files of {protected}, because {why}: use "
                        "another folder"
                    )
        return real

    def _protected(self) -> Iterator[tuple[str, str]]:
        for kept in self._kept:
            yield str(kept), "Penstock keeps its own files there"
        for place in self._programs:
            yield str(place), "it decides which programs Penstock runs"
        for place in SERVICE_MODULES.get().paths():
            yield str(place), "flows run code from it (--flow-modules)"
        yield os.path.dirname(penstock.__file__), _CODE
        folders = (site.getusersitepackages(), sys.prefix, sys.base_prefix, sys.pycache_prefix)
        for entry in (*sys.path, *folders):
            if entry and os.path.isabs(entry) and entry not in _TOO_WIDE:
                yield entry, _CODE


# Prefixes of a Python of the operating system; its modules are in subfolders listed in `sys.path`.
_TOO_WIDE: Final = frozenset({"/", "/usr", "/usr/local"})

WRITE_GUARD = WriteGuard()
