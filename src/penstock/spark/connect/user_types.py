"""User-defined types in schemas that Spark returns, without the import of modules that they name.

A schema may contain a user-defined type, with the name of a Python class. PySpark imports its
module in the process that reads the schema, and a schema may come from the text of a query, or
from a file. Owns the replacement of that one method of PySpark.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.core.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql.types import UserDefinedType


def refuse_unloaded_types() -> None:
    """Make PySpark refuse user-defined types of modules that this process has not imported yet."""
    # Imported here: commands without Spark do not load PySpark.
    from pyspark.sql.types import UserDefinedType  # noqa: PLC0415

    UserDefinedType.fromJson = classmethod(_loaded_type)  # type: ignore[method-assign, assignment] # its only hook


def _loaded_type(base: type[UserDefinedType], json: Mapping[str, object]) -> UserDefinedType:
    """Return the type that a schema names, if its class is loaded.

    Raises:
        InvalidRequest: It is not loaded, or is not a user-defined type.
    """
    path = str(json.get("pyClass", json.get("class", "")))
    module, _, name = path.rpartition(".")
    # `getattr` could import a module, because modules may define `__getattr__`.
    found = vars(sys.modules[module]).get(name) if module in sys.modules else None
    if isinstance(found, type) and issubclass(found, base):
        return found()
    raise InvalidRequest(
        f"the result has the user-defined type {path[:80]!r}, whose Python class is not loaded, and"
        " Penstock imports no module because a schema names it: return columns of other types"
    )
