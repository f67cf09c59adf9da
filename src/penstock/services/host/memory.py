"""Whether a second Spark fits into the memory of this host, and how much of it queries may use.

Owns the rule by which queries get a JVM of their own (decision 38), and the limit of that JVM and
its Python workers together (decision 83).
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.services.options.table import PenstockOptions
from penstock.spark.connect.connect_address import shown

SHARED = "none"
_UNITS = {"m": 1 << 20, "g": 1 << 30}
_HEAPS = ("2g", "1g")  # the largest that fits
# A JVM needs a third more than its heap; the Python processes of a small Penstock take this.
_BEYOND_HEAP = 4 / 3
_PYTHON_BYTES = 3 << 29
# Memory of a JVM beside its heap: buffers up to the size of the heap, classes and code.
_BUFFERS_PER_HEAP = 1
_CODE_BYTES = 1 << 30
# Part of the memory that Penstock may use: other programs and the page cache need the rest.
_SHARE = 3 / 4


@dataclass(frozen=True, slots=True)
class QuerySpark:
    """The Spark that answers queries.

    Attributes:
        memory: Heap of a local JVM that answers only queries; None if there is no such JVM.
        reason: The reason, for users.
        is_warning: Whether a query can end the JVM of tasks without an explicit option.
    """

    memory: str | None
    reason: str
    is_warning: bool = False


def query_spark(options: PenstockOptions, total_bytes: int | None) -> QuerySpark:
    """Decide whether a local Spark of their own answers queries, and state the reason.

    Args:
        options: The user's options.
        total_bytes: Memory of the host; None if unknown.
    """
    given = options.query_memory
    if options.query_connect is not None:
        return QuerySpark(None, f"queries use the Spark at {shown(options.query_connect)}")
    if given == SHARED:
        return QuerySpark(None, "queries and tasks share one Spark: --query-memory none")
    if given is not None:
        return QuerySpark(given, f"queries have a Spark of their own: --query-memory {given}")
    if options.spark_connect is not None:
        return QuerySpark(None, "queries use the Spark of tasks: --spark-connect names it")
    if not options.spark_master.startswith("local"):
        return QuerySpark(
            None,
            "queries and tasks share one Spark: the first one would take all cores of the cluster",
        )
    if total_bytes is None:
        return QuerySpark(
            None,
            "queries and tasks share one Spark, which a single query can end: the memory of this"
            " host is unknown; --query-memory 1g gives queries one of their own",
            is_warning=True,
        )
    size = f"{total_bytes / (1 << 30):.1f} GiB of memory"
    for heap in _HEAPS:
        if _needed(options.spark_memory, heap) <= total_bytes * _SHARE:
            return QuerySpark(heap, f"queries have a Spark of their own with {heap}: {size}")
    least = _needed(options.spark_memory, _HEAPS[-1]) / _SHARE / (1 << 30)
    return QuerySpark(
        None,
        f"queries and tasks share one Spark, which a single query can end: {size} are less than"
        f" the {least:.1f} GiB that a second one needs on top of --spark-memory"
        f" {options.spark_memory}",
        is_warning=True,
    )


def query_memory_limit(options: PenstockOptions, heap: str, total_bytes: int | None) -> int:
    """Return how many bytes the JVM of queries and its Python workers may use together.

    That is what the other processes of Penstock leave, so that a query that exceeds it ends only
    its own JVM. It is never less than the JVM needs.

    Args:
        options: The user's options.
        heap: Heap of that JVM.
        total_bytes: Memory of the host; None if unknown.
    """
    least = _bytes(heap) * (1 + _BUFFERS_PER_HEAP) + _CODE_BYTES
    if total_bytes is None:
        return least
    others = _needed(options.spark_memory) if options.spark_connect is None else _PYTHON_BYTES
    return min(max(least, int(total_bytes * _SHARE - others)), total_bytes)


def _needed(*heaps: str) -> float:
    return sum(_bytes(heap) for heap in heaps) * _BEYOND_HEAP + _PYTHON_BYTES


def _bytes(heap: str) -> int:
    return int(heap[:-1]) * _UNITS[heap[-1]]
