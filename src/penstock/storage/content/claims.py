"""References to content.

Owns the two values that identify bytes in the content repository. Does not own the bytes
(`content_repository`).

Invariant: immutable; equal claims have the same bytes.
"""

from __future__ import annotations

from typing import Final

import msgspec

UNKNOWN_CHECKSUM: Final = -1


class ResourceClaim(
    msgspec.Struct, frozen=True, gc=False, order=True, array_like=True, cache_hash=True
):
    """One file of content, shared by many claims.

    Ordered by id, then container, then section, as in NiFi.

    Attributes:
        id: Name of the file in its section.
        container: Name of the store that holds it.
        section: Name of the folder in it.
        loss_tolerant: Whether it need not be durable.
    """

    id: str
    container: str = "default"
    section: str = "0"
    loss_tolerant: bool = False


class ContentClaim(
    msgspec.Struct, frozen=True, gc=False, order=True, array_like=True, cache_hash=True
):
    """Bytes in a resource claim; FlowFiles share them.

    Attributes:
        resource: The file.
        offset: Their position in it, in bytes.
        length: Their number.
        checksum: Their CRC-32C, or `UNKNOWN_CHECKSUM`.
    """

    resource: ResourceClaim
    offset: int
    length: int
    checksum: int = UNKNOWN_CHECKSUM
