"""Registry that finds the class of a processor by its name or its import path.

Owns the known names: those passed in, and those that installed packages declare as entry points, if
the operator listed the package. Does not own the classes, nor the list of modules that flows may
name (`flow.user_modules`).

Invariants: `find` imports only modules that are passed in or listed, and `check` imports no user
code. If a class cannot be imported, the error names it, and other classes remain available. A name
that two packages declare is refused when a flow uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points
from inspect import isabstract
from typing import Final

from penstock.core.errors import Conflict, InvalidRequest, NotFound
from penstock.flow.processor.processor import Processor
from penstock.flow.user_modules import FlowModules, load

ENTRY_POINT_GROUP: Final = "penstock.processors"

_WHAT: Final = "processor"


def installed_paths() -> list[tuple[str, str]]:
    """Return the name and import path of every processor that installed packages declare."""
    return [(entry.name, entry.value) for entry in entry_points(group=ENTRY_POINT_GROUP)]


class ProcessorRegistry:
    """Processors that a flow may name.

    Args:
        builtin: Classes or import paths by name.
        installed: Names and import paths that packages declare, see `installed_paths`.
        modules: Modules that flows may name; without it, only those of `builtin`.

    Attributes:
        modules: Modules that flows may name.
    """

    def __init__(
        self,
        builtin: Mapping[str, type[Processor] | str],
        installed: Iterable[tuple[str, str]] = (),
        modules: FlowModules | None = None,
    ) -> None:
        self.modules = modules or FlowModules()
        self._builtin = dict(builtin)
        self._builtin_paths = {path for path in builtin.values() if isinstance(path, str)}
        self._installed: dict[str, list[str]] = {}
        for name, path in installed:
            paths = self._installed.setdefault(name, [])
            if path not in paths:
                paths.append(path)
        self._loaded: dict[str, type[Processor]] = {}

    def names(self) -> list[str]:
        """Return the names that a flow may use, sorted. Flows may also use import paths."""
        listed = {
            name
            for name, paths in self._installed.items()
            if any(self.modules.allows(path) for path in paths)
        }
        return sorted(self._builtin.keys() | listed)

    def find(self, name: str) -> type[Processor]:
        """Return the class of a name, or of an import path ``package.module:Class``.

        Raises:
            NotFound: No processor has this name; the message suggests similar names.
            Conflict: Two packages declare the name.
            InvalidRequest: Flows are not allowed to name it, it is not a processor, or its module
                cannot be imported.
        """
        if name in self._loaded:
            return self._loaded[name]
        place = self._place(name)
        if not isinstance(place, str):
            return place
        is_ours = place in self._builtin_paths
        found = _processor(
            place, load(place, _WHAT) if is_ours else self.modules.load(place, _WHAT)
        )
        self._loaded[name] = found
        return found

    def check(self, name: str) -> type[Processor] | None:
        """Check that a flow may use a name or import path, without importing user code.

        Returns:
            The class, if it is part of Penstock or already imported; otherwise None.

        Raises:
            PenstockError: The errors of `find` that can be detected without the class.
        """
        place = self._place(name)
        if name in self._loaded or not isinstance(place, str) or place in self._builtin_paths:
            return self.find(name)
        self.modules.check(place, _WHAT)
        return None

    def _place(self, name: str) -> type[Processor] | str:
        if ":" in name:
            return name
        builtin = self._builtin.get(name)
        installed = self._installed.get(name, [])
        listed = [path for path in installed if self.modules.allows(path)]
        declared = [*([] if builtin is None else [builtin]), *listed]
        if len(declared) > 1:
            raise Conflict(
                f"processor {name!r} is declared more than once "
                f"({', '.join(map(str, declared))}): use the import path of one of them"
            )
        if declared:
            return declared[0]
        if installed:
            return installed[0]  # refused on use, with the reason
        alike = get_close_matches(name, self.names(), n=3)
        hint = f"did you mean {' or '.join(alike)}?" if alike else "see penstock processor list"
        raise NotFound(f"unknown processor {name!r}: {hint}")


def _processor(path: str, found: object) -> type[Processor]:
    module, _, names = path.partition(":")
    if not (isinstance(found, type) and issubclass(found, Processor)):
        kind = "does not exist" if found is None else "is not a subclass of Processor"
        raise NotFound(f"processor {path}: {names} {kind} in {module}")
    if isabstract(found):
        raise InvalidRequest(
            f"processor {path}: {names} is an abstract class: implement "
            f"{', '.join(found.__abstractmethods__)}"
        )
    return found
