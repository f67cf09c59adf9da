"""Tables of a source for one principal, also if they cannot be listed."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from penstock.core.access.row_rules import ALL_ROWS
from penstock.core.errors import (
    CorruptData,
    InvalidRequest,
    MetadataUnavailable,
    PenstockError,
    Unavailable,
)
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions
from penstock.spark.sql.limited_tables import SqlReader
from penstock.spark.sql.service import SqlQuery, SqlService
from penstock.spark.tables.readable_tables import ReadableTables, listed_tables
from penstock.testing.clock import VirtualClock

if TYPE_CHECKING:
    from penstock.spark.tables import TableSource


class FailingSource:
    def __init__(self, error: PenstockError) -> None:
        self._error = error

    def tables(self) -> object:
        raise self._error


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("load spec /payments/x is not of the store"),
        CorruptData("/payments/x", 0, "odd"),
    ],
)
def test_the_datasource_of_others_whose_files_are_odd_is_not_named(
    error: PenstockError, caplog: pytest.LogCaptureFixture
) -> None:
    source = cast("TableSource", FailingSource(error))
    with pytest.raises(Unavailable, match="cannot be listed") as caught:
        ReadableTables(source, lambda _name: False).tables()
    assert "payments" not in f"{caught.value}{caught.value.__cause__}"
    assert "payments" in caplog.text


def test_the_error_of_a_query_names_no_file_of_others_if_they_cannot_be_listed() -> None:
    odd = InvalidRequest("load spec /payments/x is not of the store")
    nowhere = SparkSessions(SparkSessionOptions("sc://localhost:1"))
    service = SqlService(nowhere, cast("TableSource", FailingSource(odd)), VirtualClock())
    reader = SqlReader("clicks alone", lambda name: ALL_ROWS if name == "clicks" else None)
    with pytest.raises(Unavailable, match="cannot be listed") as caught:
        service.query(SqlQuery("SELECT * FROM clicks", reader=reader))
    assert "payments" not in str(caught.value)


def test_what_passes_by_itself_is_reported() -> None:
    source = cast("TableSource", FailingSource(MetadataUnavailable("the store does not answer")))
    with pytest.raises(MetadataUnavailable, match="does not answer"):
        listed_tables(source)
