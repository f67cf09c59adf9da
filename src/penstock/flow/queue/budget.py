"""One bound on the memory of FlowFiles over all queues together."""

from __future__ import annotations


class HeapBudget:
    """Bytes of FlowFiles in memory, over all queues; who passes the limit makes the fattest swap.

    Args:
        limit_bytes: An estimate, not a measure: a constant for each FlowFile and its attributes.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
