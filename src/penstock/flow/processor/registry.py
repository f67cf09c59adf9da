"""Finding the class of a processor by its name or its import path.

Owns which names are known: those that are passed in, and those that installed packages declare by
the entry points of a group, if the operator listed the package. Does not own the classes, nor the
list of modules that flows may name (`flow.modules`).

Invariants: `find` imports only what is passed in or listed, and `check` imports nothing of users.
A class that cannot be imported is an error that names it, and hides no other. A name that two
packages declare is refused when it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points
from inspect import isabstract
from typing import Final

from penstock.core.errors import Conflict, InvalidRequest, NotFound
from penstock.flow.modules import FlowModules, load
from penstock.flow.processor.processor import Processor

ENTRY_POINT_GROUP: Final = "penstock.processors"

_WHAT: Final = "processor"


def installed_paths() -> list[tuple[str, str]]:
    """Return name and import path of every processor that installed packages declare."""
    return [(entry.name, entry.value) for entry in entry_points(group=ENTRY_POINT_GROUP)]


class ProcessorRegistry:
    """The processors that a flow may name.

    Args:
        builtin: Classes or import paths by name.
        installed: Names and import paths that packages declare, see `installed_paths`.
        modules: The modules that flows may name; without it, none but those of `builtin`.

    Attributes:
        modules: The modules that flows may name.
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
        """Return the names that a flow may use, sorted; import paths work, too."""
        listed = {
            name
            for name, paths in self._installed.items()
            if any(self.modules.allows(path) for path in paths)
        }
        return sorted(self._builtin.keys() | listed)

    def find(self, name: str) -> type[Processor]:
        """Return the class of a name, or of an import path ``package.module:Class``.

        Raises:
            NotFound: There is none; the message has names that are alike.
            Conflict: Two packages declare it.
            InvalidRequest: A flow may not name it, it is not a processor, or its module cannot be
                imported.
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
        """Check that a flow may use a name or import path. Imports nothing of users.

        Returns:
            The class, if it comes with Penstock or was imported before; else None.

        Raises:
            PenstockError: As `find`, as far as that can be seen without the class.
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
                f"processor {name!r} is declared more than once ({', '.join(map(str, declared))}): "
                "use the import path of the one that you mean"
            )
        if declared:
            return declared[0]
        if installed:
            return installed[0]  # its use is refused with the reason
        alike = get_close_matches(name, self.names(), n=3)
        hint = f"did you mean {' or '.join(alike)}?" if alike else "see penstock processor list"
        raise NotFound(f"there is no processor {name!r}: {hint}")


def _processor(path: str, found: object) -> type[Processor]:
    module, _, names = path.partition(":")
    if not (isinstance(found, type) and issubclass(found, Processor)):
        kind = "does not exist" if found is None else "is not a subclass of Processor"
        raise NotFound(f"processor {path}: {names} {kind} in {module}")
    if isabstract(found):
        raise InvalidRequest(
            f"processor {path}: {names} is abstract: give it {', '.join(found.__abstractmethods__)}"
        )
    return found
