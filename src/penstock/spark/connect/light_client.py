"""Spark Connect's client without pandas, which it imports but Penstock never uses.

PySpark's client imports pandas to recognise pandas' types in calls that Penstock does not make.
Pandas costs each process 28 to 43 MB and most of a second, and every task is a process. So while
one thread imports the client, its imports of pandas get a stand-in. All other threads still get the
real pandas: Arrow imports it when it first converts a Python value, and a processor of a flow may
import it, too.

Owns that one import. If pandas is imported already, or the client needs more than the stand-in has,
the real one is used.
"""

from __future__ import annotations

import builtins
import importlib
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Final

_CLIENT: Final = "pyspark.sql.connect.session"
# Minimum version that the client requires; it is only compared.
_VERSION: Final = "2.2.0"

_one_at_a_time = threading.Lock()


def import_client() -> None:
    """Import Spark Connect's client, with pandas only if necessary. Thread-safe."""
    with _one_at_a_time:
        if _CLIENT in sys.modules or "pandas" in sys.modules:
            importlib.import_module(_CLIENT)
            return
        before = set(sys.modules)
        stand_ins = _stand_ins()
        try:
            with _replaced_for_this_thread(stand_ins):
                importlib.import_module(_CLIENT)
        except (ImportError, AttributeError):
            for name in set(sys.modules) - before:
                # Partly imported, or without the real pandas.
                if name.startswith("pyspark.sql.connect") or _has_any(sys.modules[name], stand_ins):
                    del sys.modules[name]
            importlib.import_module(_CLIENT)


@contextmanager
def _replaced_for_this_thread(stand_ins: Mapping[str, ModuleType]) -> Iterator[None]:
    """Let import statements that this thread runs find the stand-ins."""
    thread, real = threading.get_ident(), builtins.__import__

    def replaced(
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002 - callers may pass it by name
        locals: Mapping[str, object] | None = None,  # noqa: A002 - as above
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        if level == 0 and name in stand_ins and threading.get_ident() == thread:
            # As the real one does: `import a.b` binds `a`, `from a.b import c` asks `a.b` for `c`.
            return stand_ins[name if fromlist else name.partition(".")[0]]
        return real(name, globals, locals, fromlist, level)

    vars(builtins)["__import__"] = replaced
    try:
        yield
    finally:
        vars(builtins)["__import__"] = real


def _stand_ins() -> dict[str, ModuleType]:
    pandas, api, types = (ModuleType(n) for n in ("pandas", "pandas.api", "pandas.api.types"))
    contents: dict[ModuleType, dict[str, object]] = {
        pandas: {"__version__": _VERSION, "api": api, "DataFrame": _NeverMade},
        api: {"types": types},
        types: {"is_datetime64_dtype": _never, "is_timedelta64_dtype": _never},
    }
    for module, names in contents.items():
        vars(module).update(names)
    return {module.__name__: module for module in contents}


def _has_any(module: ModuleType, stand_ins: Mapping[str, ModuleType]) -> bool:
    """Return whether a module has a name for a stand-in or for one of its objects."""
    known = {id(one) for one in (*stand_ins.values(), _NeverMade, _never)}
    return any(id(value) in known for value in vars(module).values())


class _NeverMade:
    """Stand-in for a type of pandas: no value is an instance."""


def _never(_value: object) -> bool:
    return False
