"""Demo run: start, publish by a flow, index, hand over and query, with optional process kills.

`Demo` owns the order of the stages and their completion rules. Writing the input files and
killing processes have one thread each; the main thread watches, restarts a killed launcher and
shows the progress. `processes_of` and `kill_one` own how the processes of one launcher are
found and named, and the random choice among them; a process is killed with SIGKILL.
"""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import shutil
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.text import Text

from penstock.core.clock import Clock, SystemClock, pause
from penstock.core.errors import InvalidRequest, PenstockError, Unavailable, counted
from penstock.core.printable import escaped
from penstock.services.demo.flights import (
    BAD_RECORDS,
    MONTHS,
    QUESTIONS,
    ROWS,
    read_flights,
    write_airlines,
    write_month,
)
from penstock.services.demo.progress import (
    FOLDER_VARIABLE,
    REJECTED,
    STILL_S,
    TOPIC,
    DemoProgress,
    DemoView,
    FlowFeed,
    tasks_at_work,
)
from penstock.services.examples import example
from penstock.services.host.data_folder import FORMAT_FILE, DataFolder, DataFolderLock
from penstock.services.host.fork_server import FORK_SERVER_NAME
from penstock.services.host.server_process import CHILD_MODULE, ServerProcess
from penstock.services.json_client import JsonClient
from penstock.services.json_values import objects, whole
from penstock.services.sql_client import ask

if TYPE_CHECKING:
    import pyarrow as pa


# Parts of command lines, after the process's own name, and the names of such processes; the first
# match counts. A forked process has the command line of its fork server.
_NAMES = (
    (f"{FORK_SERVER_NAME} ", "fork server"),
    ("/run/queries -cp ", "queries"),
    ("SparkConnectServer", "spark"),
    ("pyspark", "spark's python"),
    ("services.roles broker", "broker"),
    ("services.roles overlord", "overlord"),
    ("services.roles flow", "flow"),
    ("services.roles worker", "worker"),
    ("services.roles router", "router"),
    ("services.roles.peon", "peon"),
    ("penstock up", "launcher"),
    (f"{CHILD_MODULE} up", "launcher"),
)


@dataclass(frozen=True, slots=True)
class KillTarget:
    """A process that may be killed."""

    pid: int
    name: str


def processes_of(launcher: int, proc: Path = Path("/proc")) -> list[KillTarget]:
    """Return a launcher and all its descendants that have a name here."""
    children: dict[int, list[int]] = {}
    for entry in proc.iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The name in parentheses may contain spaces; the parent is the second field after
                # it.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found: list[KillTarget] = []
    waiting = [launcher]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, [])
        with contextlib.suppress(OSError):
            own = (proc / str(pid) / "comm").read_text().strip()
            line = (proc / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            words = f"{own} {line}"
            name = next((name for part, name in _NAMES if part in words), None)
            if name:
                found.append(KillTarget(pid, name))
    return found


def kill_one(launcher: int, chance: random.Random) -> KillTarget | None:
    """Kill one process, with equal probability for each name; return None if there is none."""
    victims = processes_of(launcher)
    if not victims:
        return None
    name = chance.choice(sorted({victim.name for victim in victims}))
    victim = chance.choice([one for one in victims if one.name == name])
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim.pid, signal.SIGKILL)
        return victim
    return None


T = TypeVar("T")

# The spec has one task at a time.
GROUPS = [0]
SPEC = "flights-supervisor.json"
FLOW = "flights.yaml"
TOUR = "https://github.com/penstock/penstock/blob/main/docs/tour.md"
# Folder of the flow's input, in the data folder.
FILES = "flights"
WATCH_EVERY_S = 0.25
HANDOFF_EVERY_S = 3.0
STAGE_LIMIT_S = 900.0
# With --chaos the months arrive one by one, so that processes die while the flow works.
KILL_EVERY_S = (4.0, 9.0)
RETRY_S = 0.2

