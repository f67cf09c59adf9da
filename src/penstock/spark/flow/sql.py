"""SparkSQL: any SQL over the contents of FlowFiles."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest
from penstock.flow.processor import (
    DynamicProperties,
    Problem,
    ProcessError,
    PropertyType,
    PropertyValue,
)
from penstock.flow.processors.routing.named_relationships import name_problems
from penstock.spark.flow.spark_processor import SparkProcessor
from penstock.spark.sql.query_statement import read_statement
from penstock.spark.sql_guard import check_understood, constants_kept, relation
from penstock.spark.views import define_outline_view, hidden_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def _query(text: str) -> str:
    statement = read_statement(text)
    if not statement.is_query:
        raise InvalidRequest("this is not a query: begin with SELECT or WITH")
    return statement.query


_QUERY: Final = PropertyType("SQL query", _query)


class SparkSQL(SparkProcessor):
    """Runs SQL on Spark over the records of a batch of FlowFiles, as one job.

    All waiting FlowFiles, up to a limit, form the view ``input``, or several views by an attribute.
    Each property that is not named here is a query: it adds a relationship of its name, to which
    its result is sent as one FlowFile. Further tables, such as names to join, are views, too.
    """

    tags = ("spark", "sql", "records", "join", "aggregate")

    queries = DynamicProperties(
        _QUERY, about="Name of a relationship, and the query for it.", relationships=True
    )

    def __init__(self, /, **properties: PropertyValue) -> None:
        super().__init__(**properties)
        self._hidden: Mapping[str, str] = {}

    def check(self) -> Iterator[Problem]:
        """Yield problems between properties."""
        yield from super().check()
        if not self.queries:
            yield Problem("", "there is no query: add a property such as all=SELECT * FROM input")
        yield from name_problems(self)

    @contextlib.contextmanager
    def views(self, spark: SparkSession, frames: Mapping[str, DataFrame]) -> Iterator[None]:
        """Define outlines under the names of the views, and the views under hidden names."""
        hidden = {name: hidden_name() for name in frames}
        try:
            for name, frame in frames.items():
                fields = frame.schema.fields
                columns = tuple((one.name, one.dataType.simpleString()) for one in fields)
                define_outline_view(spark, name, columns)
                frame.createOrReplaceTempView(hidden[name])
            self._hidden = hidden
            yield
        finally:
            for name in (*hidden, *hidden.values()):
                spark.catalog.dropTempView(name)

    def results(
        self,
        spark: SparkSession,
        frames: Mapping[str, DataFrame],  # noqa: ARG002  # they are views
    ) -> Mapping[str, DataFrame]:
        """Return the results of the queries.

        Raises:
            ProcessError: Spark resolves a query to something other than reading the views.
        """
        with constants_kept(spark):
            for name, query in self.queries.items():
                try:
                    check_understood(spark, query)
                except InvalidRequest as error:
                    raise ProcessError(f"{name}: {error}") from error
        return {
            name: relation(spark, query, (), self._hidden) for name, query in self.queries.items()
        }
