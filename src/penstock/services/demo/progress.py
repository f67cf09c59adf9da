"""Progress of the demo: requests to its flow, activity while counts stand still, and display.

`FlowFeed` applies and starts the flow, and reads the counts of the two topics that it publishes to.
`flow_at_work` and `tasks_at_work` list the active parts while no count changes, because the first
Spark job can take half a minute; both are pure. `DemoView` shows a `DemoProgress` as one progress
bar on a terminal and as short lines elsewhere. Does not own the input files (`flights`) or when a
stage is complete (`demo_run`).

Threading: each thread that counts writes only its own fields of `DemoProgress`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.broker.broker_client import BrokerClient
from penstock.core.errors import NotFound, PenstockError, counted
from penstock.core.printable import escaped
from penstock.services.examples import example
from penstock.services.host.server_process import ServerProcess
from penstock.services.json_client import JsonClient
from penstock.services.json_values import objects, part

_MS_PER_S: Final = 1_000
_PHASES: Final = {
    "PENDING": "a task that has no slot yet",
    "STARTING": "a task that starts",
    "READING": "a task that indexes on Spark",
    "PAUSED": "a task that waits for its checkpoint",
    "PUBLISHING": "a task that publishes segments",
}


def flow_at_work(status: Mapping[str, object]) -> list[str]:
    """Return the running components of a flow and their run times, from its status."""
    return [
        f"{one.get('name')} of the flow, at work for {took_ms // _MS_PER_S} s"
        for one in objects(status, "components")
        if one.get("activeTasks") and isinstance(took_ms := one.get("longestActiveMs"), int)
    ]


def tasks_at_work(status: Mapping[str, object]) -> list[str]:
    """Return the activity of the tasks of a supervisor, from its status."""
    payload = part(status, "payload")
    tasks = [*objects(payload, "publishingTasks"), *objects(payload, "activeTasks")]
    if not tasks:
        return ["a task of the supervisor"]
    found = [_PHASES.get(str(one.get("phase"))) for one in tasks]
    return list(dict.fromkeys(text for text in found if text is not None))


LINE_EVERY_S: Final = 5.0
STILL_S: Final = 3.0
"""After this time without a change of any count, the view reports why the demo waits."""
_BAR_WIDTH: Final = 24


@dataclass(slots=True)
class DemoProgress:
    """Counts of the demo; each counting thread writes only its own fields.

    `still_s` is the time since a count last changed, `at_work` lists the parts that work meanwhile.
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
    index_rate: float = 0.0
    still_s: float = 0.0
    at_work: Sequence[str] = ()

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the numbers that change while the demo makes progress."""
        return self.files, self.published, self.rejected, self.committed, self.announced

    @property
    def queryable(self) -> int:
        """Return the number of rows that SQL sees: in segments and in announced files."""
        return self.committed + self.announced

    @property
    def lag(self) -> int:
        """Return the number of published events that are not in SQL yet."""
        return max(0, self.published - self.queryable)

    def line(self, elapsed_s: float) -> str:
        """Return the progress in one line of at most 79 characters."""
        return (
            f"{elapsed_s:6.0f} s  {self.queryable:>7,} of {self.total:,} in SQL,"
            f" {self.index_rate:,.0f} rows/s, lag {self.lag:,}"
        )

    @property
    def waits(self) -> str:
        """Return the reasons why no count changes; empty while one does."""
        if self.still_s < STILL_S:
            return ""
        queued = [
            f"{counted(count, 'FlowFile')} for {name}" for name, count in self.waiting.items()
        ]
        reasons = ", ".join([*self.at_work, *queued])
        return f"no change for {self.still_s:.0f} s, waiting for {reasons}" if reasons else ""


class DemoView:
    """Shows a progress; entered around the stages that have progress."""

    def __init__(self, progress: DemoProgress, console: Console) -> None:
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
            self._live.update(Text())
            self._live.stop()

    def print_line(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(Text(escaped(text)), soft_wrap=True)

    def refresh(self, elapsed_s: float) -> None:
        """Show the progress."""
        if self._live is not None:
            self._live.update(self._picture(elapsed_s))
        elif not self._line_at_s:
            self._line_at_s = elapsed_s + LINE_EVERY_S
        elif elapsed_s >= self._line_at_s:
            self._line_at_s = elapsed_s + LINE_EVERY_S
            self.print_line(self._progress.line(elapsed_s))
            if self._progress.waits:
                self.print_line(f"          {self._progress.waits}")

    def _picture(self, elapsed_s: float) -> Group:
        now = self._progress
        # Rich's own colours look the same where a terminal has only sixteen.
        bar = ProgressBar(
            now.total,
            now.queryable,
            width=_BAR_WIDTH,
            style="bright_black",
            complete_style="cyan",
            finished_style="green",
        )
        row = Table.grid(padding=(0, 1))
        row.add_row(
            f"{elapsed_s:6.0f} s ",
            bar,
            f"{now.queryable / now.total:4.0%} in SQL, {now.index_rate:,.0f} rows/s,"
            f" lag {now.lag:,}",
        )
        return (
            Group(row, Text(escaped(f"          {now.waits}"), style="dim"))
            if now.waits
            else Group(row)
        )


TOPIC: Final = "flights"
REJECTED: Final = "flights.rejected"
PARTITIONS: Final = 2
# Variable of the flow's parameter.
FOLDER_VARIABLE: Final = "FLIGHTS_FOLDER"
_TIMEOUT_S: Final = 30


class FlowFeed:
    """The flow in a server, and its topics.

    Args:
        server: The server of the flow.
        flow: Name of the example with the flow.
    """

    def __init__(self, server: ServerProcess, flow: str) -> None:
        self._server = server
        self._flow = flow

    def begin(self) -> None:
        """Create the topic, apply the flow and start it; may be repeated.

        Raises:
            PenstockError: A request was refused, or the server does not answer.
        """
        with BrokerClient(self._server.broker_http) as broker:
            broker.create_topic(TOPIC, PARTITIONS)
        api = JsonClient(self._server.http, timeout_s=_TIMEOUT_S)
        api.request("PUT", "/flow", example(self._flow), query={"file": self._flow})
        api.post("/flow/start")

    def update(self, progress: DemoProgress) -> None:
        """Record the progress of the flow; counts of parts that do not answer stay unchanged."""
        try:
            with BrokerClient(self._server.broker_http, timeout_s=_TIMEOUT_S) as broker:
                progress.published = _messages(broker, TOPIC)
                progress.rejected = _messages(broker, REJECTED)
            status = JsonClient(self._server.http, timeout_s=_TIMEOUT_S).get("/flow/status")
        except PenstockError:  # just killed
            return
        if isinstance(status, dict):
            progress.waiting = waiting(status)
            progress.at_work = flow_at_work(status)


def _messages(broker: BrokerClient, topic: str) -> int:
    try:
        return sum(one.latest for one in broker.offsets(topic).partitions)
    except NotFound:  # nothing published yet
        return 0


def waiting(status: Mapping[str, object]) -> dict[str, int]:
    """Return how many FlowFiles wait for each component, from the flow's status."""
    found: dict[str, int] = {}
    connections = status.get("connections")
    for one in connections if isinstance(connections, list) else ():
        destination = str(one["name"]).rpartition("→")[2].strip()
        found[destination] = found.get(destination, 0) + int(one["queued"])
    return {name: count for name, count in found.items() if count}
