"""Locks of tasks on a timeline."""

from __future__ import annotations

from drawing import Picture


def draw() -> Picture:
    """Return the picture."""
    p = Picture(
        780,
        300,
        "Locks of tasks on a timeline",
        "Appends share a day with one replacement that contains it. A task with a higher priority"
        " revokes an exclusive lock; a task with the same priority waits.",
    )
    for number, day in enumerate(("1 May", "2 May", "3 May")):
        left = 150 + 200 * number
        p.text(left + 78, 22, day, bold=True)
        p.line((left, 35), (left, 235))
    p.line((750, 35), (750, 235))
    p.text(15, 60, "stream", bold=True)
    p.text(15, 100, "compaction", bold=True)
    p.text(15, 150, "load, priority 50", bold=True)
    p.text(15, 200, "other, priority 50", bold=True)
    p.box(155, 47, 190, 28, "APPEND", "process")
    p.box(155, 87, 190, 28, "REPLACE, contains it", "store")
    p.box(355, 137, 390, 28, "EXCLUSIVE", "data")
    p.box(555, 187, 190, 28, "waits", "old")
    p.text(
        15,
        258,
        "penstock task why shows the lock, its task and its priority."
        "\nA priority of 75 would revoke the lock: the task that held it stops before its publish.",
        faint=True,
    )
    return p
