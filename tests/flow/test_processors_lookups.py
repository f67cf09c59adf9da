"""LookupAttribute and LookupRecord: values by key, versions, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from penstock.core.errors import InvalidRequest, MetadataUnavailable, Unavailable
from penstock.flow.processors.failure import ERROR_REASON
from penstock.flow.processors.lookups import LookupAttribute, LookupRecord
from penstock.flow.processors.service_lookups import SERVICE_LOOKUPS
from penstock.storage.lookup_rows import LookupTable
from penstock.testing.clock import VirtualClock
from penstock.testing.flow import ProcessorRunner

ROWS = pa.table(
    {
        "code": ["de", "fr", "7"],
        "name": ["Deutschland", None, "seven"],
        "size": pa.array([357, 544, None], pa.int64()),
    }
)


class Tables:
    """The current versions of lookups."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.table = LookupTable("countries", 1, ROWS)
        self.reads = 0

    def current(self, name: str) -> LookupTable | None:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return self.table if name.lower() == self.table.name else None


@pytest.fixture
def tables() -> Iterator[Tables]:
    made = Tables()
    SERVICE_LOOKUPS.set(made)  # type: ignore[arg-type]  # as much of it as processors use
    yield made
    SERVICE_LOOKUPS.set(None)


ATTRIBUTES = {"lookup_name": "countries", "key": "${code}", "country": "name", "km2": "size"}
RECORDS = {"lookup_name": "countries", "key_field": "c", "input_format": "json-lines"}


def test_attributes_come_from_the_row_of_the_key(tables: Tables) -> None:
    with ProcessorRunner(LookupAttribute, ATTRIBUTES) as runner:
        for code in ("de", "fr", "xx"):
            runner.enqueue(b"", {"code": code, "km2": "old"})
        runner.run()
        first, second = runner.sent("matched")
        (other,) = runner.sent("unmatched")
    assert (first.attributes["country"], first.attributes["km2"]) == ("Deutschland", "357")
    assert "country" not in second.attributes  # null sets nothing
    assert second.attributes["km2"] == "544"
    assert other.attributes["km2"] == "old"


def test_records_get_fields_and_keep_the_others(tables: Tables) -> None:
    properties = {**RECORDS, "country": "name", "c2": "size", "n": "size"}
    with ProcessorRunner(LookupRecord, properties) as runner:
        runner.enqueue(b'{"c": "de", "n": "x"}\n{"c": "xx", "n": "y"}\n{"c": null, "n": "z"}\n')
        runner.enqueue(b'{"c": 7}\n')  # a number is its text
        runner.run(2)
        first, second = runner.sent("success")
    assert first.content.splitlines() == [
        b'{"c":"de","n":357,"country":"Deutschland","c2":357}',
        b'{"c":"xx","n":null,"country":null,"c2":null}',
        b'{"c":null,"n":null,"country":null,"c2":null}',
    ]
    assert first.attributes["lookup.unmatched"] == "2"
    assert b'"country":"seven"' in second.content


def test_a_new_version_is_used_within_a_second(tables: Tables) -> None:
    clock = VirtualClock()
    with ProcessorRunner(LookupAttribute, ATTRIBUTES, clock=clock) as runner:
        for wanted, seconds in (("Deutschland", 0.5), ("Deutschland", 0.6), ("new", 0)):
            runner.enqueue(b"", {"code": "de"})
            runner.run()
            assert runner.sent("matched")[-1].attributes["country"] == wanted
            renamed = ROWS.set_column(1, "name", pa.array(["new", "new", "new"]))
            tables.table = LookupTable("countries", 2, renamed)
            clock.advance(seconds)
    assert tables.reads == 2


def test_without_the_metadata_the_last_version_is_used(tables: Tables) -> None:
    clock = VirtualClock()
    with ProcessorRunner(LookupAttribute, ATTRIBUTES, clock=clock) as runner:
        runner.enqueue(b"", {"code": "de"})
        runner.run()
        tables.error = MetadataUnavailable("the database does not answer")
        clock.advance(5)
        runner.enqueue(b"", {"code": "de"})
        runner.run()
        assert len(runner.sent("matched")) == 2


@pytest.mark.parametrize("name", ["absent", "COUNTRIES"])
def test_flowfiles_wait_for_a_lookup_that_does_not_exist(tables: Tables, name: str) -> None:
    """The right is given for the name as it is written, so another case is another name."""
    with ProcessorRunner(LookupAttribute, {**ATTRIBUTES, "lookup_name": name}) as runner:
        runner.enqueue(b"", {"code": "de"})
        with pytest.raises(Unavailable, match="penstock lookup apply"):
            runner.run()
        assert runner.sent("matched") == []
    assert tables.reads == 1


@pytest.mark.parametrize(
    ("properties", "content", "reason"),
    [
        ({"x": "absent"}, b'{"c": "de"}\n', "has no column"),
        ({"x": "name", "key_field": "k"}, b'{"c": "de"}\n', "have no field"),
        ({"x": "name"}, b'{"c": {"a": 1}}\n', "is not a key"),
        ({"x": "name"}, b"{", ""),
    ],
)
def test_wrong_records_fail_unchanged(
    tables: Tables, properties: dict[str, str], content: bytes, reason: str
) -> None:
    with ProcessorRunner(LookupRecord, {**RECORDS, **properties}) as runner:
        runner.enqueue(content)
        runner.run()
        (failed,) = runner.sent("failure")
    assert failed.content == content
    assert reason in failed.attributes[ERROR_REASON]
    assert tables.reads == 1


@pytest.mark.parametrize("kind", [LookupAttribute, LookupRecord])
def test_without_columns_there_is_nothing_to_do(kind: type[LookupAttribute]) -> None:
    properties = ATTRIBUTES if kind is LookupAttribute else RECORDS
    given = {name: value for name, value in properties.items() if name not in {"country", "km2"}}
    with pytest.raises(InvalidRequest, match="nothing to do"):
        ProcessorRunner(kind, given).__enter__()
