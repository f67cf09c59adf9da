"""Damaged bytes of a queue: counted by offsets, logged once, and copied to a file.

Owns: the ``<file>-<position>-<crc32c>.bad`` files of a queue's folder and the counts of loss since
the queue was opened. Does not own: finding damage (`blocks`), nor cutting off a torn tail
(`log`).

Invariants:

- The same damage is counted once for each opening of the queue, copied once, and logged when it is
  copied: the name identifies the bytes, so after a restart it is known already. If there is nothing
  to copy, because it is zeros or empty, each opening logs it.
- Damage never stops reads: if the copy cannot be written, the damage stays in place, and the copy
  is tried again when it is found next.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import google_crc32c

from penstock.core.errors import PenstockError, counted

if TYPE_CHECKING:
    from penstock.storage.filesystem import FileSystem
    from penstock.storage.queue.blocks import BlockDamage, LogBytes

_logger = logging.getLogger(__name__)


class Quarantine:
    """Counts of loss in one queue. One call at a time: the queue holds a mutex for it."""

    __slots__ = (
        "_folder",
        "_fs",
        "_known",
        "bytes_quarantined",
        "damaged_places",
        "messages_lost",
        "torn_bytes",
    )

    def __init__(self, fs: FileSystem, folder: str) -> None:
        self._fs = fs
        self._folder = folder
        self._known: set[tuple[int, int, int]] = set()
        self.messages_lost = 0
        self.damaged_places = 0
        self.bytes_quarantined = 0
        self.torn_bytes = 0

    def record(self, base_offset: int, log: LogBytes, damage: BlockDamage) -> None:
        """Count damage, and copy its bytes.

        Args:
            base_offset: The base offset of the log file.
            log: Its bytes.
            damage: Its position, and the lost messages.
        """
        following = damage.first_lost if damage.next_offset is None else damage.next_offset
        key = (damage.first_lost, following, damage.position)
        if key in self._known:
            return
        kept = bytes(log.view[damage.position : damage.end])
        nothing = kept.count(0) == len(kept)  # worth a copy
        copied = not nothing and self._keep(base_offset, damage.position, kept)
        if copied is None:
            return
        self._known.add(key)
        lost = following - damage.first_lost
        self.damaged_places += 1
        self.messages_lost += lost
        self.bytes_quarantined += len(kept)
        if copied or nothing:
            _logger.warning(
                "%s: lost %s, offsets %d to %d: skipped %s at %d of log file %d%s",
                self._folder, counted(lost, "message"), damage.first_lost, following,
                counted(len(kept), "damaged byte"), damage.position, base_offset,
                ", and kept a copy in a .bad file" if copied else "",
            )  # fmt: skip

    def record_torn_tail(self, base_offset: int, position: int, torn: bytes) -> None:
        """Count the bytes of a tail that is about to be cut off, and copy them if there are any.

        Raises:
            Unavailable: They cannot be copied; the tail must not be cut off.
        """
        if torn.count(0) != len(torn):
            self._copy(base_offset, position, torn)
        _logger.warning(
            "%s: cut off an unfinished write, the last %s of log file %d, at %d",
            self._folder, counted(len(torn), "byte"), base_offset, position,
        )  # fmt: skip
        self.torn_bytes += len(torn)

    def _keep(self, base_offset: int, position: int, data: bytes) -> bool | None:
        """Copy damaged bytes. True: copied now; False: copied before; None: failed."""
        try:
            return self._copy(base_offset, position, data)
        except PenstockError as error:
            _logger.warning("%s: cannot copy damaged bytes: %s", self._folder, error)
            return None

    def _copy(self, base_offset: int, position: int, data: bytes) -> bool:
        crc = google_crc32c.value(data)
        path = f"{self._folder}/{base_offset:020d}-{position}-{crc:08x}.bad"
        if self._fs.exists(path):
            return False
        self._fs.write_atomically(path, data)
        return True
