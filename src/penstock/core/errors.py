"""The errors of Penstock, named by what the caller does next.

    PenstockError
      InvalidRequest   mend the request; nothing was changed
      NotFound         the named thing does not exist
      Conflict         it exists already, or is in a state that forbids this
      Unavailable      try again later; nothing was changed; names the dependency that fails
        Fenced         another leader took over: stop leading; who asked asks that one
        Full           it holds as much as it may: wait for some of it to go
      Closed           the component was closed; make a new one
      LockRevoked      abandon the work: somebody with a better claim took over
      CorruptData      bytes on disk are not what was written (file, position, reason)

Every message names the thing, what is wrong with it, and the mend.
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
    """Root of all errors that Penstock raises on purpose."""


class InvalidRequest(PenstockError):
    """The request is wrong: mend it and ask again. Nothing was changed.

    Args:
        message: What is wrong and the mend.
        place: Where in the input it is wrong, such as ``spec.dataSchema.dataSource``.
    """

    def __init__(self, message: str, *, place: str = "") -> None:
        super().__init__(f"{place}: {message}" if place else message)
        self.place = place


class NotFound(PenstockError):
    """The named thing does not exist."""


class Conflict(PenstockError):
    """The thing exists already, or its state forbids the request."""


class Unavailable(PenstockError):
    """It cannot be done now: try again later. Nothing was changed.

    Args:
        message: Text with the mistake, its reason and the remedy.
        dependency: The dependency that fails, if that is not the class's own.
    """

    dependency: Dependency = Dependency.OTHER

    def __init__(self, message: str = "", *, dependency: Dependency | None = None) -> None:
        super().__init__(message)
        if dependency is not None:
            self.dependency = dependency


class StorageUnavailable(Unavailable):
    """The deep storage does not answer, or did not keep what was written."""

    dependency = Dependency.STORAGE


class MetadataUnavailable(Unavailable):
    """The metadata store does not answer, is full, or stays busy."""

    dependency = Dependency.METADATA


class NotReachable(Unavailable):
    """Nothing answers at the address."""


class Fenced(Unavailable):
    """A later term of leadership has begun: stop leading. Nothing was changed.

    To whoever asked that is no more than an overlord that is not there; only who leads minds it.
    """

    dependency = Dependency.OVERLORD


class Full(Unavailable):
    """It holds as much as it may. Nothing was changed."""


class Closed(PenstockError):
    """The component was closed by its owner."""


class LockRevoked(PenstockError):
    """Somebody with a better claim took over: abandon the work."""


class CorruptData(PenstockError):
    """Bytes on disk are not what was written.

    Args:
        file: Path of the file.
        position: Byte position of the damage; None: it is not known.
        reason: What does not hold.
    """

    def __init__(self, file: str, position: int | None, reason: str) -> None:
        place = "" if position is None else f" at byte {position}"
        super().__init__(f"{file}: damaged{place}: {reason}")
        self.file = file
        self.position = position
        self.reason = reason


def counted(count: int, one: str, many: str = "") -> str:
    """Return a number with what it counts, such as `1 row` and `1,200 rows`."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
