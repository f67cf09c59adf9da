"""Garbage collector settings for processes with many long-lived objects.

`freeze_new_objects` disables collection while a block creates long-lived objects, such as the
topics of a broker at its start, and then freezes them: scanning millions of objects repeatedly
would double the start time, and each later full collection would stop the event loop.
`collect_for_flows` collects once after a start, freezes the remaining objects and makes
collections rarer. Both change a setting of the whole process, so only the start of a process
calls them.
"""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def freeze_new_objects() -> Iterator[None]:
    """Disable collection in the block, and exempt all objects at its end from later ones."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


# FlowFiles contain no cycles, and the collector does not track them. But sessions create thousands
# of other objects. With the default threshold of 700 the collector would scan these several times
# in each batch and free nothing, which costs 5 % of the time or more.
_YOUNG_OBJECTS: Final = 10_000
_YOUNG_COLLECTIONS: Final = 20
_MIDDLE_COLLECTIONS: Final = 50


def collect_for_flows() -> None:
    """Collect garbage, exempt the remaining objects from later scans, and scan less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_COLLECTIONS, _MIDDLE_COLLECTIONS)
