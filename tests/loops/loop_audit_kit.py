"""Find what blocks an event loop: imports, files, names to resolve, fsyncs, sleeps, statements.

`install` adds an audit hook to this process, for good: it is meant for a process of its own. The
hook looks only at threads on which an event loop runs at the moment, and only at calls that come
from Penstock. What it finds is kept with its place, unless the place is listed in `ALLOWED`. Of
databases it sees statements of SQLite.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from asyncio import _get_running_loop
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

EVENTS = frozenset(
    {
        "import",
        "open",
        "os.listdir",
        "os.mkdir",
        "os.remove",
        "os.rename",
        "os.rmdir",
        "os.scandir",
        "os.truncate",
        "socket.getaddrinfo",
        "socket.gethostbyaddr",
        "socket.gethostbyname",
        "sqlite3.connect",
        "subprocess.Popen",
        "time.sleep",
    }
)


class Allowed(NamedTuple):
    """A place that may block a loop.

    Attributes:
        event: Name of the audit event; "fsync" for an fsync.
        place: A file and a function of Penstock, `broker/server.py:start`, somewhere in the stack.
        reason: Why it may.
    """

    event: str
    place: str
    reason: str


_APPEND = "storage/queue/log_files.py:append"
_START = "broker/server.py:start"
_STOP = "broker/server.py:stop"

ALLOWED = (
    *(
        Allowed(event, place, reason)
        for event in [*sorted(EVENTS - {"import", "time.sleep", "subprocess.Popen"}), "fsync"]
        for place, reason in (
            (_START, "the broker opens its folder and its ports: nobody is served yet"),
            (_STOP, "the broker closes its folder: nobody is served any more"),
        )
    ),
    Allowed("open", _APPEND, "an append's write: of an idle topic it opens the log file again"),
    Allowed("os.truncate", _APPEND, "a write that failed is cut off before the next one"),
    Allowed(
        "open", "storage/queue/log_files.py:create", "an append's write begins the next log file"
    ),
    Allowed(
        "open", "broker/statistics/broker_info.py:memory", "procfs: the kernel answers from memory"
    ),
)


class Found(NamedTuple):
    """One blocking call: the event, what it was about, and the places of Penstock in its stack."""

    event: str
    detail: str
    places: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.event} {self.detail}: {' <- '.join(self.places[:6])}"


found: list[Found] = []
_inside = threading.local()


def install(report: Callable[[Found], None] = found.append) -> None:
    """Audit this process from now on."""

    def note(event: str, detail: object) -> None:
        if _get_running_loop() is None or getattr(_inside, "yes", False):
            return
        _inside.yes = True
        try:
            places = _places(sys._getframe(2))
            if places and not _is_allowed(event, places):
                report(Found(event, " ".join(str(detail).split())[:200], places))
        finally:
            _inside.yes = False

    def hook(event: str, args: tuple[object, ...]) -> None:
        if event in EVENTS:
            note(event, args[0] if args else "")

    def connect(*arguments: Any, **named: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = opened(*arguments, **named)
        connection.set_trace_callback(lambda text: note("sqlite3.execute", text))
        return connection

    def audited(call: Callable[[int], None]) -> Callable[[int], None]:
        def fsync(descriptor: int) -> None:
            note("fsync", descriptor)
            call(descriptor)

        return fsync

    # Python has no audit event for these.
    os.fsync, os.fdatasync = audited(os.fsync), audited(os.fdatasync)  # type: ignore[assignment]
    opened = sqlite3.connect
    sqlite3.connect = sqlite3.dbapi2.connect = connect  # type: ignore[assignment]
    sys.addaudithook(hook)


def install_into(path: str) -> None:
    """Audit this process, and append what is found to a file, a line each."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def report(one: Found) -> None:
        os.write(descriptor, f"{one}\n".encode())

    install(report)


def variables(report: Path) -> dict[str, str]:
    """Return the environment in which each Python of Penstock is audited."""
    here = Path(__file__).parent
    root = here.parents[1]
    return {
        "PYTHONPATH": os.pathsep.join(str(one) for one in (here / "audited", root / "src", root)),
        "LOOP_AUDIT_REPORT": str(report),
    }


def found_in(report: Path) -> list[str]:
    """Return what the audited processes found, each once."""
    return sorted(set(report.read_text().splitlines()))


def _places(frame: FrameType | None) -> tuple[str, ...]:
    """Return the places of Penstock in a stack, the innermost first."""
    places: list[str] = []
    while frame is not None:
        _, inside, name = frame.f_code.co_filename.rpartition("/src/penstock/")
        if inside:
            places.append(f"{name}:{frame.f_code.co_name}")
        frame = frame.f_back
    return tuple(places)


def _is_allowed(event: str, places: tuple[str, ...]) -> bool:
    return any(one.event == event and one.place in places for one in ALLOWED)
