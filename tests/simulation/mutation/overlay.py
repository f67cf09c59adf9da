"""A copy of the sources in which one module has a fault, made of links except for its folders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.simulation.mutation.catalogue import SOURCES, Fault


@contextmanager
def sources_with(fault: Fault | None) -> Iterator[Path]:
    """Give a folder for `PYTHONPATH` that has `penstock` with a fault; None: without one.

    Folders without the module are links to the real ones. In the other folders each file is a link,
    and so is its byte code: Python replaces such a link, and never writes through it.
    """
    if fault is None:
        yield SOURCES.parent
        return
    with TemporaryDirectory(prefix="fault") as place:
        _link(SOURCES, Path(place) / SOURCES.name, Path(fault.file).parts, fault.applied())
        yield Path(place)


def _link(real: Path, copy: Path, way: tuple[str, ...], text: str) -> None:
    """Copy a folder by links; `way` leads to the module that gets another text."""
    copy.mkdir()
    for entry in real.iterdir():
        if entry.name == "__pycache__":
            _link_code(entry, copy / entry.name, Path(way[0]).stem if len(way) == 1 else "")
        elif entry.name != way[0]:
            (copy / entry.name).symlink_to(entry)
        elif len(way) > 1:
            _link(entry, copy / entry.name, way[1:], text)
        else:
            (copy / entry.name).write_text(text, encoding="utf-8")


def _link_code(real: Path, copy: Path, without: str) -> None:
    copy.mkdir()
    for entry in real.iterdir():
        if entry.name.partition(".")[0] != without:
            (copy / entry.name).symlink_to(entry)
