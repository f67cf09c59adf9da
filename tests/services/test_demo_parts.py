"""The demo's parts that need no server: files, what is shown, and finding processes."""

from __future__ import annotations

import io
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.csv
import pytest
from rich.console import Console

from penstock.core.clock import SystemClock
from penstock.core.errors import InvalidRequest, Unavailable
from penstock.services import demo
from penstock.services.cli import exit_codes
from penstock.services.cli.entry import run
from penstock.services.demo.demo_run import fresh_folder, kill_one, processes_of
from penstock.services.demo.flights import (
    AIRLINES,
    BAD_RECORDS,
    DISTANCE,
    MONTHS,
    ROWS,
    read_flights,
    write_airlines,
    write_month,
)
from penstock.services.demo.progress import (
    DemoProgress,
    DemoView,
    flow_at_work,
    tasks_at_work,
    waiting,
)
from penstock.services.host.data_folder import DataFolder
from penstock.services.host.server_process import CHILD_MODULE, ServerProcess


def test_the_flights_are_all_there() -> None:
    table = read_flights()
    assert table.num_rows == ROWS
    assert table["time_hour"][0].as_py() == "2013-01-01T10:00:00Z"
    assert sum(table["distance"].to_pylist()) == DISTANCE


def test_a_month_is_a_file_that_appears_whole(tmp_path: Path) -> None:
    flights = read_flights()
    folder = tmp_path / "files"
    write_airlines(folder)
    write_month(folder, flights, 2)
    assert sorted(path.name for path in folder.iterdir()) == [AIRLINES, "flights-2013-02.csv"]
    february = flights.filter(pc.equal(flights["month"], 2))
    text = pyarrow.csv.ConvertOptions(
        column_types={"time_hour": "string"}, strings_can_be_null=True, null_values=[""]
    )
    again = pyarrow.csv.read_csv(folder / "flights-2013-02.csv", convert_options=text)
    assert again.equals(february.combine_chunks())


def test_a_month_has_bad_records(tmp_path: Path) -> None:
    flights = read_flights()
    rows = 0
    for month in MONTHS:
        write_month(tmp_path, flights.slice(0, 0), month)
    for path in tmp_path.iterdir():
        rows += len(path.read_text().splitlines()) - 1
    assert rows == len(BAD_RECORDS)


def test_a_line_of_progress_fits_a_terminal() -> None:
    progress = DemoProgress(ROWS, published=ROWS, committed=336_775, index_rate=123_456.7)
    line = progress.line(99_999.0)
    assert line == " 99999 s  336,775 of 336,776 in SQL, 123,457 rows/s, lag 1"
    assert len(DemoProgress(ROWS, published=ROWS, index_rate=9_999_999.0).line(99_999.0)) < 80


class Screen(io.StringIO):
    """A terminal: what it shows after the control sequences that Rich's live displays use."""

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """Return the lines that are shown and not empty."""
        shown, row, column = [""], 0, 0
        for text, control in re.findall(
            r"([^\x1b\r\n]+)|(\r|\n|\x1b\[[0-9;?]*[A-Za-z])", self.getvalue()
        ):
            if text:
                shown[row] = (
                    f"{shown[row][:column]:<{column}}{text}{shown[row][column + len(text) :]}"
                )
                column += len(text)
            elif control == "\r":
                column = 0
            elif control == "\n":
                row, column = row + 1, 0
                shown += [""] * (row + 1 - len(shown))
            elif control[-1] == "A":
                row -= int(control[2:-1])
            elif control == "\x1b[2K":
                shown[row] = ""
            else:
                assert control[-1] in "mhl", control  # colours, and whether the cursor is shown
        return [line.rstrip() for line in shown if line.strip()]


def test_a_terminal_shows_one_bar_that_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    console = Console(file=screen, force_terminal=True, width=80, height=24, _environ={})
    progress = DemoProgress(ROWS)
    shares = []
    with DemoView(progress, console) as view:
        assert view._live is not None
        for part in (0, 1, 2, 4):
            progress.committed = ROWS // 4 * part
            progress.published = progress.committed + 1_000
            progress.index_rate = 123_456.7
            view.refresh(99_999.0)
            view._live.refresh()
            (line,) = screen.lines()
            assert len(line) < 80
            shown = re.fullmatch(
                r" 99999 s +([━╸╺]+) +(\d+)% in SQL, 123,457 rows/s, lag 1,000", line
            )
            assert shown, line
            shares.append(int(shown[2]))
        view.print_line("  12.3 s  publish by the flow")
        progress.still_s, progress.at_work = 12.0, ["a task that starts"]
        view.refresh(99_999.0)
        view._live.refresh()
        stays, bar, waits = screen.lines()
        assert stays == "  12.3 s  publish by the flow"
        assert " in SQL, " in bar
        assert waits.strip() == "no change for 12 s, waiting for a task that starts"
    assert shares == [0, 25, 50, 100]
    assert screen.lines() == ["  12.3 s  publish by the flow"]


