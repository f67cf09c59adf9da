"""Change of the number of FlowFiles that refer to each resource claim, for a commit.

Owns that sum. Does not own the counts (`storage.content`).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.flow.flowfile import FlowFile
    from penstock.flow.repository.changes import Changes
    from penstock.storage.content.claims import ResourceClaim


def references_of(changes: Changes) -> Counter[ResourceClaim]:
    """Return the change of the reference counts by resource claim."""
    counts = Counter([one for put in changes.puts.values() for one in _resources_of(put)])
    before = [*changes.replaced, *changes.removes, *changes.missing]
    # The writer of a written claim counted as one reference until now.
    gone = [*_resources_of(before), *[claim.resource for claim in changes.written]]
    if gone:
        # Counted first, because `subtract` takes an interpreter step for each item.
        counts.subtract(Counter(gone))
    return counts


def _resources_of(flowfiles: Iterable[FlowFile]) -> list[ResourceClaim]:
    return [claim.resource for one in flowfiles if (claim := one.claim) is not None]