SUPERVISOR = f"/druid/indexer/v1/supervisor/{TOPIC}"
DATASOURCE = f"/druid/coordinator/v1/metadata/datasources/{TOPIC}"


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Options of the demo; `kills` is 0 without chaos."""

    folder: Path
    kills: int = 0
    seed: int | None = None


def fresh_folder(path: Path) -> DataFolder:
    """Delete an earlier demo's folder and return a new one.

    Raises:
        InvalidRequest: The folder contains something else.
        Conflict: Another demo runs in the folder.
    """
    folder = DataFolder(path.absolute())
    if folder.path.exists():
        if any(folder.path.iterdir()) and not (folder.path / FORMAT_FILE).exists():
            raise InvalidRequest(
                f"{folder.path} contains files that are not the demo's; use another: --folder"
            )
        lock = DataFolderLock(folder)
        lock.take()
        try:
            shutil.rmtree(folder.path)
        finally:
            lock.release()
    return folder


class Demo:
    """One run of the demo.

    The condition is used only for pauses that the clock ends.
    """

    def __init__(self, options: DemoOptions, folder: DataFolder, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._files = folder.path / FILES
        self._server = ServerProcess(folder, clock, {FOLDER_VARIABLE: str(self._files)})
        self._feeding = FlowFeed(self._server, FLOW)
        self._console = Console(highlight=False)
        self._progress = DemoProgress(ROWS)
        self._view = DemoView(self._progress, self._console)
        self._over = threading.Event()
        self._started_s = clock.monotonic_s()
        self._took: list[tuple[str, float]] = []
        self._kills = 0

    def run(self) -> bool:
        """Run every stage; return whether the answers were right."""
        try:
            with ThreadPoolExecutor(3, thread_name_prefix="demo") as threads:
                try:
                    return self._stages(threads)
                finally:
                    self._over.set()
        finally:
            self._server.stop()

    def _stages(self, threads: ThreadPoolExecutor) -> bool:
        # One month exists from the start, or all of them: the others arrive during the work.
        early, late = (MONTHS[:1], MONTHS[1:]) if self._options.kills else (MONTHS, ())
        reading = threads.submit(self._read, early)
        self._view.print_line(
            "starting Penstock and Spark: takes seconds, or a minute on a busy machine"
        )
        self._stage("start Penstock, Spark included", self._start)
        flights = self._stage("write the flights as CSV files", reading.result)
        self._stage("start the flow and the supervisor", lambda: self._retried(self._set_up))
        with self._view:
            killing = threads.submit(self._kill_now_and_then) if self._options.kills else None
            delivering = threads.submit(self._deliver, flights, late)
            self._stage("publish by the flow", lambda: self._watch(self._all_published))
            delivering.result()
            self._stage("index and publish segments", lambda: self._watch(self._all_committed))
            if killing is not None:
                self._stage("outlive the kills", lambda: self._watch(killing.done))
                killing.result()
                self._watch(self._all_committed)
        right = self._stage("ask", self._answers)
        self._print_summary(right)
        return right

    def _stage(self, name: str, work: Callable[[], T]) -> T:
        self._progress.stage = name
        begun_s = self._clock.monotonic_s()
        result = work()
        took_s = self._clock.monotonic_s() - begun_s
        self._took.append((name, took_s))
        self._view.print_line(f"{took_s:6.1f} s  {name}")
        return result

    def _start(self) -> None:
        self._server.start()
        self._server.wait_ready(self._print_start_line)

    def _print_start_line(self, line: str) -> None:
        if line.startswith("still "):
            self._view.print_line(f"        {line}")

    def _api(self) -> JsonClient:
        return JsonClient(self._server.http, timeout_s=30)

    def _set_up(self) -> None:
        self._feeding.begin()
        self._api().request("POST", "/druid/indexer/v1/supervisor", example(SPEC))

    # --- the files that the flow reads, on a thread of its own

    def _read(self, months: Sequence[int]) -> pa.Table:
        write_airlines(self._files)
        flights = read_flights()
        self._deliver(flights, months)
        return flights

    def _deliver(self, flights: pa.Table, months: Sequence[int]) -> None:
        pause_s = self._options.kills * sum(KILL_EVERY_S) / 2 / len(MONTHS)
        for month in months:
            if self._options.kills:
                self._wait(pause_s)
            if self._over.is_set():
                return
            write_month(self._files, flights, month)
            self._progress.files += 1

    def _retried(self, work: Callable[[], None]) -> None:
        deadline_s = self._clock.monotonic_s() + STAGE_LIMIT_S
        while True:
            try:
                work()
            except Unavailable:
                if self._over.is_set() or self._clock.monotonic_s() > deadline_s:
                    raise
                self._wait(RETRY_S)
            else:
                return

    # --- killing, on a thread of its own

    def _kill_now_and_then(self) -> None:
        chance = random.Random(self._options.seed)  # noqa: S311  # not for security
        while self._kills < self._options.kills and not self._over.is_set():
            self._wait(chance.uniform(*KILL_EVERY_S))
            launcher = self._server.pid
            victim = kill_one(launcher, chance) if launcher is not None else None
            if victim is not None:
                self._kills += 1
                self._view.print_line(
                    f"        kill -9 {victim.pid} ({victim.name}), the {self._kills}."
                )

    # --- watching, on the main thread

    def _watch(self, done: Callable[[], bool]) -> None:
        deadline_s = self._clock.monotonic_s() + STAGE_LIMIT_S
        handoff_s = 0.0
        counts, moved_s = self._progress.counts, self._clock.monotonic_s()
        while not done():
            now_s = self._clock.monotonic_s()
            if now_s > deadline_s:
                raise Unavailable(f"{self._progress.stage}: not done after {STAGE_LIMIT_S:.0f} s")
            if self._server.keep_running():
                self._view.print_line("        penstock up was killed and is restarted")
            self._update_progress()
            if self._progress.counts != counts:
                counts, moved_s = self._progress.counts, now_s
            self._progress.still_s = now_s - moved_s
            if self._progress.queryable >= ROWS and now_s > handoff_s:
                handoff_s = now_s + HANDOFF_EVERY_S
                self._hand_off()
            self._view.refresh(now_s - self._started_s)
            self._wait(WATCH_EVERY_S)

    def _update_progress(self) -> None:
        now = self._progress
        now.at_work = ()
        self._feeding.update(now)
        if now.still_s >= STILL_S:
            self._update_tasks()
        try:
            found = self._api().get(DATASOURCE)
        except PenstockError:  # not started yet, or just killed
            return
        if isinstance(found, dict):
            segments = objects(found, "segments")
            now.segments = len(segments)
            before = now.queryable
            now.committed = sum(whole(one, "totalRows") for one in segments)
            now.announced = int(found.get("announcedRows", 0))
            if now.queryable > before:  # the rate of indexing, without waits for the rest
                elapsed_s = self._clock.monotonic_s() - self._started_s - self._took[0][1]
                now.index_rate = now.queryable / max(elapsed_s, 0.001)

    def _update_tasks(self) -> None:
        now = self._progress
        if now.published == now.committed:
            return
        try:
            status = self._api().get(f"{SUPERVISOR}/status")
        except PenstockError:  # just killed
            return
        if isinstance(status, dict):
            now.at_work = [*now.at_work, *tasks_at_work(status)]

    def _all_published(self) -> bool:
        now = self._progress
        return now.published >= ROWS and now.rejected >= len(BAD_RECORDS)

    def _all_committed(self) -> bool:
        now = self._progress
        return now.published >= ROWS and now.committed >= ROWS and not now.announced

    def _hand_off(self) -> None:
        try:
            self._api().post(f"{SUPERVISOR}/taskGroups/handoff", {"taskGroupIds": GROUPS})
        except PenstockError:  # repeated a little later
            return

    # --- the end

    def _answers(self) -> bool:
        rejected = self._progress.rejected
        right = rejected == len(BAD_RECORDS)
        self._print(Text(f"  {_mark(right)} bad records, in topic {REJECTED}: {rejected}"))
        for question in QUESTIONS:
            rows: list[list[object]] = []

            def put(sql: str = question.sql, rows: list[list[object]] = rows) -> None:
                self._server.keep_running()  # the last kill may have hit the launcher
                rows[:] = [list(row) for row in ask(self._api(), sql).rows]

            self._retried(put)
            good = rows == question.expected
            right = right and good
            shown = ", ".join(" ".join(_shown(cell) for cell in row) for row in rows)
            self._print(Text(f"  {_mark(good)} {question.title}: {shown}"))
            if not good:
                self._print(Text(f"    expected {question.expected}"))
        return right

    def _print_summary(self, right: bool) -> None:
        total_s = self._clock.monotonic_s() - self._started_s
        self._print(Text(f"{total_s:6.1f} s  in all"))
        if self._options.kills:
            self._print(
                Text(
                    f"killed {counted(self._kills, 'process', 'processes')}, "
                    f"{self._server.starts - 1} of them the launcher; each event is counted "
                    f"{'once' if right else 'WRONGLY'}"
                )
            )
        penstock = "penstock" if shutil.which("penstock") else ".venv/bin/penstock"
        commands = [
            f"{penstock} {name} --data-dir {shlex.quote(str(self._options.folder))}"
            for name in ("up", "sql")
        ]
        hints = (
            (commands[0], "runs Penstock over this data again"),
            (commands[1], "queries it, in a second terminal"),
            (TOUR, "the tour"),
        )
        width = max(len(text) for text, _ in hints)
        lines = [f"  {text:<{width}}   {meaning}" for text, meaning in hints]
        self._print(Text("\n".join(("Next steps:", *lines))))

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True)

    def _wait(self, seconds: float) -> None:
        pause(self._clock, seconds)


def _mark(good: bool) -> str:
    return "✓" if good else "✗"


def _shown(cell: object) -> str:
    return f"{cell:,}" if isinstance(cell, int | float) else escaped(str(cell))


def run_demo(options: DemoOptions) -> bool:
    """Run the demo; return whether the answers were right.

    Raises:
        PenstockError: It could not start, or a stage was not done in time.
    """
    folder = fresh_folder(options.folder)
    # Before the first file is written, because only an empty folder can become a data folder.
    folder.prepare()
    return Demo(options, folder, SystemClock()).run()
