"""A queue of a flow that swaps to disk, in four steps."""

from __future__ import annotations

from drawing import Picture

STEPS = (
    ("1. The queue grows", "20,000 in memory", "", "every FlowFile is in the journal"),
    ("2. A part is written", "20,000 in memory", "swap file, 10,000", "written, fsynced, renamed"),
    ("3. One record", "10,000 in memory", "swap file, 10,000", "the journal names the file"),
    ("4. Read in order", "10,000 in memory", "", "rows are taken from the file"),
)


def draw() -> Picture:
    """Return the picture."""
    p = Picture(
        860,
        250,
        "A swap to disk in four steps",
        "A queue above its threshold writes its last FlowFiles to a swap file, records the file in"
        " the journal, and reads it when their turn comes. A kill between any two steps loses and"
        " doubles nothing.",
    )
    for number, (title, memory, file, remark) in enumerate(STEPS):
        left = 15 + 212 * number
        p.text(left, 25, title, bold=True)
        p.box(left, 45, 190, 40, memory, "process")
        if file:
            p.box(left, 105, 190, 40, file, "store")
        elif number == 3:
            p.box(left, 105, 190, 40, "swap file, being emptied", "old")
        p.text(left, 165, remark, faint=True)
    p.arrow((322, 87), (322, 103))
    p.arrow((746, 103), (746, 87))
    p.text(
        15,
        205,
        "Killed while the file is written: the file is deleted, and the journal has the FlowFiles."
        "\nKilled before the record: the file is set aside, and the journal has them."
        "\nKilled after the record: the file has them.",
        faint=True,
    )
    return p
