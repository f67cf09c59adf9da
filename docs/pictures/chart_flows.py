"""Queues of flows beside NiFi."""

from __future__ import annotations

import re

from charts import PAGE, Measured, chart, number
from drawing import Picture

_ROW = re.compile(r"\| (?P<name>[^|]+) \| [\d,]+ to (?P<peer>[\d,]+) /s \| (?P<ours>[\d,]+) /s \|")


def draw() -> Picture:
    """Return the picture; of NiFi, the higher figure counts."""
    found = [
        Measured(match["name"], ours, peer, ours / peer)
        for match in map(_ROW.fullmatch, PAGE.read_text().splitlines())
        if match is not None
        for ours, peer in [(number(match["ours"]), number(match["peer"]))]
    ]
    return chart(
        "Queues of flows beside NiFi",
        "FlowFiles per second through queues of Penstock and of NiFi.",
        "NiFi, without an fsync",
        found,
    )