def test_elsewhere_a_line_is_shown_every_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    progress = DemoProgress(ROWS, published=ROWS, committed=1_000, index_rate=500.0)
    with DemoView(progress, Console(file=out, highlight=False, width=80)) as view:
        for second in range(1, 13):
            progress.still_s = float(second)
            progress.at_work = ["a task that starts"]
            view.refresh(float(second))
    assert out.getvalue().splitlines() == [
        "     6 s    1,000 of 336,776 in SQL, 500 rows/s, lag 335,776",
        "          no change for 6 s, waiting for a task that starts",
        "    11 s    1,000 of 336,776 in SQL, 500 rows/s, lag 335,776",
        "          no change for 11 s, waiting for a task that starts",
    ]


def test_it_is_shown_where_flowfiles_wait() -> None:
    connections = [
        {"name": "Read.success → Validate", "queued": 2},
        {"name": "Validate.failure → Reject", "queued": 1},
        {"name": "Describe.success → Reject", "queued": 3},
        {"name": "Enrich.enriched → Publish", "queued": 0},
    ]
    progress = DemoProgress(10, waiting=waiting({"connections": connections}))
    progress.still_s = 4.0
    assert progress.waits == (
        "no change for 4 s, waiting for 2 FlowFiles for Validate, 4 FlowFiles for Reject"
    )
    progress.waiting = waiting({})
    assert not progress.waits


def test_it_is_shown_what_a_standstill_waits_for() -> None:
    """A first job of Spark takes half a minute on a busy machine."""
    components = [
        {"name": "Read", "activeTasks": 0, "longestActiveMs": 0},
        {"name": "Enrich", "activeTasks": 1, "longestActiveMs": 31_400},
    ]
    progress = DemoProgress(10, at_work=flow_at_work({"components": components}))
    assert not progress.waits, "counts move"
    progress.still_s = 12.0
    told = "no change for 12 s, waiting for Enrich of the flow, at work for 31 s"
    assert progress.waits == told
    busy = {"activeTasks": [{"phase": "READING"}], "publishingTasks": [{"phase": "PUBLISHING"}]}
    progress.at_work = tasks_at_work({"payload": busy})
    told = "waiting for a task that publishes segments, a task that indexes on Spark"
    assert progress.waits.endswith(told)
    assert tasks_at_work({"payload": {}}) == ["a task of the supervisor"]
    for phase, told in (("PENDING", "has no slot yet"), ("STARTING", "starts")):
        tasks = [{"phase": phase}]
        assert tasks_at_work({"payload": {"activeTasks": tasks}}) == [f"a task that {told}"]
    progress.at_work = ()
    assert not progress.waits


def test_what_a_start_takes_so_long_for_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stands_in = tmp_path / "python"
    stands_in.write_text("#!/bin/sh\necho still starting: spark\nexec sleep 60\n")
    stands_in.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stands_in))
    server = ServerProcess(DataFolder(tmp_path), SystemClock())
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)

    server.start()
    with pytest.raises(Unavailable, match="penstock up ended"):
        server.wait_ready(tell)
    server.stop()
    assert told == ["still starting: spark"]


def test_processes_are_found_by_what_they_are() -> None:
    # It says that it runs: at its very start Linux shows no command line of a process.
    script = "import sys; print('up', flush=True); sys.stdin.read()"
    argv = [sys.executable, "-c", script, "penstock.services.roles", "broker"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        found = processes_of(os.getpid())
        assert [one.name for one in found if one.pid == process.pid] == ["broker"]
        # Below the child alone there is nobody else to choose.
        victim = kill_one(process.pid, random.Random(1))
        assert victim is not None
        assert victim.pid == process.pid
        assert process.wait() == -9
    assert kill_one(process.pid, random.Random(1)) is None


@pytest.mark.parametrize("module", ["penstock", CHILD_MODULE])
def test_a_launcher_is_found_by_each_command_that_starts_it(module: str, tmp_path: Path) -> None:
    process = tmp_path / "7"
    process.mkdir()
    (process / "comm").write_text("python\n")
    (process / "cmdline").write_bytes(f"python\0-P\0-m\0{module}\0up\0--data-dir".encode())
    assert [one.name for one in processes_of(7, tmp_path)] == ["launcher"]


def test_only_the_demos_own_folder_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "demo-data"
    assert fresh_folder(folder).path == folder
    DataFolder(folder).prepare()
    (folder / "topics" / "x").write_text("old")
    fresh_folder(folder)
    assert not folder.exists()
    folder.mkdir()
    (folder / "thesis.txt").write_text("dear")
    with pytest.raises(InvalidRequest, match="not the demo's"):
        fresh_folder(folder)
    assert (folder / "thesis.txt").exists()


def test_sigterm_ends_the_demo_as_ctrl_c_does(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[bool] = []

    def terminated(options: demo.DemoOptions) -> bool:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            stopped.append(True)
        return True

    monkeypatch.setattr(demo, "run_demo", terminated)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert run(["demo"]) == exit_codes.INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stopped == [True]
