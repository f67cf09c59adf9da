"""How other engines read a datasource."""

from __future__ import annotations

from drawing import Picture


def draw() -> Picture:
    """Return the picture."""
    p = Picture(
        880,
        325,
        "How other engines read a datasource",
        "An engine loads the table from the router. It plans a read by itself, from manifests in"
        " the deep storage, or has the router plan it, and opens the files of segments itself.",
    )
    engine = p.box(20, 110, 140, 60, "Engine\nPyIceberg, DuckDB, …", "user")
    router = p.box(330, 20, 190, 60, "Router\ncatalog at /iceberg/v1", "process")
    metadata = p.box(690, 20, 170, 60, "Metadata store\nsegments, revision", "store")
    manifests = p.box(330, 120, 190, 60, "Versions of the table\nmetadata, manifests", "store")
    segments = p.box(330, 220, 190, 60, "Segments\nParquet files", "data")
    running = p.box(690, 220, 170, 60, "Running tasks\nannounced files", "data")
    p.arrow(engine.side("top"), router.side("left"), "load, or plan", via=((90, 50),))
    p.arrow(router.side("right"), metadata.side("left"), "one revision")
    p.arrow(router.side("bottom"), manifests.side("top"), "writes")
    p.arrow(engine.side("right"), manifests.side("left"), "its own plan")
    p.arrow(engine.side("bottom"), segments.side("left"), "reads rows", via=((90, 250),))
    p.arrow(
        engine.side("bottom", 0.25),
        running.side("bottom"),
        "reads rows, if the router planned",
        via=((55, 310), (775, 310)),
        dashed=True,
    )
    return p
