"""The task groups of a supervisor over time."""

from __future__ import annotations

from drawing import Picture


def draw() -> Picture:
    """Return the picture."""
    p = Picture(
        860,
        330,
        "Task groups of a supervisor over time",
        "Each group reads some stream partitions. After its duration a task publishes its segments"
        " while its successor already reads on. A killed task is replaced, and reads again from the"
        " last checkpoint.",
    )
    p.text(15, 60, "group 0", bold=True)
    p.text(15, 76, "partitions 0, 2", faint=True)
    p.text(15, 190, "group 1", bold=True)
    p.text(15, 206, "partitions 1, 3", faint=True)
    a = p.box(120, 40, 220, 40, "task A reads offsets 0 to 900", "process")
    publish = p.box(340, 40, 110, 40, "publishes", "store")
    b = p.box(340, 95, 260, 40, "task B reads from 900 on", "process")
    p.box(600, 95, 110, 40, "publishes", "store")
    p.box(600, 40, 240, 40, "task D reads on", "process")
    c = p.box(120, 180, 150, 40, "task C reads", "process")
    killed = p.box(270, 180, 70, 40, "killed", "bad")
    again = p.box(
        340, 235, 260, 40, "task C' reads again from the checkpoint", "process", small=True
    )
    p.box(600, 235, 110, 40, "publishes", "store")
    p.arrow(publish.side("bottom", 0.2), b.side("top", 0.09))
    p.arrow(killed.side("bottom", 0.8), again.side("left"), via=((326, 255),))
    p.line((120, 300), (840, 300))
    p.arrow((800, 300), (845, 300), "")
    p.text(120, 315, "start", faint=True)
    p.text(340, 315, "after taskDuration", faint=True)
    p.text(600, 315, "after taskDuration", faint=True)
    assert a.right == publish.left
    assert c.right == killed.left
    return p
