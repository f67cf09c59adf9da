"""A role as a real process under real limits: memory, file descriptors, threads."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar, Final

WAIT_S: Final = 120.0
TOKEN: Final = "limited"
LIMITED_ANSWER_S: Final = 1.0
"""Time limit of a request while the process is limited."""
# Of a request that is repeated until the process works again.
_AGAIN_S: Final = 5.0
_PAUSE_S: Final = 0.02


@dataclass(frozen=True)
class Answer:
    """The answer to one request.

    Attributes:
        status: Its status; 0 if there was none.
        body: Its JSON, or the reason why there is none.
    """

    status: int
    body: object

    @property
    def ok(self) -> bool:
        return self.status == 200


class LimitedRole:
    """A role's process in a data folder, and those that follow it there.

    Args:
        folder: A new folder.
        role: The role.
        options: More of its options.

    Attributes:
        patience_s: Time limit of a request; short within `impatient`.
        started: Processes that a test has started; `limit_folder` ends those that are left.
    """

    started: ClassVar[list[subprocess.Popen[bytes]]] = []

    def __init__(self, folder: Path, role: str, *options: str) -> None:
        self.data = folder / "data"
        self.log = folder / f"{role}.log"
        self._folder, self._role, self._options = folder, role, options
        self.patience_s = WAIT_S
        self.start()

    def start(self) -> None:
        """Start the process, and wait until it answers."""
        begin = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as stream:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "penstock", "server", self._role),
                    *("--data-dir", str(self.data), "--http", "127.0.0.1:0", *self._options),
                ],
                stdout=stream,
                stderr=stream,
                # Under a limit of threads its user changes, so the test is no longer of the owner.
                env={**limitable(self._folder), "PENSTOCK_TOKEN": TOKEN},
            )
        self.started.append(self.process)
        self.url = ""
        until(lambda: self._finds_address(begin), self)
        until(lambda: self.ask("GET", "/status/health").ok, self)

    def _finds_address(self, begin: int) -> bool:
        text = self.log.read_bytes()[begin:].decode()
        if found := re.search(r"listens on (127\.0\.0\.1:\d+)", text):
            self.url = f"http://{found[1]}"
        return bool(self.url)

    def ask(
        self, method: str, path: str, body: object = None, timeout_s: float | None = None
    ) -> Answer:
        """Send a request; without a time limit of its own it has that of this moment."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        try:
            with _answer(request, timeout_s or self.patience_s) as answer:
                content = answer.read()
                is_good = answer.status < HTTPStatus.BAD_REQUEST
                value = json.loads(content or b"null") if is_good else content.decode()
                return Answer(answer.status, value)
        except (OSError, ValueError, http.client.HTTPException) as error:
            return Answer(0, repr(error))

    @contextlib.contextmanager
    def impatient(self, patience_s: float) -> Iterator[None]:
        """Give requests less time within the block, in which some are not answered."""
        before, self.patience_s = self.patience_s, patience_s
        try:
            yield
        finally:
            self.patience_s = before

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)

    def said(self) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace")[-4_000:]


def limitable(folder: Path) -> dict[str, str]:
    """Return the environment of a process that can be limited to no more threads.

    Args:
        folder: The folder that it writes.
    """
    here = Path(__file__).parent
    paths = (str(here / "limiting"), str(here.parents[1]), os.environ.get("PYTHONPATH", ""))
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(one for one in paths if one),
        "LIMITED_TEST_FOLDER": str(folder),
    }


@contextlib.contextmanager
def limited(
    process: subprocess.Popen[Any], kind: str, *, spare_bytes: int = 0, spare_files: int = 1
) -> Iterator[None]:
    """Take nearly all that is left of something from a process.

    Args:
        process: The process. For `threads`, it and its children have the module of the folder
            `limiting`, and its children are limited, too: it could not end those of root.
        kind: `memory`, `files` or `threads`.
        spare_bytes: More memory than it has.
        spare_files: More descriptors than it has.
    """
    if kind == "threads":
        tree = [process.pid, *filter(_has_the_module, children_of(process.pid))]
        for pid in tree:
            with contextlib.suppress(ProcessLookupError):  # a child that has ended
                os.kill(pid, signal.SIGUSR1)
        until(lambda: all(map(_has_no_threads, tree)))
        yield
        for pid in [process.pid, *filter(_has_the_module, children_of(process.pid))]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR2)
        return
    what = resource.RLIMIT_AS if kind == "memory" else resource.RLIMIT_NOFILE
    before = resource.prlimit(process.pid, what)
    try:
        if kind == "memory":
            statm = Path(f"/proc/{process.pid}/statm").read_text()
            used = int(statm.split()[0]) * resource.getpagesize()
            resource.prlimit(process.pid, what, (used + spare_bytes, before[1]))
        else:
            limit_files(process, spare_files)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(process.pid, what, before)


