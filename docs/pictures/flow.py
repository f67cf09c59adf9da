"""A flow: processors, queues, back-pressure."""

from __future__ import annotations

from drawing import Picture


def draw() -> Picture:
    """Return the picture."""
    p = Picture(
        860,
        280,
        "A flow of processors and queues",
        "Processors are joined by queues. A full queue stops the processor before it. Content is"
        " stored once, and a commit moves FlowFiles from queue to queue.",
    )
    read = p.box(15, 50, 130, 60, "GetFile\nby timer", "process")
    validate = p.box(290, 50, 150, 60, "ValidateRecord\nwhen it has input", "process")
    publish = p.box(600, 50, 150, 60, "PublishTopic\nto the topic flights", "process")
    rejected = p.box(600, 150, 150, 60, "PublishTopic\nflights.rejected", "process")
    p.box(160, 65, 115, 30, "queue", "data", small=True)
    p.box(455, 65, 130, 30, "queue: valid", "data", small=True)
    p.box(455, 165, 130, 30, "queue: invalid", "data", small=True)
    p.arrow(read.side("right"), (160, 80))
    p.arrow((275, 80), validate.side("left"))
    p.arrow(validate.side("right"), (455, 80))
    p.arrow((585, 80), publish.side("left"))
    p.arrow(validate.side("bottom"), (455, 180), via=((365, 180),))
    p.arrow((585, 180), rejected.side("left"))
    p.box(15, 225, 200, 40, "content\nwritten once, never changed", "store")
    p.box(235, 225, 220, 40, "journal of commits\none fsync for many", "store")
    p.box(475, 225, 220, 40, "swap files\nof long queues", "store")
    p.text(15, 25, "a full queue stops the processor before it", faint=True)
    assert publish.right < p.width
    return p
