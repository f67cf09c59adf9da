"""The garbage collector of a process whose work is flows.

Owns its setting, which is the whole process's: so only the start of such a process applies it.
"""

from __future__ import annotations

import gc
from typing import Final

# FlowFiles hold no cycles, and the collector does not walk them. But what carries them through a
# session is made by the thousand: with the standard 700 it looks through that several times in
# each batch and finds nothing, for a twentieth of the time or more.
_YOUNG_OBJECTS: Final = 10_000
_YOUNG_COLLECTIONS: Final = 20
_MIDDLE_COLLECTIONS: Final = 50


def collect_for_flows() -> None:
    """Forget what a start left behind, never look at what it made again, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_COLLECTIONS, _MIDDLE_COLLECTIONS)
