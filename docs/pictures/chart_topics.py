"""Topics beside nsqd."""

from __future__ import annotations

from charts import chart, rows
from drawing import Picture

NAMES = (
    "MPUB of 200 x 200 B",
    "PUB, 200 under way",
    "SUB+FIN, 1,000,000 behind",
    "SUB+FIN from memory, 10,000",
)


def draw() -> Picture:
    """Return the picture."""
    found = rows()
    return chart(
        "Topics beside nsqd",
        "Messages per second of Penstock and of nsqd, for publishing and consuming.",
        "nsqd 1.3",
        [found[name] for name in NAMES],
    )
