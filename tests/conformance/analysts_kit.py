"""The rows that the tools of analysts query, and what they must find.

`superset.json` has the statements of Superset over them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from penstock.testing.server import LocalPenstock

RECORDED = Path(__file__).parent / "recorded"
TABLE = "tool_edits"
MORNING = "2026-11-20T08:10:00.000Z"
QUOTED = '100% "O\'Hara"'
ROWS: tuple[dict[str, object], ...] = (
    {"time": MORNING, "country": "DE", "city": "Bonn", "added": 20, "share": 0.5},
    {"time": "2026-11-20T08:40:00Z", "country": "FR", "city": "Lyon", "added": 7, "share": 1.5},
    {"time": "2026-11-20T10:05:00Z", "country": "DE", "city": "Ulm", "added": 5},
    {"time": "2026-11-21T09:00:00.123Z", "city": QUOTED, "added": -3, "share": 2.25},
    {"time": "2026-12-01T00:00:00Z", "country": "IT", "city": "Röma 10", "added": 2**62,
     "share": -0.25},
    {"time": "2026-12-01T06:30:00Z", "country": "IT", "city": "Röma 9", "added": 1, "share": 4},
)  # fmt: skip


def ingestion(name: str, *rows: dict[str, object]) -> dict[str, Any]:
    """Return the task that writes rows into a datasource."""
    numbers = [{"type": "long", "name": "added"}, {"type": "double", "name": "share"}]
    return {
        "type": "index_parallel",
        "spec": {
            "dataSchema": {
                "dataSource": name,
                "timestampSpec": {"column": "time", "format": "iso"},
                "dimensionsSpec": {"dimensions": ["country", "city", *numbers]},
                "granularitySpec": {"segmentGranularity": "DAY", "rollup": False},
            },
            "ioConfig": {
                "inputSource": {"type": "inline", "data": "\n".join(map(json.dumps, rows))},
                "inputFormat": {"type": "json"},
            },
        },
    }


def superset() -> dict[str, list[str]]:
    """Return the statements that each chart of Superset sends."""
    found: dict[str, list[str]] = json.loads((RECORDED / "superset.json").read_text())
    return found


# What charts of Superset show, in any order of the rows: a statement of each kind.
CHARTS: dict[str, list[list[object]]] = {
    "grain PT15M": [
        ["2026-11-20T08:00:00.000Z", 1], ["2026-11-20T08:30:00.000Z", 1],
        ["2026-11-20T10:00:00.000Z", 1], ["2026-11-21T09:00:00.000Z", 1],
        ["2026-12-01T00:00:00.000Z", 1], ["2026-12-01T06:30:00.000Z", 1],
    ],
    "grain P1W/1970-01-03T00:00:00Z": [
        ["2026-11-21T00:00:00.000Z", 4], ["2026-12-05T00:00:00.000Z", 2],
    ],
    "series": [
        ["2026-11-20T00:00:00.000Z", "DE", 2, 0.5], ["2026-11-20T00:00:00.000Z", "FR", 1, 1.5],
        ["2026-11-21T00:00:00.000Z", None, 1, 2.25], ["2026-12-01T00:00:00.000Z", "IT", 2, 3.75],
    ],
    "filter quote": [[None, 1, 2.25]],
    "filter in null": [[None, 1, 2.25], ["DE", 2, 0.5]],
    "having": [["DE", 2, 0.5], ["IT", 2, 3.75]],
    "computed column": [["big", 3, 1.75], ["small", 3, 6.25]],
    "raw": [
        ["2026-12-01T00:00:00.000Z", "Röma 10", 2**62], ["2026-11-21T09:00:00.123Z", QUOTED, -3],
        ["2026-11-20T10:05:00.000Z", "Ulm", 5], ["2026-11-20T08:40:00.000Z", "Lyon", 7],
        [MORNING, "Bonn", 20],
    ],
}  # fmt: skip


class World:
    """A Penstock with the rows, and the addresses at which tools find it."""

    def __init__(self, penstock: LocalPenstock, flight_address: str) -> None:
        self.url, self.flight = penstock.api_url, f"grpc://{flight_address}"
        self.port = int(self.url.rpartition(":")[2])

    def get(self, path: str) -> Any:
        return httpx.get(self.url + path, timeout=60).raise_for_status().json()

    def post(self, path: str, body: object) -> Any:
        """Return what a request is answered with, which must succeed."""
        found = httpx.post(self.url + path, json=body, timeout=60)
        assert found.status_code == 200, found.text
        return found.json()
