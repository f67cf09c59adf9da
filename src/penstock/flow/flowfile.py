"""FlowFile: attributes and a claim on content that move through a flow.

Owns the value and the names that every FlowFile has. Does not own its location (a queue, a swap
file, a process session) nor its bytes.

Invariants: immutable, so that threads share it and a change creates a new version with the same id.
The id is unique in the repository for all time. Attributes are text, and `uuid` never changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.storage.content.claims import ContentClaim

UUID: Final = "uuid"
FILENAME: Final = "filename"
PATH: Final = "path"
PRIORITY: Final = "priority"
MIME_TYPE: Final = "mime.type"


class FlowFile(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One FlowFile. The fields and their meaning are NiFi's.

    A struct that the garbage collector does not track, because there are many, and they contain no
    cycles.

    Attributes:
        id: Number from the repository's sequence.
        attributes: Text by name; never changed in place.
        size: Length of the content in bytes.
        claim: Claim that holds the content; None if there is none.
        content_offset: Start of this FlowFile's content in the claim, in bytes.
        entry_ms: Time of entry into this system, epoch milliseconds; its age counts from here.
        lineage_start_ms: Time of entry of its oldest ancestor.
        lineage_index: Order of FlowFiles with the same `lineage_start_ms`.
        queued_ms: Time of its last entry into a queue.
        queue_index: Order of FlowFiles with the same `queued_ms`.
        penalty_until_ms: It cannot be taken before this time; 0: not penalized.
    """

    id: int
    attributes: Mapping[str, str]
    size: int = 0
    claim: ContentClaim | None = None
    content_offset: int = 0
    entry_ms: int = 0
    lineage_start_ms: int = 0
    lineage_index: int = 0
    queued_ms: int = 0
    queue_index: int = 0
    penalty_until_ms: int = 0

    def is_penalized(self, now_ms: int) -> bool:
        """Return whether it is penalized at this time."""
        return self.penalty_until_ms > now_ms
