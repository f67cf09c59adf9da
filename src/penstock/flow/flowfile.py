"""The FlowFile: what moves through a flow, attributes and a claim on content.

Owns the value and the names that every FlowFile has. Does not own where one is (a queue, a swap
file, a process session) nor its bytes.

Invariants: immutable, so that threads share it and a change makes a new one with the same id; the
id is unique for the life of a repository; attributes are text, and `uuid` never changes.
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
    """One FlowFile. Fields and their meaning are NiFi's.

    A struct that the garbage collector does not walk: there are many, and they hold no cycles.

    Attributes:
        id: Number of the record, of the repository's sequence.
        attributes: Text by name; never changed in place.
        size: Length of the content in bytes.
        claim: Where the content is; None if there is none.
        content_offset: Where this FlowFile's content begins in the claim, in bytes.
        entry_ms: When it entered this system, epoch milliseconds; its age counts from here.
        lineage_start_ms: When its oldest ancestor entered.
        lineage_index: Orders those of one millisecond.
        queued_ms: When it was last put into a queue.
        queue_index: Orders those of one millisecond.
        penalty_until_ms: Not handed out before then; 0: not penalized.
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
        """Say whether it must not be handed out yet."""
        return self.penalty_until_ms > now_ms
