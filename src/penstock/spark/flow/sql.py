"""SparkSQL: any SQL over the contents of FlowFiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest
from penstock.flow.processor import DynamicProperties, Kind, Problem
from penstock.flow.processors.routing.routes import name_problems
from penstock.spark.flow.base import SparkProcessor
from penstock.spark.sql.statement import check_reads_only

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def _query(text: str) -> str:
    if not check_reads_only(text):
        raise InvalidRequest("this is no query: write one that begins with SELECT or WITH")
    return text.strip().rstrip(";")


_QUERY: Final = Kind("SQL query", _query)


class SparkSQL(SparkProcessor):
    """Runs SQL on Spark over the records of a batch of FlowFiles, as one job.

    All FlowFiles that wait, up to a number, are the view ``input``, or several views by an
    attribute. Each property that is not named here is a query: it adds a relationship of its name,
    which its result goes to as one FlowFile. Further tables, such as of names to join, are views,
    too.
    """

    tags = ("spark", "sql", "records", "join", "aggregate")

    queries = DynamicProperties(
        _QUERY, about="Name of a relationship, and the query for it.", relationships=True
    )

    def check(self) -> Iterator[Problem]:
        """Yield what is wrong between properties."""
        yield from super().check()
        if not self.queries:
            yield Problem("", "there is no query: give a property such as all=SELECT * FROM input")
        yield from name_problems(self)

    def results(
        self,
        spark: SparkSession,
        frames: Mapping[str, DataFrame],  # noqa: ARG002  # they are views
    ) -> Mapping[str, DataFrame]:
        """Return the results of the queries."""
        return {name: spark.sql(query) for name, query in self.queries.items()}
