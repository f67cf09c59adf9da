"""SparkScript: a user's function on DataFrames.

Owns the call of the function and the check of what it returns. What it raises is its own affair:
here, and here only, whatever it is becomes the reason of a failure.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, cast

from penstock.core.errors import InvalidRequest, PenstockError
from penstock.flow.processor import (
    Kind,
    Problem,
    ProcessContext,
    ProcessError,
    Property,
    PropertyValue,
    Relationship,
    list_of,
)
from penstock.flow.processor.processor import declared_relationships
from penstock.spark.connect.session import translate
from penstock.spark.flow.base import SparkProcessor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Script = Callable[[SparkSession, Mapping[str, DataFrame]], DataFrame | Mapping[str, DataFrame]]

_PATH: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def _path(text: str) -> str:
    if not _PATH.fullmatch(text):
        raise InvalidRequest(
            f"{text!r} is no import path: write one such as package.module:function"
        )
    return text


class SparkScript(SparkProcessor):
    """Calls a Python function with the records of a batch of FlowFiles as DataFrames, as one job.

    The function is ``def enrich(spark, frames)``: the Spark session, and a DataFrame for each view
    by its name. It returns a DataFrame, which goes to the first relationship of ``outputs``, or a
    map of DataFrames by relationship. It runs in this service; what its DataFrames describe, on
    Spark.
    """

    tags = ("spark", "python", "script", "dataframe")

    function = Property(
        Kind("import path", _path), required=True, about="Import path, package.module:function."
    )
    outputs = Property(
        list_of(str), default="success", about="Names of the relationships for results."
    )

    def __init__(self, /, **properties: PropertyValue) -> None:
        super().__init__(**properties)
        self._script: Script | None = None

    def check(self) -> Iterator[Problem]:
        """Yield what is wrong between properties."""
        yield from super().check()
        own = declared_relationships(type(self))
        if not self.outputs:
            yield Problem("outputs", "is empty: name at least one relationship")
        for name in self.outputs:
            if name in own:
                yield Problem("outputs", f"{name!r} is a relationship already: use another name")

    def relationships(self) -> Mapping[str, Relationship]:
        """Return where it sends FlowFiles."""
        results = {name: Relationship("Results.", name=name) for name in self.outputs}
        return {**super().relationships(), **results}

    def on_scheduled(self, context: ProcessContext) -> None:
        """Import the function, and learn where Spark is."""
        super().on_scheduled(context)
        self._script = _imported(self.function)

    def results(
        self, spark: SparkSession, frames: Mapping[str, DataFrame]
    ) -> Mapping[str, DataFrame]:
        """Return what the function returned.

        Raises:
            ProcessError: It raised something, or returned something else.
        """
        if self._script is None:
            raise AssertionError("a trigger comes after on_scheduled")
        try:
            returned = self._script(spark, dict(frames))
        except PenstockError:
            raise
        except Exception as error:  # the documented boundary: it is the user's code
            if translate(error) is not None:
                raise  # Spark's: whoever gave the Spark session knows what it means
            raise ProcessError(
                f"{self.function} raised {type(error).__name__}: {error}; mend it"
            ) from error
        found = returned if isinstance(returned, Mapping) else {self.outputs[0]: returned}
        for name, frame in found.items():
            if name not in self.outputs:
                raise ProcessError(
                    f"{self.function} returned a result {name!r}: name it in `outputs`, where "
                    f"there are {', '.join(self.outputs)}"
                )
            if not hasattr(frame, "write"):
                raise ProcessError(
                    f"{self.function} returned {type(frame).__name__} for {name!r}: return a "
                    "DataFrame"
                )
        return found


def _imported(path: str) -> Script:
    module_name, _, name = path.partition(":")
    try:
        found: object = getattr(importlib.import_module(module_name), name, None)
    except ImportError as error:
        raise InvalidRequest(
            f"function {path}: {error}; install the module, or put it on the Python path of the "
            "service"
        ) from error
    if not callable(found):
        kind = "is not there" if found is None else "is no function"
        raise InvalidRequest(f"function {path}: {name} {kind}: mend the import path")
    return cast("Script", found)
