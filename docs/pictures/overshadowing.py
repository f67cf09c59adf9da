"""Versions of segments on a timeline, and which rows a query sees."""

from __future__ import annotations

from drawing import Picture

LEFT = 130
DAY = 180


def draw() -> Picture:
    """Return the picture."""
    p = Picture(
        720,
        300,
        "Versions and overshadowing",
        "Three days of version 1. A replacement of the second day has version 2 and hides version 1"
        " of that day. An append to the third day has the same version as the day's segments.",
    )
    for number, day in enumerate(("1 May", "2 May", "3 May")):
        left = LEFT + DAY * number
        p.text(left + 70, 25, day, bold=True)
        p.line((left, 40), (left, 220))
    p.line((LEFT + 3 * DAY, 40), (LEFT + 3 * DAY, 220))
    p.text(15, 75, "version 1", bold=True)
    p.text(15, 145, "version 2", bold=True)
    p.box(LEFT + 5, 55, 170, 40, "clicks, 1 May", "store")
    p.box(LEFT + DAY + 5, 55, 170, 40, "clicks, 2 May\nhidden, then deleted", "old")
    p.box(LEFT + 2 * DAY + 5, 55, 80, 40, "partition 0", "store", small=True)
    p.box(LEFT + 2 * DAY + 92, 55, 83, 40, "1: appended", "store", small=True)
    p.box(LEFT + DAY + 5, 125, 170, 40, "replaced 2 May", "store")
    p.text(15, 200, "a query sees", bold=True)
    p.box(LEFT + 5, 185, 170, 30, "version 1", "data")
    p.box(LEFT + DAY + 5, 185, 170, 30, "version 2", "data")
    p.box(LEFT + 2 * DAY + 5, 185, 170, 30, "version 1, both parts", "data")
    p.text(
        15,
        250,
        "A replacement becomes visible as a whole, in one transaction of the metadata store."
        "\nQueries that began before it read version 1 to their end.",
        faint=True,
    )
    return p
