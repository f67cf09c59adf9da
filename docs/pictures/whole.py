"""The whole of Penstock: from events to answers."""

from __future__ import annotations

from drawing import Picture


def draw() -> Picture:
    """Return the picture."""
    p = Picture(
        900,
        330,
        "Penstock as a whole",
        "Producers publish events to topics on disk; flows check and change them; supervised tasks"
        " index them on Spark into segments; SQL reads segments and the rows of running tasks.",
    )
    p.group(195, 20, 515, 295, "Penstock: one pip install")
    producers = p.box(15, 55, 125, 50, "Producers\nNSQ clients, HTTP", "user")
    consumers = p.box(15, 125, 125, 50, "Consumers\nNSQ clients", "user")
    sources = p.box(15, 215, 125, 50, "Sources\nfiles, HTTP, logs", "user")
    topics = p.box(220, 70, 150, 90, "Topics\non disk\nin stream partitions", "store")
    flow = p.box(220, 210, 150, 60, "Flows\nqueues swap to disk", "process")
    tasks = p.box(420, 70, 150, 60, "Streaming tasks\neach event once", "process")
    batch = p.box(420, 210, 150, 60, "Batch tasks\nload, replace", "process")
    segments = p.box(600, 130, 90, 80, "Segments\nParquet\nin versions", "store")
    sql = p.box(755, 70, 125, 60, "SQL\nin seconds", "user")
    readers = p.box(755, 210, 125, 60, "Spark\nand Parquet readers", "user", small=True)
    p.text(315, 295, "Overlord: tasks, locks, supervisors, versions")
    p.arrow(producers.side("right"), topics.side("left", 0.11), "publish", at=(168, 71))
    p.arrow(topics.side("left", 0.89), consumers.side("right"), "deliver", at=(168, 141))
    p.arrow(sources.side("right"), flow.side("left"))
    p.arrow(flow.side("top"), topics.side("bottom"), both=True)
    p.arrow(topics.side("right", 1 / 3), tasks.side("left"), "read")
    p.arrow(tasks.side("right"), segments.side("left", 0.3), via=((585, 100), (585, 154)))
    p.arrow(batch.side("right"), segments.side("left", 0.75), via=((585, 240), (585, 190)))
    p.arrow(segments.side("right", 0.3), sql.side("left"), via=((728, 154), (728, 100)))
    p.arrow(segments.side("right", 0.75), readers.side("left"), via=((728, 190), (728, 240)))
    p.arrow(
        tasks.side("top"),
        sql.side("top"),
        "rows that are not in a segment yet",
        via=((495, 48), (817, 48)),
        dashed=True,
        at=(600, 39),
    )
    return p
