"""A batch task that replaces a day."""

from __future__ import annotations

from drawing import Kind, Picture


def draw() -> Picture:
    """Return the picture."""
    p = Picture(
        880,
        230,
        "A batch task",
        "A batch task takes its locks, has Spark read and sort the input, writes segments to deep"
        " storage, and publishes them in one transaction.",
    )
    steps: tuple[tuple[str, Kind], ...] = (
        ("Files, URLs,\nS3, SQL, datasources", "user"),
        ("1. Locks on the\ntime chunks", "process"),
        ("2. Spark reads,\nparses, sorts", "data"),
        ("3. Segments to\ndeep storage", "store"),
        ("4. One transaction\nmakes them visible", "process"),
        ("Visible in SQL,\nold version deleted", "user"),
    )
    p.steps(50, 60, steps)
    p.text(
        10,
        150,
        "Killed before step 4: nothing is visible, and the task runs again from step 1."
        "\nKilled after it: the task finds its publish and ends."
        "\nQueries that began before step 4 read the old version to their end.",
        faint=True,
    )
    return p
