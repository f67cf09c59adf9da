"""A task's context: the settings of every kind of task, and the locks that follow from them.

A context may hold any keys; known ones are validated, the others are kept unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, Literal, TypeVar

from pydantic import AfterValidator, JsonValue, TypeAdapter, ValidationError

from penstock.core.durations import MAX_DURATION_MS
from penstock.core.errors import InvalidRequest
from penstock.indexing.specs.spec_base import Found, mistakes

T = TypeVar("T")

STREAMING_PRIORITY: Final = 75
BATCH_PRIORITY: Final = 50
COMPACTION_PRIORITY: Final = 25
OTHER_PRIORITY: Final = 0

SUBMITTER: Final = "submitter"
"""Key of a context: id of the principal that submitted the task, which the overlord writes."""

_PRIORITY_MAX: Final = 1_000_000
_LOCK_TYPES: Final = ("EXCLUSIVE", "SHARED", "REPLACE", "APPEND")
LockTypeName = Literal["EXCLUSIVE", "SHARED", "REPLACE", "APPEND"]

_FLAGS: Final = frozenset(
    {
        "forceTimeChunkLock",
        "storeCompactionState",
        "storeEmptyColumns",
        "useConcurrentLocks",
        "useLineageBasedSegmentAllocation",
        "useSharedLock",
    }
)
_NUMBERS: Final = {
    "priority": (-_PRIORITY_MAX, _PRIORITY_MAX),
    "subTaskTimeoutMillis": (0, MAX_DURATION_MS),
    "taskLockTimeout": (0, MAX_DURATION_MS),
}


class IngestionMode(StrEnum):
    """How a batch task treats existing segments."""

    APPEND = "APPEND"
    REPLACE = "REPLACE"
    REPLACE_LEGACY = "REPLACE_LEGACY"
    NONE = "NONE"


@dataclass(frozen=True, slots=True)
class TaskContext:
    """The context with its defaults.

    Attributes:
        priority: Priority of the task's locks, and in the queue; higher goes first.
        lock_timeout_ms: How long one request for a lock waits.
        store_compaction_state: Store in segments how they were created, for automatic compaction.
        force_time_chunk_lock: Batch tasks lock time chunks, never single segments.
    """

    priority: int
    lock_timeout_ms: int = 300_000
    use_concurrent_locks: bool = False
    use_shared_lock: bool = False
    task_lock_type: LockTypeName | None = None
    store_compaction_state: bool = False
    force_time_chunk_lock: bool = True

    def lock_type(self, mode: IngestionMode) -> LockTypeName:
        """Return the type of lock that a batch task acquires.

        Shared and append locks are only for appending: otherwise the lock is exclusive.
        """
        appends = mode is IngestionMode.APPEND
        if self.use_concurrent_locks:
            return "APPEND" if appends else "REPLACE"
        wanted = self._wanted()
        return "EXCLUSIVE" if wanted in {"SHARED", "APPEND"} and not appends else wanted

    @property
    def streaming_lock_type(self) -> LockTypeName:
        """The type of lock that a streaming task acquires."""
        return "APPEND" if self.use_concurrent_locks else self._wanted()

    def _wanted(self) -> LockTypeName:
        if self.task_lock_type is not None:
            return self.task_lock_type
        return "SHARED" if self.use_shared_lock else "EXCLUSIVE"


def read_context(
    context: Mapping[str, JsonValue], *, priority: int, store_compaction_state: bool = False
) -> TaskContext:
    """Return a validated context with the defaults of the task's kind.

    Args:
        context: The context, as a model holds it.
        priority: The default priority.
        store_compaction_state: The default for this setting.
    """
    named = context.get("taskLockType")
    return TaskContext(
        priority=_number(context, "priority", priority),
        lock_timeout_ms=_number(context, "taskLockTimeout", 300_000),
        use_concurrent_locks=uses_concurrent_locks(context),
        use_shared_lock=_flag(context, "useSharedLock", default=False),
        task_lock_type=next((t for t in _LOCK_TYPES if t == named), None),
        store_compaction_state=_flag(
            context, "storeCompactionState", default=store_compaction_state
        ),
        force_time_chunk_lock=_flag(context, "forceTimeChunkLock", default=True),
    )


def with_defaults(context: Mapping[str, T], defaults: Mapping[str, T]) -> dict[str, T]:
    """Return a context with defaults for missing and null keys."""
    given = {k: v for k, v in context.items() if v is not None or k not in defaults}
    return {**defaults, **given}


def uses_concurrent_locks(context: Mapping[str, object]) -> bool:
    """Return `useConcurrentLocks` of a context, validated or not; Druid accepts text too."""
    return _as_flag(context.get("useConcurrentLocks")) is True


def _check_context(context: dict[str, JsonValue]) -> dict[str, JsonValue]:
    found: Found = []
    for name, value in context.items():
        if value is None:
            continue  # Null counts as absent everywhere.
        if name in _FLAGS and _as_flag(value) is None:
            found.append(((name,), value, "must be true or false"))
        elif name in _NUMBERS and (text := _wrong_number(value, *_NUMBERS[name])):
            found.append(((name,), value, text))
        elif name == "taskLockType" and value not in _LOCK_TYPES:
            found.append(((name,), value, f"must be one of {', '.join(_LOCK_TYPES)}"))
        elif name == "tags" and not isinstance(value, dict):
            found.append(((name,), value, "must be an object"))
    if found:
        raise mistakes("context", found)
    return context


def _without_submitter(context: dict[str, JsonValue]) -> dict[str, JsonValue]:
    return {name: value for name, value in context.items() if name != SUBMITTER}


Context = Annotated[dict[str, JsonValue], AfterValidator(_check_context)]
ContextOfCreated = Annotated[Context, AfterValidator(_without_submitter)]
"""Context of tasks that the overlord creates, as users set it.

No principal has submitted such a task. With a submitter, it would count for the quota of that one.
"""
_CONTEXT: Final = TypeAdapter[dict[str, JsonValue]](Context)


def checked_context(value: object, place: str) -> dict[str, JsonValue]:
    """Return a validated context from another source than a spec.

    Raises:
        InvalidRequest: It is not valid for any task.
    """
    try:
        return _CONTEXT.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(step) for step in first["loc"])
        raise InvalidRequest(f"{name}: {first['msg']}", place=place) from None


def _wrong_number(value: JsonValue, least: int, most: int) -> str:
    number = _as_number(value)
    if number is None:
        return "must be a whole number"
    return "" if least <= number <= most else f"must be from {least} to {most}"


def _as_flag(value: object) -> bool | None:
    """Return a flag, which Druid also accepts as text; None if it is neither."""
    if isinstance(value, bool):
        return value
    folded = value.lower() if isinstance(value, str) else None
    return {"true": True, "false": False}.get(folded or "")


def _as_number(value: JsonValue) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str) and len(value) < 20 and value.lstrip("-").isascii():
        try:
            return int(value)
        except ValueError:
            return None
    return None


def _flag(context: Mapping[str, JsonValue], name: str, *, default: bool) -> bool:
    found = _as_flag(context.get(name))
    return default if found is None else found


def _number(context: Mapping[str, JsonValue], name: str, default: int) -> int:
    found = _as_number(context.get(name))
    return default if found is None else found
