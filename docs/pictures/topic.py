"""A topic on disk: stream partitions, log files, blocks."""

from __future__ import annotations

from drawing import Picture


def draw() -> Picture:
    """Return the picture."""
    p = Picture(
        860,
        330,
        "A topic on disk",
        "A topic has stream partitions. Each is a folder of log files, and each log file is a"
        " sequence of blocks with a checksum. A publish appends one block. Channels and tasks"
        " remember offsets and share the same files.",
    )
    producer = p.box(15, 70, 120, 50, "Producer\n200 messages", "user")
    p.group(165, 20, 680, 230, "topic clicks")
    p.text(180, 62, "stream partition 0", bold=True)
    old = p.box(180, 75, 190, 40, "log file, offsets from 0", "store")
    new = p.box(385, 75, 440, 40, "", "store")
    for number, text in enumerate(("block 371200", "block 371400", "block 371600")):
        p.box(395 + 120 * number, 82, 110, 26, text, "data", small=True)
    block = p.box(755, 82, 60, 26, "new", "process", small=True)
    p.text(180, 182, "stream partition 1", bold=True)
    p.box(180, 195, 190, 40, "log file, offsets from 0", "store")
    p.box(385, 195, 440, 40, "log file, offsets from 400000", "store")
    p.arrow(
        producer.side("top"),
        block.side("top"),
        "one append, one answer",
        via=((75, 52), (785, 52)),
        at=(480, 43),
    )
    p.text(400, 142, "read: channel, task", faint=True)
    p.arrow((515, 142), (575, 116))
    channel = p.box(
        180, 275, 190, 40, "Channel: an offset\nand what differs from it", "process", small=True
    )
    task = p.box(420, 275, 190, 40, "Task: ranges of offsets", "process", small=True)
    kept = p.box(650, 275, 195, 40, "A file is deleted when all\nhave read it", "note", small=True)
    p.arrow(channel.side("top"), (275, 237))
    p.arrow(task.side("top"), (515, 237))
    assert old.right < new.left
    assert kept.kind == "note"
    return p
