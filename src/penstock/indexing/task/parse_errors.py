"""Unparseable messages of a task: their limit, and the samples to show.

Part of a task, on its mailbox; `samples` runs on a lane. Every such message goes to the dead-letter
topic, regardless of the settings here; the samples are for users who inspect the task.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

import orjson

from penstock.core.errors import InvalidRequest, counted
from penstock.indexing.task.dead_letters import read_letters

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.indexing.specs import TuningConfig
    from penstock.storage.filesystem import FileSystem

_log = logging.getLogger(__name__)

LOGGED_MAX: Final = 100
"""Maximum number of unparseable rows of one batch, or of one job, in the log."""

_ROW_CHARACTERS_MAX: Final = 1_000

Sample = dict[str, str | int]
"""Position of a message (``partition``, ``offset``), the ``reason``, and its text (``input``)."""


class ParseErrors:
    """The unparseable messages of one task.

    Args:
        tuning: The limits.
    """

    def __init__(self, tuning: TuningConfig) -> None:
        self._most = tuning.parse_errors_max
        self._saved: deque[Sample] = deque(maxlen=tuning.max_saved_parse_exceptions)
        self._logs = tuning.log_parse_exceptions
        # One is always kept, for the error of a task that fails because of it.
        least = LOGGED_MAX if self._logs else int(self._most is not None)
        self.wanted = max(tuning.max_saved_parse_exceptions, least)

    @property
    def saved(self) -> tuple[Sample, ...]:
        """The newest ones, up to the limit of the spec."""
        return tuple(self._saved)

    def keep(self, samples: Sequence[Sample], count: int) -> None:
        """Keep samples, and log them if the spec requests it.

        Args:
            samples: Messages of one batch, up to the limit.
            count: Number of unparseable messages in the batch.
        """
        self._saved.extend(samples)
        if self._logs:
            log_parse_errors(
                [
                    f"offset {one['offset']} of partition {one['partition']}: {one['reason']}:"
                    f" {one['input']!r}"
                    for one in samples[:LOGGED_MAX]
                ],
                count,
            )

    def refusal(self, count: int, samples: tuple[Sample, ...]) -> InvalidRequest | None:
        """Return the error that ends a task with too many unparseable messages, else None.

        Args:
            count: Number of unparseable messages.
            samples: Some of the last ones.
        """
        if self._most is None or count <= self._most:
            return None
        where = ""
        if samples:
            last = samples[-1]
            where = f"; the last at offset {last['offset']} of partition {last['partition']}"
            where += f": {last['reason']}"
        return InvalidRequest(
            f"{counted(count, 'message')} could not be parsed, and maxParseExceptions allows"
            f" {self._most}{where}. Fix the producer, or raise maxParseExceptions; no row of this "
            "batch was kept"
        )


def log_parse_errors(rows: Sequence[str], count: int) -> None:
    """Log the rows that could not be parsed.

    Args:
        rows: Place, reason and text of each, at most `LOGGED_MAX`.
        count: Number of all such rows.
    """
    for row in rows:
        _log.warning("cannot be parsed: %s", row)
    if count > len(rows):
        _log.warning("cannot be parsed: %d more like these", count - len(rows))


def samples(fs: FileSystem, paths: Iterable[str], most: int) -> tuple[Sample, ...]:
    """Read some messages of files of bad messages, the first ones of each. Blocking.

    Raises:
        CorruptData: A file does not have the engine's format.
    """
    found: list[Sample] = []
    for path in paths:
        if len(found) >= most:
            break
        letters = itertools.islice(read_letters(fs, path), most - len(found))
        found += [_sample(letter.line) for letter in letters]
    return tuple(found)


def _sample(line: bytes) -> Sample:
    value = orjson.loads(line)
    try:
        row = base64.b64decode(value.get("message_base64", ""), validate=True)
    except binascii.Error:
        row = b""
    return {
        "partition": int(value["partition"]),
        "offset": int(value["offset"]),
        "reason": str(value.get("reason", "")),
        "input": row.decode("utf-8", "replace")[:_ROW_CHARACTERS_MAX],
    }
