"""Spark Connect's client without pandas, which it imports but Penstock never uses.

PySpark's client imports pandas to recognise pandas' types in calls that Penstock does not make.
Pandas costs each process 28 to 43 MB and most of a second, and every task is a process. So during
the import of the client, a stand-in replaces pandas. It is removed afterwards; a later import of
pandas gets the real one.

Owns that one import. If pandas is imported already, or the client needs more than the stand-in has,
the real one is used.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Final

_CLIENT: Final = "pyspark.sql.connect.session"
# Minimum version that the client requires; it is only compared.
_VERSION: Final = "2.2.0"


def import_client() -> None:
    """Import Spark Connect's client, with pandas only if necessary."""
    if _CLIENT in sys.modules or "pandas" in sys.modules:
        importlib.import_module(_CLIENT)
        return
    before = set(sys.modules)
    stand_ins = _stand_ins()
    sys.modules.update(stand_ins)
    try:
        importlib.import_module(_CLIENT)
    except (ImportError, AttributeError):
        for name in set(sys.modules) - before - stand_ins.keys():
            if name.startswith("pyspark.sql.connect"):
                del sys.modules[name]  # partly imported
        _remove(stand_ins)
        importlib.import_module(_CLIENT)
    finally:
        _remove(stand_ins)


def _stand_ins() -> dict[str, ModuleType]:
    pandas, api, types = (ModuleType(n) for n in ("pandas", "pandas.api", "pandas.api.types"))
    contents: dict[ModuleType, dict[str, object]] = {
        pandas: {"__version__": _VERSION, "__path__": [], "api": api, "DataFrame": _NeverMade},
        api: {"__path__": [], "types": types},
        types: {"is_datetime64_dtype": _never, "is_timedelta64_dtype": _never},
    }
    for module, names in contents.items():
        vars(module).update(names)
    return {module.__name__: module for module in contents}


def _remove(stand_ins: dict[str, ModuleType]) -> None:
    for name, module in stand_ins.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]


class _NeverMade:
    """Stand-in for a type of pandas: no value is an instance."""


def _never(_value: object) -> bool:
    return False
