"""Log of a Delta table: numbered entries that are written once, and checkpoints of their result.

    00000000000000000007.json                   entry
    00000000000000000007.checkpoint.parquet     the result of all entries up to this one
    _last_checkpoint                            where engines begin to read

Owns reading, the next entry, checkpoints, and the deletion of old ones. Several processes may
write: of two that write the entry of one number, one succeeds, and the other reads it and tries
again with the next number. Source: the Delta transaction log protocol, "Delta Log Entries",
"Checkpoints" and "Metadata Cleanup".

Invariants:

- an entry never changes, and exists only if the one before does, or a later checkpoint;
- a crash at any point leaves the log before, or the log with the entry, and temporary files that a
  later cleanup deletes;
- a log that is deleted in part is not a table.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Final, NoReturn

import orjson

from penstock.core.errors import CorruptData, NotFound
from penstock.segments.delta.delta_files import TEMPORARY, DeltaFiles
from penstock.segments.delta.log_actions import (
    TableState,
    entry,
    read_checkpoint,
    write_checkpoint,
)

_logger = logging.getLogger(__name__)

CHECKPOINT_ENTRIES: Final = 10
"""Number of entries after which a checkpoint follows if they changed a tenth of the table."""
CHECKPOINT_ENTRIES_MAX: Final = 100
"""Number of entries after which a checkpoint follows in any case."""
CHECKPOINT_ACTIONS: Final = 10_000
"""Number of actions after which a checkpoint follows if they changed a tenth of the table."""
REMOVED_KEPT_MS: Final = 3_600_000
"""Time for which removed files stay after no version that can be read needs them."""
LOG_KEPT_MS: Final = 24 * 3_600_000
"""Time for which earlier versions of the table can be read."""

_LAST: Final = "_last_checkpoint"
_ENTRY: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.parquet")
_PART: Final = 10
_TEMPORARY_MS: Final = 3_600_000


class TableLog:
    """The log of a table. One thread at a time; several processes may have it.

    Args:
        files: The files of the table.

    Attributes:
        state: The state of the table after `load` or `refresh`.
        oldest: The oldest version that can be read, after `clean_up`.
    """

    def __init__(self, files: DeltaFiles) -> None:
        self._files = files
        self.state = TableState()
        self.oldest = 0
        # When the checkpoint of the oldest version was written; 0: its first entry is stored.
        self._oldest_ms = 0
        self._since = _Since()
        self._digest = b""  # of the last entry

    def load(self) -> None:
        """Read the log.

        Raises:
            CorruptData: An entry is missing or damaged.
            Unavailable: The deep storage does not answer.
        """
        names = dict(self._files.log_names())
        entries, checkpoints = _versions(_ENTRY, names), _versions(_CHECKPOINT, names)
        has_all = not checkpoints or 0 in entries
        self._oldest_ms = 0 if has_all else names[checkpoints[min(checkpoints)]]
        self._since = _Since()
        for version in sorted(checkpoints, reverse=True):
            name = _checkpoint_name(version)
            try:
                place = self._files.log_place(name)
                self.state = read_checkpoint(version, self._files.read(name), place)
                self._digest = _digest_of(self._last())
            except (CorruptData, NotFound) as error:  # narrow: an earlier one leads there, too
                _logger.warning("a checkpoint of a Delta table cannot be read: %s", error)
                continue
            break
        else:
            if entries and min(entries):
                self._lost(0)
            self.state = TableState()
        self._read_on()
        if entries and max(entries) > self.state.version:
            self._lost(self.state.version + 1)

    def refresh(self) -> None:
        """Read the entries that other processes have written. Raises as `load`."""
        self.check_last()
        self._read_on()

    def _read_on(self) -> None:
        while True:
            name = _entry_name(self.state.version + 1)
            try:
                content = self._files.read(name)
            except NotFound:
                return
            self._apply(content)

    def check_last(self) -> None:
        """Return if the last entry is stored as it was read.

        Otherwise the log was deleted, and may have become that of another table.

        Raises:
            CorruptData: The entry is lost, or another one.
            Unavailable: The deep storage does not answer.
        """
        if self.state.version < 0:
            return
        if _digest_of(self._last()) != self._digest:
            place = self._files.log_place(_entry_name(self.state.version))
            raise CorruptData(place, None, "it has changed")

    def append(self, actions: Iterable[tuple[str, Mapping[str, object]]]) -> bool:
        """Write the next entry; return False if another process was first: refresh then.

        Raises:
            CorruptData: The entry before is lost.
            Unavailable: The deep storage does not answer; the entry may be stored nevertheless.
        """
        self.check_last()
        content = entry(actions)
        if not self._files.create(_entry_name(self.state.version + 1), content):
            return False
        self._apply(content)
        return True

    def checkpoint_if_due(self) -> bool:
        """Write a checkpoint if enough has changed since the last one; return whether it did.

        Raises:
            Unavailable: The deep storage does not answer.
        """
        if not self._since.is_due(len(self.state.files)):
            return False
        self._write_checkpoint()
        return True

    def _write_checkpoint(self) -> None:
        content, actions = write_checkpoint(self.state, self.removed_kept_ms())
        self._files.create(_checkpoint_name(self.state.version), content)
        self._files.replace(_LAST, orjson.dumps({"version": self.state.version, "size": actions}))
        self._since = _Since()

    def removed_kept_ms(self) -> int:
        """Return the time since when removed files may be needed by versions that can be read."""
        return self._oldest_ms - REMOVED_KEPT_MS

    def clean_up(self, now_ms: int, next_oldest: int = -1) -> int:
        """Delete what is older than `LOG_KEPT_MS` and not needed; return the number of files.

        Args:
            now_ms: The time.
            next_oldest: A version before which all may be deleted `LOG_KEPT_MS` later: if there is
                no checkpoint of it or a later one, one is written.

        Raises:
            Unavailable: The deep storage does not answer.
        """
        names = dict(self._files.log_names())
        if max(_versions(_CHECKPOINT, names), default=0) < next_oldest:
            self._write_checkpoint()
            names = dict(self._files.log_names())
        old = [
            name
            for name, changed_ms in names.items()
            if name.endswith(TEMPORARY) and changed_ms < now_ms - _TEMPORARY_MS
        ]
        checkpoints = _versions(_CHECKPOINT, names)
        kept = max(
            (
                version
                for version, name in checkpoints.items()
                if names[name] < now_ms - LOG_KEPT_MS
            ),
            default=0,
        )
        for found in (_versions(_ENTRY, names), checkpoints):
            old += [name for version, name in sorted(found.items()) if version < kept]
        if kept and self._last_checkpoint() < kept:
            # A process that stopped for long has written it. Without it, engines list the log.
            self._files.delete(_LAST)
        for name in old:
            self._files.delete(name)
        self.oldest = kept
        self._oldest_ms = names[checkpoints[kept]] if kept else 0
        kept_ms = self.removed_kept_ms()
        gone = [path for path, one in self.state.removed.items() if one.removed_ms < kept_ms]
        for path in gone:
            del self.state.removed[path]
        return len(old)

    def delete(self, *, unless: str = "") -> None:
        """Delete the log. A repeated call deletes the files that a crash left.

        Args:
            unless: A table id. The log stays if another process has begun that of this table.

        Raises:
            Unavailable: The deep storage does not answer.
        """
        if unless and self._begins_with(unless):
            return
        names = sorted(name for name, _ in self._files.log_names())
        # Engines begin with a checkpoint, or with the first entry.
        entries = [name for name in names if _ENTRY.fullmatch(name)]
        for name in (*(name for name in names if name not in set(entries)), *entries):
            self._files.delete(name)
        self.state, self._since = TableState(), _Since()
        self.oldest = self._oldest_ms = 0

    def _apply(self, content: bytes) -> None:
        version = self.state.version + 1
        place = self._files.log_place(_entry_name(version))
        self._since.entries += 1
        self._since.actions += self.state.apply(version, content, place)
        self._digest = _digest_of(content)

    def _begins_with(self, table_id: str) -> bool:
        """Return whether the first entry is that of a table."""
        state = TableState()
        try:
            state.apply(0, self._files.read(_entry_name(0)), "")
        except (NotFound, CorruptData):
            return False
        return state.table_id == table_id

    def _last(self) -> bytes:
        """Return the last entry; raises CorruptData if it is lost."""
        try:
            return self._files.read(_entry_name(self.state.version))
        except NotFound:
            self._lost(self.state.version)

    def _lost(self, version: int) -> NoReturn:
        raise CorruptData(self._files.log_place(_entry_name(version)), None, "it is missing")

    def _last_checkpoint(self) -> int:
        """Return the version where engines begin; -1: none is known."""
        try:
            return int(orjson.loads(self._files.read(_LAST))["version"])
        except (NotFound, ValueError, KeyError, TypeError):
            return -1


class _Since:
    """Numbers of entries and actions since the last checkpoint."""

    def __init__(self) -> None:
        self.entries = 0
        self.actions = 0

    def is_due(self, files: int) -> bool:
        """Return whether a checkpoint is worth its size."""
        if self.entries >= CHECKPOINT_ENTRIES_MAX:
            return True
        is_much = self.entries >= CHECKPOINT_ENTRIES or self.actions >= CHECKPOINT_ACTIONS
        return is_much and self.actions * _PART >= files


def _digest_of(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _versions(pattern: re.Pattern[str], names: Iterable[str]) -> dict[int, str]:
    found = ((pattern.fullmatch(name), name) for name in names)
    return {int(match[1]): name for match, name in found if match}


def _entry_name(version: int) -> str:
    return f"{version:020d}.json"


def _checkpoint_name(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"
