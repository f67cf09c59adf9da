"""flights.yaml of the examples, but for its Spark: what comes of good records, and of bad ones."""

from __future__ import annotations

from pathlib import Path

import orjson
import pyarrow.compute as pc
import pytest

from penstock.core.errors import Unavailable
from penstock.flow.graph.yaml_reader import read_flow
from penstock.flow.processors.records.convert_record import ConvertRecord
from penstock.flow.processors.records.validate_record import ValidateRecord
from penstock.services.cli.entry import run
from penstock.services.demo.flights import (
    AIRLINES,
    BAD_RECORDS,
    MONTHS,
    read_flights,
    write_airlines,
    write_month,
)
from penstock.services.examples import example
from penstock.testing.flow import ProcessorRunner

FLOW = read_flow(example("flights.yaml"), "").flow
MARCH = 3


def converted(content: bytes, properties: dict[str, str]) -> list[object]:
    with ProcessorRunner(ConvertRecord, properties) as runner:
        runner.enqueue(content)
        runner.run()
        [sent] = runner.sent("success")
        return [orjson.loads(line) for line in sent.content.splitlines()]


def test_events_are_the_records_with_their_types_and_nulls(tmp_path: Path) -> None:
    flights = read_flights()
    write_month(tmp_path, flights, MARCH)
    with ProcessorRunner(ValidateRecord, FLOW.processors["Validate"].properties) as runner:
        runner.enqueue((tmp_path / "flights-2013-03.csv").read_bytes())
        runner.run()
        [valid], [invalid] = runner.sent("valid"), runner.sent("invalid")
    events = converted(valid.content, {"input_format": "parquet", "output_format": "json-lines"})
    expected = flights.filter(pc.equal(flights["month"], MARCH)).to_pylist()
    assert events == expected
    assert any(one["dep_delay"] is None for one in expected)
    # As it came: also what is no number.
    described = converted(invalid.content, FLOW.processors["Describe"].properties)
    assert [list(one.values()) for one in described if isinstance(one, dict)] == [
        [field or None for field in record.split(",")] for record in BAD_RECORDS
    ]


def test_the_command_writes_all_files(tmp_path: Path) -> None:
    assert run(["demo", "--files", str(tmp_path / "files")]) == 0
    names = {path.name for path in (tmp_path / "files").iterdir()}
    assert names == {AIRLINES, *(f"flights-2013-{month:02}.csv" for month in MONTHS)}


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="name another folder"):
        write_airlines(tmp_path / "file")
