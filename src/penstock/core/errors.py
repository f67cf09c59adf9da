"""Errors of Penstock, one class for each reaction of the caller.

    PenstockError
      InvalidRequest   correct the request; nothing was changed
        Unauthenticated  show a valid credential
        Forbidden      ask for the right, or use another credential
        TooLargeForQuota  send less at once
      NotFound         the named thing does not exist
      Conflict         it exists already, or its state forbids the request
      Unavailable      try again later; nothing was changed; names the dependency that fails
        Fenced         another leader took over: stop leading; clients ask the new one
        Full           a limit is reached: wait until some of the contents are removed
          QuotaExceeded  the limit is the caller's own
      Closed           the component was closed; create a new one
      LockRevoked      abandon the work: a task with a higher priority took over
      CorruptData      bytes on disk differ from those written (file, position, reason)

Every message names the thing, the problem, and the remedy.
"""

from __future__ import annotations

from enum import StrEnum


class Dependency(StrEnum):
    """A service or resource that work needs; the values are shown to users."""

    STORAGE = "deep storage"
    METADATA = "metadata store"
    SPARK = "Spark"
    BROKER = "broker"
    STREAM = "Kafka"
    OVERLORD = "overlord"
    WORKER = "worker"
    DISK = "local disk"
    INPUT = "input"
    OTHER = "other"


class PenstockError(Exception):
    """Base class of all errors that Penstock raises on purpose."""


class InvalidRequest(PenstockError):
    """The request is wrong: correct it and try again. Nothing was changed.

    Args:
        message: The problem and its remedy.
        place: Place of the problem in the input, such as ``spec.dataSchema.dataSource``.
    """

    def __init__(self, message: str, *, place: str = "") -> None:
        super().__init__(f"{place}: {message}" if place else message)
        self.place = place


class Unauthenticated(InvalidRequest):
    """The request has no valid credential: show one. Nothing was changed."""


class Forbidden(InvalidRequest):
    """The principal may not do this: ask for the right. Nothing was changed."""


class TooLargeForQuota(InvalidRequest):
    """The request alone is larger than the quota of its principal: send less at once."""


class NotFound(PenstockError):
    """The named thing does not exist."""


class Conflict(PenstockError):
    """The thing exists already, or its state forbids the request."""


class Unavailable(PenstockError):
    """The request cannot be served now: try again later. Nothing was changed.

    Args:
        message: The problem, its reason and the remedy.
        dependency: The dependency that fails, if it is not that of the class.
    """

    dependency: Dependency = Dependency.OTHER

    def __init__(self, message: str = "", *, dependency: Dependency | None = None) -> None:
        super().__init__(message)
        if dependency is not None:
            self.dependency = dependency


class StorageUnavailable(Unavailable):
    """The deep storage does not respond, or lost a file that was written."""

    dependency = Dependency.STORAGE


class MetadataUnavailable(Unavailable):
    """The metadata store does not respond, is full, or stays busy."""

    dependency = Dependency.METADATA


class NotReachable(Unavailable):
    """No server answers at the address."""


class Fenced(Unavailable):
    """A later term of leadership has begun: stop leading. Nothing was changed.

    Clients handle it like an overlord that is down; only the fenced leader must react to it.
    """

    dependency = Dependency.OVERLORD


class Full(Unavailable):
    """A limit is reached. Nothing was changed."""


class QuotaExceeded(Full):
    """The principal uses as much as its quota allows: try again later. Nothing was changed.

    Args:
        message: The quota, what is used of it, and the remedy.
        retry_after_s: When to try again, in seconds.
        dependency: As in `Unavailable`.
    """

    def __init__(
        self,
        message: str = "",
        *,
        retry_after_s: int = 1,
        dependency: Dependency | None = None,
    ) -> None:
        super().__init__(message, dependency=dependency)
        self.retry_after_s = retry_after_s


class Closed(PenstockError):
    """The component was closed by its owner."""


class LockRevoked(PenstockError):
    """A task with a higher priority took over: abandon the work."""


class CorruptData(PenstockError):
    """Bytes on disk differ from those that were written.

    Args:
        file: Path of the file.
        position: Byte position of the damage; None if it is unknown.
        reason: Which check failed.
    """

    def __init__(self, file: str, position: int | None, reason: str) -> None:
        place = "" if position is None else f" at byte {position}"
        super().__init__(f"{file}: damaged{place}: {reason}")
        self.file = file
        self.position = position
        self.reason = reason


def counted(count: int, one: str, many: str = "") -> str:
    """Return a number with its unit, such as `1 row` and `1,200 rows`."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
