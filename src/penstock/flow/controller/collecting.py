"""Settings of the garbage collector for a process that runs flows.

The settings apply to the whole process, so only the start of such a process applies them.
"""

from __future__ import annotations

import gc
from typing import Final

# FlowFiles contain no cycles, and the collector does not track them. But sessions create thousands
# of other objects. With the default threshold of 700 the collector would scan these several times
# in each batch without result, which costs 5 % of the time or more.
_YOUNG_OBJECTS: Final = 10_000
_YOUNG_COLLECTIONS: Final = 20
_MIDDLE_COLLECTIONS: Final = 50


def collect_for_flows() -> None:
    """Collect garbage, exempt the remaining objects from later scans, and scan less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_COLLECTIONS, _MIDDLE_COLLECTIONS)
