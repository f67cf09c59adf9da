"""How a query is answered."""

from __future__ import annotations

from drawing import Kind, Picture


def draw() -> Picture:
    """Return the picture."""
    p = Picture(
        880,
        250,
        "How a query is answered",
        "The router checks the text, takes one snapshot of the metadata, builds views over the"
        " visible files, has Spark plan the statement, checks the plan, and streams the rows.",
    )
    steps: tuple[tuple[str, Kind], ...] = (
        ("Client\nSQL over HTTP", "user"),
        ("1. Check the text\nlimits, allow-list", "process"),
        ("2. One snapshot\nvisible segments and\nannounced files", "store"),
        ("3. Spark plans\nviews over the files", "data"),
        ("4. Check the plan\nallow-list of nodes", "process"),
        ("5. Run and stream\nlarge: through files", "data"),
    )
    boxes = p.steps(60, 70, steps)
    p.arrow(boxes[-1].side("bottom"), boxes[0].side("bottom"), "rows", via=((801, 190), (76, 190)))
    p.text(
        10,
        225,
        "The time limit counts from the arrival. A client that leaves cancels its query.",
        faint=True,
    )
    return p
