"""Processes of `penstock up`, with their ports."""

from __future__ import annotations

from drawing import Kind, Picture


def draw() -> Picture:
    """Return the picture."""
    p = Picture(
        860,
        400,
        "Processes and ports of penstock up",
        "The launcher starts and watches the broker, the overlord, a worker, the flow, the router"
        " and one or two JVMs. The worker forks a peon for each task.",
    )
    launcher = p.box(330, 15, 200, 44, "penstock up\nstarts, watches, restarts", "note")
    names: tuple[tuple[str, str, Kind], ...] = (
        ("broker", "NSQ :4150\nHTTP :4151", "store"),
        ("flow", "processors\nand queues", "process"),
        ("overlord", "tasks, locks,\nsupervisors", "process"),
        ("worker", "forks peons", "process"),
        ("router", "API, SQL\n:8888", "user"),
    )
    boxes = {}
    for number, (name, text, kind) in enumerate(names):
        left = 15 + 170 * number
        boxes[name] = p.box(left, 110, 150, 66, f"{name}\n{text}", kind)
        p.arrow((430, 59), (left + 75, 110), via=((430, 85), (left + 75, 85)))
    peons = p.box(525, 225, 150, 50, "peons\none for each task", "process")
    spark = p.box(525, 325, 150, 50, "Spark for tasks\nJVM", "data")
    queries = p.box(695, 325, 150, 50, "Spark for queries\nJVM", "data")
    metadata = p.box(355, 225, 150, 50, "metadata\nSQLite, PostgreSQL", "store")
    segments = p.box(355, 325, 150, 50, "segments\nfolder or S3", "store")
    p.arrow(boxes["worker"].side("bottom"), peons.side("top"), "fork", at=(622, 200))
    p.arrow(peons.side("bottom"), spark.side("top"))
    p.arrow(boxes["router"].side("bottom"), queries.side("top"))
    p.arrow(boxes["overlord"].side("bottom"), metadata.side("top"))
    p.arrow(spark.side("left"), segments.side("right"))
    p.text(
        15,
        250,
        "Every process may be killed\nat any moment. It starts\nagain from the disk.",
        faint=True,
    )
    assert launcher.kind == "note"
    return p
