"""SparkScript: a user's function on DataFrames.

Owns the call of the function and the check of its result. Any exception of the function becomes the
reason of a failure; this is the only module that catches all exceptions of user code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, cast

from penstock.core.errors import InvalidRequest, NotFound, PenstockError
from penstock.flow.processor import (
    Problem,
    ProcessContext,
    ProcessError,
    Property,
    PropertyType,
    PropertyValue,
    Relationship,
    list_of,
)
from penstock.flow.processor.processor import declared_relationships
from penstock.flow.user_modules import SERVICE_MODULES
from penstock.spark.connect.spark_sessions import translate
from penstock.spark.flow.spark_processor import SparkProcessor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Script = Callable[[SparkSession, Mapping[str, DataFrame]], DataFrame | Mapping[str, DataFrame]]

_WHAT: Final = "function"


class SparkScript(SparkProcessor):
    """Calls a Python function with the records of a batch of FlowFiles as DataFrames, as one job.

    The function is ``def enrich(spark, frames)``: the Spark session, and a DataFrame for each view
    by its name. It returns a DataFrame, which goes to the first relationship of ``outputs``, or a
    map of DataFrames by relationship. It runs in the flow process; its DataFrames are computed
    on Spark. A flow may name only functions of modules that the operator listed (`--flow-modules`).
    """

    tags = ("spark", "python", "script", "dataframe")

    function = Property(
        PropertyType("import path", str),
        required=True,
        about="Import path, package.module:function, of a module that the operator listed "
        "(`--flow-modules`).",
    )
    outputs = Property(
        list_of(str), default="success", about="Names of the relationships for results."
    )

    def __init__(self, /, **properties: PropertyValue) -> None:
        super().__init__(**properties)
        self._script: Script | None = None

    def check(self) -> Iterator[Problem]:
        """Yield problems between properties."""
        yield from super().check()
        try:
            SERVICE_MODULES.get().check(self.function, _WHAT)
        except (InvalidRequest, NotFound) as error:
            yield Problem("function", str(error))
        own = declared_relationships(type(self))
        if not self.outputs:
            yield Problem("outputs", "is empty: name at least one relationship")
        for name in self.outputs:
            if name in own:
                yield Problem("outputs", f"{name!r} is a relationship already: use another name")

    def relationships(self) -> Mapping[str, Relationship]:
        """Return the relationships."""
        results = {name: Relationship("Results.", name=name) for name in self.outputs}
        return {**super().relationships(), **results}

    def on_scheduled(self, context: ProcessContext) -> None:
        """Import the function, and store the address of Spark."""
        super().on_scheduled(context)
        self._script = _imported(self.function)

    def results(
        self, spark: SparkSession, frames: Mapping[str, DataFrame]
    ) -> Mapping[str, DataFrame]:
        """Return the function's result.

        Raises:
            ProcessError: The function raised, or returned something else.
        """
        if self._script is None:
            raise AssertionError("on_trigger was called before on_scheduled")
        try:
            returned = self._script(spark, dict(frames))
        except PenstockError:
            raise
        except Exception as error:  # the documented boundary: it is the user's code
            if translate(error) is not None:
                raise  # Spark's: the owner of the Spark session translates it
            raise ProcessError(
                f"{self.function} raised {type(error).__name__}: {error}; correct the function"
            ) from error
        found = returned if isinstance(returned, Mapping) else {self.outputs[0]: returned}
        for name, frame in found.items():
            if name not in self.outputs:
                raise ProcessError(
                    f"{self.function} returned a result {name!r}: name it in `outputs`, which has: "
                    f"{', '.join(self.outputs)}"
                )
            if not hasattr(frame, "write"):
                raise ProcessError(
                    f"{self.function} returned {type(frame).__name__} for {name!r}: return a "
                    "DataFrame"
                )
        return found


def _imported(path: str) -> Script:
    found = SERVICE_MODULES.get().load(path, _WHAT)
    if not callable(found):
        kind = "does not exist" if found is None else "is not a function"
        raise InvalidRequest(f"function {path}: it {kind}: correct the import path")
    return cast("Script", found)
