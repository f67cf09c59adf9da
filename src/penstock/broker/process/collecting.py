"""Garbage collection during the creation of very many permanent objects.

Owns the switch. A hundred thousand topics are millions of objects: repeated collections during
their creation would double the time of a start, and later each full collection would stop the event
loop while it traverses all of them.
"""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def lasting_objects() -> Iterator[None]:
    """Disable collection in the block, and exempt all objects at its end from later ones."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