def children_of(pid: int) -> list[int]:
    """Return the children of a process, theirs, and so on."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has ended
            found += map(int, path.read_text().split())
    return found + [one for child in found for one in children_of(child)]


def _has_no_threads(pid: int) -> bool:
    limits = Path(f"/proc/{pid}/limits")
    try:
        return bool(re.search(r"Max processes +0 ", limits.read_text()))
    except OSError:
        return True  # it has ended


def limit_files(process: subprocess.Popen[Any], spare: int) -> None:
    """Limit the descriptors of a process to those that it has, and some more."""
    taken = {int(one.name) for one in Path(f"/proc/{process.pid}/fd").iterdir()}
    free = (number for number in itertools.count() if number not in taken)
    most = next(itertools.islice(free, spare, None))
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (most, hard))


@dataclass
class Asked:
    """Requests to a process under a limit.

    Attributes:
        acknowledged: Names whose request succeeded.
        failed: Number of the other requests.
    """

    acknowledged: set[str] = field(default_factory=set)
    failed: int = 0

    def note(self, what: str, answer: Answer) -> bool:
        if answer.ok:
            self.acknowledged.add(what)
        else:
            self.failed += 1
        return answer.ok


_REFUSED: Final = re.compile(
    r"MemoryError|Cannot allocate memory|[Tt]oo many open files|can't start new thread"
    r"|cannot create a process: Resource temporarily unavailable"
)


def check_refused(failed: int, said: str) -> None:
    """Insist that a limit made something fail.

    Args:
        failed: Number of requests that failed.
        said: Log of the process.
    """
    assert failed or was_refused(said), said[-4_000:]


def _has_the_module(pid: int) -> bool:
    """Return whether a process has the module of the folder `limiting`.

    The engines of the fast path, whose system calls are filtered, do without it.
    """
    try:
        return b"engine_process" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return False


def was_refused(said: str) -> bool:
    """Return whether a log reports that a limit made something fail."""
    return bool(_REFUSED.search(said))


def until(
    condition: Callable[[], bool], role: LimitedRole | None = None, wait_s: float = WAIT_S
) -> None:
    """Wait for a condition on processes, which tell nobody."""
    end_s = time.monotonic() + wait_s
    while not condition():
        said = "" if role is None else role.said()
        assert role is None or not role.has_ended, f"it ended: {said}"
        assert time.monotonic() < end_s, f"not within {wait_s:g} s: {said}"
        time.sleep(_PAUSE_S)


def works_again(role: LimitedRole, works: Callable[[], bool]) -> bool:
    """Wait until a process works again, or has ended; say whether it works."""
    try:
        # A query that a lack of threads left without an answer ends at its own limit first.
        with role.impatient(_AGAIN_S):
            until(lambda: role.has_ended or works(), wait_s=2 * WAIT_S)
    except AssertionError as error:
        raise AssertionError(f"{error}{role.said()}") from None
    return not role.has_ended


@contextlib.contextmanager
def limit_folder() -> Iterator[Path]:
    """Return a folder that a user without rights can reach and write."""
    with tempfile.TemporaryDirectory(prefix="penstock-limits-") as name:
        Path(name).chmod(0o777)
        try:
            yield Path(name)
        finally:
            while LimitedRole.started:
                process = LimitedRole.started.pop()
                process.kill()
                process.wait()


def _answer(request: urllib.request.Request, timeout_s: float) -> http.client.HTTPResponse:
    """Return the answer to a request, whatever its status."""
    try:
        answer = urllib.request.urlopen(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        return error  # type: ignore[return-value]  # it has the same methods
    assert isinstance(answer, http.client.HTTPResponse)
    return answer
