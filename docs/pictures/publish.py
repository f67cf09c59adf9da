"""How a streaming task publishes: a sequence diagram."""

from __future__ import annotations

from drawing import Picture

LIVES = (("Task", 70), ("Spark", 235), ("Deep storage", 400), ("Overlord", 565), ("Metadata", 740))


def draw() -> Picture:
    """Return the picture."""
    p = Picture(
        820,
        430,
        "How a task publishes exactly once",
        "The task has Spark write files, copies them to deep storage, and asks the overlord to"
        " publish. One transaction inserts the segments and moves the offsets, only if the stored"
        " offsets are where the task began.",
    )
    at = dict(LIVES)
    for name, x in LIVES:
        p.box(x - 60, 15, 120, 32, name, "process" if name != "Metadata" else "store")
        p.line((x, 47), (x, 415))

    def step(y: float, start: str, end: str, text: str, *, back: bool = False) -> None:
        p.arrow(
            (at[start], y),
            (at[end], y),
            text,
            dashed=back,
            at=((at[start] + at[end]) / 2, y - 9),
        )

    step(80, "Task", "Spark", "parse offsets 0 to 900")
    step(110, "Spark", "Task", "Parquet files, fsynced", back=True)
    step(145, "Task", "Overlord", "announce the files: rows are in SQL now")
    step(175, "Overlord", "Metadata", "store")
    step(215, "Task", "Deep storage", "merge and copy")
    step(250, "Task", "Overlord", "publish segments, offsets 0 to 900")
    step(280, "Overlord", "Metadata", "one transaction")
    p.box(
        430,
        295,
        380,
        62,
        "lock still valid? stored offsets = 0?\nthen: insert segments, offsets = 900,"
        "\nwithdraw the announcement",
        "data",
        small=True,
    )
    step(385, "Overlord", "Task", "done, or: nothing changed", back=True)
    p.text(15, 412, "A killed task repeats this; the second publish finds offset 900.", faint=True)
    return p
