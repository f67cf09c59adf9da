"""A CRON expression with its time zone, and its firing times."""

from __future__ import annotations

from datetime import tzinfo
from zoneinfo import ZoneInfo


class CronExpression:
    """When to fire, by the wall clock of a zone. Immutable; any thread.

    Args:
        text: The expression.
        zone: Whose wall clock it is about; UTC by default.
    """

    def __init__(self, text: str, zone: tzinfo | str = "UTC") -> None:
        self.text = text
        self.zone = ZoneInfo(zone) if isinstance(zone, str) else zone

    @classmethod
    def parse(cls, text: str, zone: tzinfo | str = "UTC") -> CronExpression:
        """Read an expression.

        Raises:
            CronError: It is wrong; the message points at the place.
            InvalidRequest: The zone is unknown.
        """
        return cls(text, zone)

    def next(self, after_ms: int) -> int | None:
        """Return the first firing time later than a time, both epoch ms; None: there is none."""
        raise NotImplementedError

    def following(self, after_ms: int, count: int) -> list[int]:
        """Return up to so many firing times later than a time, epoch ms."""
        raise NotImplementedError
