"""Streams whose columns are found, and rolled up csv: their events, and what these must come to.

Two supervisors. Both see each event once or the sums are wrong; of the columns that are found each
has a known number of values; of roll-up the greatest and the last value of each row are those of
all its events, after a compaction that brings together what was published apart.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pydantic import JsonValue

from penstock.services.sql_client import ask
from tests.system.load_kit import (
    HOUR_MS,
    HOURS,
    START_MS,
    Rig,
    cents_of,
    stream_of_hours,
)

EVERYBODY = ("peon", "spark", "worker", "overlord", "spark's python", "peon")
# Spark's starts take most of the time: the first two stand for all, unless there is time for more.
VICTIMS = EVERYBODY if "PENSTOCK_INDEXING_MINUTES" in os.environ else EVERYBODY[:2]
LOAD_S = 3.5 * len(VICTIMS)
RATE_PER_S = 600
FOUND, VISITS = "found", "visits"
STEP = 1_000
"""Every so many events a column comes that was not there before."""
PAGES, PEOPLE = 7, 997


FINDS = stream_of_hours(FOUND, {"useSchemaDiscovery": True}, [], {"rollup": False})
BY_HOUR: dict[str, JsonValue] = {"queryGranularity": "HOUR", "rollup": True}
ROLLS_UP = stream_of_hours(
    VISITS,
    {"dimensions": ["page"]},
    [
        {"type": "count", "name": "n"},
        {"type": "longSum", "name": "total", "fieldName": "cents"},
        {"type": "longMax", "name": "most", "fieldName": "cents"},
        {"type": "stringLast", "name": "word", "fieldName": "said"},
        {"type": "HLLSketchBuild", "name": "about", "fieldName": "person"},
        {"type": "thetaSketch", "name": "people", "fieldName": "person"},
    ],
    BY_HOUR,
    inputFormat={"type": "csv", "columns": ["time", "page", "person", "cents", "said"]},
)


def times_of(numbers: np.ndarray) -> np.ndarray:
    """Return the times of events, no two alike."""
    times: np.ndarray = START_MS + (numbers % HOURS) * HOUR_MS + numbers % HOUR_MS
    return times


def messages(*parts: str | np.ndarray | pa.Array) -> Sequence[bytes]:
    """Return a message of each row of columns, with the texts between them."""
    texts = [p if isinstance(p, str) else pc.cast(pa.array(p), pa.string()) for p in parts]
    lines = pc.binary_join_element_wise(*texts, "")
    return list(pc.cast(lines, pa.binary()).to_pylist())


def finds(first: int, count: int) -> Sequence[bytes]:
    """Return objects with a column of their own time, one of two types, and one of halves."""
    numbers = np.arange(first, first + count, dtype=np.int64)
    quote = pa.array(np.where(numbers // STEP % 2, '"t', "").tolist())
    end = pa.array(np.where(numbers // STEP % 2, '"', "").tolist())
    return messages(
        *('{"time": ', times_of(numbers), ', "seq": ', numbers, ', "half": ', numbers / 2),
        *(', "mixed": ', quote, numbers, end),
        *(', "since', numbers // STEP, '": ', numbers % 10, "}"),
    )


def visits(first: int, count: int) -> Sequence[bytes]:
    """Return lines of csv."""
    numbers = np.arange(first, first + count, dtype=np.int64)
    return messages(
        *(times_of(numbers), ",p", numbers % PAGES, ',"u ', numbers % PEOPLE, '",'),
        *(cents_of(numbers), ',"w, ', numbers, '"'),
    )


def rows(rig: Rig, statement: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in ask(rig.api, statement).rows]


def strike_all(rig: Rig) -> None:
    """Strike in turn for as long as the load lasts."""
    started_s = rig.clock.monotonic_s()
    for number, name in enumerate(VICTIMS, 1):
        due_s = started_s + LOAD_S * number / (len(VICTIMS) + 1)
        rig.wait(max(0.0, due_s - rig.clock.monotonic_s()))
        rig.kill(name)
    rig.wait(max(0.0, started_s + LOAD_S - rig.clock.monotonic_s()))


def require_found(rig: Rig, sent: int) -> None:
    """Insist that each column is there, of the right type, with the values that were sent."""
    numbers = np.arange(sent)
    since = [f"since{k}" for k in range((sent - 1) // STEP + 1)]
    shape = dict(row[:2] for row in rows(rig, f'DESCRIBE "{FOUND}"'))
    types = {"__time": "timestamp", "seq": "bigint", "half": "double", "mixed": "string"}
    assert shape == types | dict.fromkeys(since, "bigint")
    each = "".join(f", count({name}), sum({name})" for name in since)
    [row] = rows(
        rig,
        "SELECT count(*), count(DISTINCT seq), sum(half), count(DISTINCT mixed)"
        f'{each} FROM "{FOUND}"',
    )
    wanted: list[object] = [sent, sent, float(numbers.sum()) / 2, sent]
    for k in range(len(since)):
        part = numbers[k * STEP : (k + 1) * STEP]
        wanted += [len(part), int((part % 10).sum())]
    assert list(row) == wanted


def require_rolled_up(rig: Rig, sent: int) -> None:
    """Insist that the rows, few or many, add up to what was sent."""
    cents = cents_of(np.arange(sent))
    [row] = rows(
        rig,
        "SELECT sum(n), sum(total), max(most), theta_sketch_estimate(theta_union_agg(people)),"
        f' hll_sketch_estimate(hll_union_agg(about)) FROM "{VISITS}"',
    )
    assert row[:4] == (sent, cents.sum(), cents.max(), PEOPLE)
    assert row[4] == pytest.approx(PEOPLE, rel=0.05)


def require_rows_of_pages(rig: Rig, sent: int) -> None:
    """Insist that there is one row of each page and hour, and that it is of all its events."""
    statement = (
        "SELECT page, hour(__time), n, total, most, word, theta_sketch_estimate(people)"
        f' FROM "{VISITS}"'
    )
    numbers = np.arange(sent)
    hour, page = numbers % HOURS, numbers % PAGES
    wanted = []
    for h in range(HOURS):
        for p in range(PAGES):
            mine = numbers[(hour == h) & (page == p)]
            cents = cents_of(mine)
            sums = (len(mine), int(cents.sum()), int(cents.max()))
            wanted.append((f"p{p}", h, *sums, f"w, {mine[-1]}", len(set(mine % PEOPLE))))
    assert sorted(rows(rig, statement), key=str) == sorted(wanted, key=str)
