"""The garbage collector while very many objects are made that stay.

Owns the switch. A hundred thousand topics are millions of objects: looking through them again and
again while they are made would double the time of a start, and later each full collection would
stop the event loop for as long as it takes to look at all of them.
"""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def lasting_objects() -> Iterator[None]:
    """Do not collect while the block runs, nor ever look at what is there at its end."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
