"""What the demo shows meanwhile: a live display on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

LINE_EVERY_S = 5.0
STILL_S = 3.0
"""No count has moved for so long: it is said what that waits for."""


@dataclass(slots=True)
class Progress:
    """How far the demo is; the threads that count write their own fields only.

    `still_s` says for how long no count has moved, and `at_work` what all wait for.
    """

    total: int
    stage: str = "start"
    files: int = 0
    published: int = 0
    rejected: int = 0
    waiting: Mapping[str, int] = field(default_factory=dict)
    committed: int = 0
    announced: int = 0
    segments: int = 0
    publish_rate: float = 0.0
    index_rate: float = 0.0
    still_s: float = 0.0
    at_work: Sequence[str] = ()

    def line(self, elapsed_s: float) -> str:
        """Return it in one line."""
        return (
            f"          {self.stage}, {elapsed_s:.0f} s in:"
            f" {self.published:,} of {self.total:,} published ({self.publish_rate:,.0f}/s),"
            f" {self.queryable:,} in SQL ({self.index_rate:,.0f}/s),"
            f" lag {self.lag:,}, {self.segments} segments{self.queues}{self.waits}"
        )

    @property
    def queues(self) -> str:
        """Where FlowFiles wait in the flow; empty if none does."""
        listed = ", ".join(f"{count} for {name}" for name, count in self.waiting.items())
        return f"; FlowFiles wait: {listed}" if listed else ""

    @property
    def counts(self) -> tuple[int, ...]:
        """What moves while there is progress."""
        return self.files, self.published, self.rejected, self.committed, self.announced

    @property
    def waits(self) -> str:
        """What it waits for while it stands still; empty while it does not."""
        if self.still_s < STILL_S or not self.at_work:
            return ""
        return f"; nothing new for {self.still_s:.0f} s: waits for {', '.join(self.at_work)}"

    @property
    def queryable(self) -> int:
        """Rows that SQL sees: in segments and in announced files."""
        return self.committed + self.announced

    @property
    def lag(self) -> int:
        """Events that were published and are not in SQL yet."""
        return max(0, self.published - self.queryable)


class View:
    """Shows a progress; entered around the stages."""

    def __init__(self, progress: Progress, console: Console) -> None:
        self._progress = progress
        self._console = console
        self._live = Live(console=console, refresh_per_second=4) if sys.stdout.isatty() else None
        self._line_at_s = 0.0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(Text(text), soft_wrap=True)

    def refresh(self, elapsed_s: float) -> None:
        """Show the progress."""
        if self._live is not None:
            self._live.update(self._picture(elapsed_s))
        elif not self._line_at_s:
            self._line_at_s = elapsed_s + LINE_EVERY_S
        elif elapsed_s >= self._line_at_s:
            self._line_at_s = elapsed_s + LINE_EVERY_S
            self.say(self._progress.line(elapsed_s))

    def _picture(self, elapsed_s: float) -> Group:
        now = self._progress
        grid = Table.grid(padding=(0, 2))
        rows = (
            ("published", now.published, f"{now.publish_rate:,.0f} events/s"),
            ("in SQL", now.queryable, f"{now.index_rate:,.0f} rows/s"),
            ("in segments", now.committed, f"{now.segments} segments"),
        )
        for label, count, note in rows:
            # Rich's own colours cannot be told apart where a terminal has but sixteen.
            bar = ProgressBar(
                now.total,
                count,
                width=32,
                style="bright_black",
                complete_style="cyan",
                finished_style="green",
            )
            grid.add_row(label, bar, f"{count:>8,}", note)
        heading = Text(f"{now.stage}, {elapsed_s:.0f} s in, lag {now.lag:,}{now.queues}{now.waits}")
        return Group(heading, grid)
