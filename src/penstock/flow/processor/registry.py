"""Finding the class of a processor by its name or its import path.

Owns which names are known: those that are passed in, and those that installed packages declare by
the entry points of a group. Does not own the classes.

Invariants: nothing is imported before it is asked for; what cannot be imported is an error that
names it, and hides nothing else. A name that two packages declare is refused when it is used.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points
from inspect import isabstract
from typing import Final

from penstock.core.errors import Conflict, InvalidRequest, NotFound
from penstock.flow.processor.processor import Processor

ENTRY_POINT_GROUP: Final = "penstock.processors"

_PATH: Final = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")


def installed_paths() -> list[tuple[str, str]]:
    """Return name and import path of every processor that installed packages declare."""
    return [(entry.name, entry.value) for entry in entry_points(group=ENTRY_POINT_GROUP)]


class ProcessorRegistry:
    """The processors that a flow may name.

    Args:
        builtin: Classes or import paths by name.
        installed: Names and import paths that packages declare, see `installed_paths`.
    """

    def __init__(
        self,
        builtin: Mapping[str, type[Processor] | str],
        installed: Iterable[tuple[str, str]] = (),
    ) -> None:
        self._known: dict[str, list[type[Processor] | str]] = {
            name: [where] for name, where in builtin.items()
        }
        for name, path in installed:
            places = self._known.setdefault(name, [])
            if path not in places:
                places.append(path)

    def names(self) -> list[str]:
        """Return the names that are known, sorted; import paths work, too."""
        return sorted(self._known)

    def find(self, name: str) -> type[Processor]:
        """Return the class of a name, or of an import path ``package.module:Class``.

        Raises:
            NotFound: There is none; the message has names that are alike.
            Conflict: Two packages declare it.
            InvalidRequest: What is there is no processor, or cannot be imported.
        """
        if ":" in name:
            return _imported(name)
        places = self._known.get(name)
        if places is None:
            alike = get_close_matches(name, self._known, n=3)
            hint = f"did you mean {' or '.join(alike)}?" if alike else "see penstock processor list"
            raise NotFound(f"there is no processor {name!r}: {hint}")
        if len(places) > 1:
            raise Conflict(
                f"processor {name!r} is declared more than once ({', '.join(map(str, places))}): "
                "name the one you mean by its import path"
            )
        [place] = places
        return _imported(place) if isinstance(place, str) else place


def _imported(path: str) -> type[Processor]:
    match = _PATH.fullmatch(path)
    if match is None:
        raise InvalidRequest(f"{path!r} is no import path: write one such as package.module:Class")
    module_name, names = match[1], match[2]
    try:
        found: object = importlib.import_module(module_name)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and module_name.startswith(error.name or "\0"):
            raise NotFound(
                f"processor {path}: there is no module {error.name}: install it, or name its "
                "folder in PYTHONPATH where Penstock is started, and for this command"
            ) from error
        raise InvalidRequest(f"processor {path}: {error}: mend the module's imports") from error
    except (Exception, SystemExit) as error:  # a user's module may raise anything at all
        raise InvalidRequest(
            f"processor {path}: the module cannot be imported ({type(error).__name__}: {error}); "
            "mend it"
        ) from error
    for name in names.split("."):
        found = getattr(found, name, None)
    if not (isinstance(found, type) and issubclass(found, Processor)):
        kind = "is not there" if found is None else "is no subclass of Processor"
        raise NotFound(f"processor {path}: {names} {kind} in {module_name}")
    if isabstract(found):
        raise InvalidRequest(
            f"processor {path}: {names} is abstract: give it {', '.join(found.__abstractmethods__)}"
        )
    return found
