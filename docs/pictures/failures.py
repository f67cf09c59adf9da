"""Data that survives each kind of failure."""

from __future__ import annotations

from drawing import Kind, Picture

COLUMNS = ("kill -9 of any process", "power loss", "full disk", "damaged bytes")
ROWS: tuple[tuple[str, tuple[tuple[str, Kind], ...]], ...] = (
    (
        "durable publish, answered",
        (("kept", "store"), ("kept", "store"), ("kept", "store"), ("block lost, counted", "bad")),
    ),
    (
        "publish, answered",
        (
            ("kept", "store"),
            ("last 2 s may be lost", "data"),
            ("kept", "store"),
            ("block lost, counted", "bad"),
        ),
    ),
    (
        "row in SQL",
        (("kept", "store"), ("kept", "store"), ("kept", "store"), ("read again", "store")),
    ),
    (
        "published segment",
        (("kept", "store"), ("kept", "store"), ("kept", "store"), ("query names the file", "bad")),
    ),
    (
        "FlowFile, committed",
        (
            ("kept", "store"),
            ("last 0.1 s may be lost", "data"),
            ("kept", "store"),
            ("start fails, place named", "bad"),
        ),
    ),
)


def draw() -> Picture:
    """Return the picture."""
    p = Picture(
        860,
        260,
        "What survives which failure",
        "A table: acknowledged messages, rows, segments and FlowFiles survive kill -9 and a full"
        " disk; without durable=1 the last two seconds may be lost in a power cut; damaged bytes"
        " are counted and named.",
    )
    for number, column in enumerate(COLUMNS):
        p.text(190 + 168 * number, 22, column, bold=True)
    for line, (name, cells) in enumerate(ROWS):
        top = 42 + 42 * line
        p.text(15, top + 17, name)
        for number, (text, kind) in enumerate(cells):
            p.box(190 + 168 * number, top, 158, 34, text, kind, small=True)
    return p
