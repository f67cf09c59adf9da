"""Real servers for tests: a broker alone, or a whole Penstock, each in a process of its own.

    with LocalBroker() as broker:
        broker.publish("clicks", b'{"page": "/"}')
        run_my_program(broker.tcp_address)
        assert broker.messages("pages", count=1) == [b"/"]

`LocalBroker` starts within about a second and needs no Java. `LocalPenstock` is all of
`penstock up`, with Spark, for programs that ask SQL. Both listen on free ports of this host and
keep them across restarts. `penstock.testing.fixtures` has pytest fixtures of both.

Invariants: a server ends with the process that started it, however that process ends. It reads no
`PENSTOCK_…` variable of that process, so a test cannot reach a real database by accident.
"""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from penstock.broker.broker_client import BrokerClient
from penstock.client import Consumer, ConsumerOptions, Handler, Producer, ProducerOptions
from penstock.core.clock import SystemClock, pause
from penstock.core.errors import InvalidRequest, NotFound, PenstockError, Unavailable, counted
from penstock.services.host.data_folder import DataFolder
from penstock.services.host.server_process import ServerProcess
from penstock.services.json_client import JsonClient
from penstock.services.json_values import objects, part, whole
from penstock.services.sql_client import ask

T = TypeVar("T")

START_TIMEOUT_S: Final = 300.0
WAIT_TIMEOUT_S: Final = 10.0
SQL_TIMEOUT_S: Final = 120.0
LOG_LINES: Final = 40
_PREFIX: Final = "PENSTOCK_"
_POLL_S: Final = 0.05
_SQL_POLL_S: Final = 0.3
_PEEK_COUNT: Final = 1_000


class _ServerLogs:
    """Output and log files of a server, without what was written before `forget`."""

    def __init__(self, folder: Path, process: ServerProcess) -> None:
        self._folder = folder
        self._process = process
        self._logged_before: dict[str, int] = {}
        self._printed_before = (0, 0)

    def text(self, lines: int) -> str:
        """Return the last lines of the output and of each file."""
        started, last_line = self._printed_before
        is_same = started == self._process.starts
        texts = {"output": self._process.lines_after(last_line if is_same else 0)}
        for path in self._files():
            with contextlib.suppress(OSError), path.open("rb") as file:
                file.seek(self._logged_before.get(path.name, 0))
                texts[path.name] = file.read().decode(errors="replace").splitlines()
        shown = [
            "\n".join([f"-- {name} of Penstock", *text[-lines:]])
            for name, text in texts.items()
            if text
        ]
        return "\n".join(shown)

    def forget(self) -> None:
        """Have `text` return only what is written from now on."""
        self._printed_before = self._process.starts, self._process.last_line
        for path in self._files():
            with contextlib.suppress(OSError):
                self._logged_before[path.name] = path.stat().st_size

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("*.log")) + sorted(self._folder.glob("*.out"))


class LocalBroker:
    """A broker of a test, in a process of its own. A context manager starts and closes it.

    An exception that leaves the block carries the last lines of the broker's log as a note.

    Args:
        folder: Data folder, which is kept. None: a temporary one; `start` makes it, and `close`
            deletes it.
        variables: Options as environment variables, such as `{"PENSTOCK_MSG_TIMEOUT": "1s"}`.
    """

    _command: Sequence[str] = ("server", "broker")

    def __init__(
        self, folder: Path | str | None = None, *, variables: Mapping[str, str] | None = None
    ) -> None:
        self._is_temporary = folder is None
        self.folder = Path(folder or _temporary_folder()).absolute()
        self._clock = SystemClock()
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(_PREFIX)
        }
        self._process = ServerProcess(
            DataFolder(self.folder),
            self._clock,
            variables,
            command=self._command,
            environment=environment,
        )
        self._logs = _ServerLogs(DataFolder(self.folder).log, self._process)

    # -- the process

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start it, or start it again, and wait until it is ready; no effect while it runs.

        Args:
            timeout_s: Limit in seconds.

        Raises:
            Unavailable: It ended during its start, or was not ready in time; with its output.
            OSError: Its process or the temporary folder cannot be created.
        """
        if self.is_running:
            return
        if self._is_temporary:
            self.folder.mkdir(mode=0o700, exist_ok=True)
        self._process.kill()
        self._process.start()
        try:
            self._process.wait_ready(timeout_s=timeout_s)
        except BaseException:
            self._process.kill()
            raise

    def stop(self) -> None:
        """Stop it in order; its data and addresses remain for another `start`."""
        self._process.stop()

    def kill(self) -> None:
        """Kill it as `kill -9` does, with its child processes; `start` starts it again."""
        self._process.kill()

    def close(self) -> None:
        """Stop it, and delete its folder if it is temporary."""
        self.stop()
        if self._is_temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def pid(self) -> int | None:
        """Id of the process while it runs; of `penstock up`, the one that starts all others."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process runs."""
        return self._process.pid is not None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException as error:
            self._close_after(error)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close_after(exception)

    def _close_after(self, exception: BaseException | None) -> None:
        """Close it, and add its last lines to the exception that led to this."""
        try:
            self.stop()
            if exception is not None:
                exception.add_note(self.logs())
        finally:
            self.close()

    def logs(self, lines: int = LOG_LINES) -> str:
        """Return the last lines of its output and of each of its log files, since `forget_logs`.

        Args:
            lines: Maximum number of lines of each.
        """
        return self._logs.text(lines)

    def forget_logs(self) -> None:
        """Have `logs` show only what is printed and logged from now on."""
        self._logs.forget()

    # -- addresses and clients

    @property
    def tcp_address(self) -> str:
        """Address for clients of NSQ's protocol, such as `127.0.0.1:4150`."""
        return self._process.broker_tcp

    @property
    def http_url(self) -> str:
        """URL of the broker's HTTP API, such as `http://127.0.0.1:4151`."""
        return self._process.broker_http

    def producer(self, options: ProducerOptions | None = None) -> Producer:
        """Return a producer for this broker; `async with` connects it."""
        return Producer(self.tcp_address, options=options)

    def consumer(
        self,
        topic: str,
        channel: str,
        handler: Handler | None = None,
        *,
        max_in_flight: int = 100,
        options: ConsumerOptions | None = None,
    ) -> Consumer:
        """Return a consumer of a channel of this broker; `async with` connects it.

        Args and Raises as in `penstock.client.Consumer`.
        """
        return Consumer(
            topic,
            channel,
            handler,
            addresses=[self.tcp_address],
            max_in_flight=max_in_flight,
            options=options,
        )

    # -- topics

    def create_topic(self, topic: str, *channels: str, partitions: int = 1) -> None:
        """Create a topic and channels of it; no effect on those that exist.

        Raises:
            Conflict: The topic exists with another number of stream partitions.
            InvalidRequest: A name or the number is invalid.
        """
        with self._broker() as broker:
            broker.create_topic(topic, partitions)
        for channel in channels:
            query = {"topic": topic, "channel": channel}
            self._requests.request("POST", "/channel/create", query=query)

    def delete_topics(self) -> None:
        """Delete all topics with their channels and messages."""
        with self._broker() as broker:
            for one in objects(self._requests.get("/stats", {"format": "json"}), "topics"):
                with contextlib.suppress(NotFound):
                    broker.delete_topic(str(one["topic_name"]))

    def publish(self, topic: str, *messages: bytes) -> None:
        """Publish messages in one batch; the topic is created if it does not exist.

        Raises:
            InvalidRequest: The name is invalid, or a message is not bytes, empty or too large.
            Unavailable: The broker does not answer, or cannot store messages now.
        """
        if not messages or not all(messages) or {type(one) for one in messages} != {bytes}:
            raise InvalidRequest(
                "publish takes one or more messages as arguments, each of at least one byte:"
                " convert text by encode(), and pass a list as *messages"
            )
        with self._broker() as broker:
            broker.publish(topic, messages)

    def messages(
        self, topic: str, count: int = 0, timeout_s: float = WAIT_TIMEOUT_S
    ) -> list[bytes]:
        """Return the messages that a topic holds, without consuming them.

        They are in the order of publication within each stream partition. Messages that all
        channels of the topic have finished may be missing, because the broker deletes them.

        Args:
            topic: The topic.
            count: Wait until there are at least as many.
            timeout_s: Limit of the wait in seconds.

        Raises:
            NotFound: The topic does not exist, and `count` is 0.
            Unavailable: There were not as many messages in time.
        """
        __tracebackhide__ = True
        if not count:
            return list(self._peek_all(topic))

        def found() -> list[bytes]:
            bodies = list(self._peek_all(topic))
            if len(bodies) < count:
                raise Unavailable(f"topic {topic} has {counted(len(bodies), 'message')}")
            return bodies

        return self.wait_until(found, f"{counted(count, 'message')} in topic {topic}", timeout_s)

    def wait_finished(self, topic: str, channel: str, timeout_s: float = WAIT_TIMEOUT_S) -> None:
        """Wait until consumers have finished every message of a channel.

        Args:
            topic: The topic.
            channel: The channel; it is waited for, too.
            timeout_s: Limit in seconds.

        Raises:
            Unavailable: They have not finished in time.
        """
        __tracebackhide__ = True

        def finished() -> bool:
            stats = self._requests.get("/stats", {"format": "json", "topic": topic})
            for one in objects(stats, "topics"):
                for state in objects(one, "channels"):
                    if state.get("channel_name") == channel:
                        return _require_finished(state)
            raise NotFound(
                f"channel {channel} of topic {topic} does not exist: nothing has subscribed to it"
            )

        what = f"consumers to finish all messages of channel {channel} of topic {topic}"
        self.wait_until(finished, what, timeout_s)

    def wait_until(
        self,
        condition: Callable[[], T],
        what: str = "the condition",
        timeout_s: float = WAIT_TIMEOUT_S,
    ) -> T:
        """Call a function until its result is true, and return the result.

        Args:
            condition: Called every 50 ms. A `PenstockError` that it raises counts as not true.
            what: Name of the condition, for the error.
            timeout_s: Limit in seconds.

        Raises:
            Unavailable: It was not true in time; with the last error.
        """
        __tracebackhide__ = True
        return self._wait_until(condition, what, timeout_s, _POLL_S)

    def _wait_until(
        self, condition: Callable[[], T], what: str, timeout_s: float, poll_s: float
    ) -> T:
        __tracebackhide__ = True
        deadline_s = self._clock.monotonic_s() + timeout_s
        last: PenstockError | None = None
        while True:
            try:
                if result := condition():
                    return result
            except PenstockError as error:
                last = error
            if self._clock.monotonic_s() >= deadline_s:
                reason = "" if last is None else f"; last: {last}"
                raise Unavailable(f"waited {timeout_s:g} s for {what}{reason}") from None
            pause(self._clock, poll_s)

    def _peek_all(self, topic: str) -> Iterator[bytes]:
        with self._broker() as broker:
            for partition in broker.offsets(topic).partitions:
                offset = partition.earliest
                while offset < partition.latest:
                    page = broker.peek(
                        topic, partition=partition.partition, offset=offset, count=_PEEK_COUNT
                    )
                    yield from map(_body, objects(page, "messages"))
                    offset = whole(page, "next_offset")

    def _broker(self) -> BrokerClient:
        self._require_running()
        return BrokerClient(self.http_url)

    @property
    def _requests(self) -> JsonClient:
        self._require_running()
        return JsonClient(self.http_url)

    def _require_running(self) -> None:
        if not self.is_running:
            raise Unavailable(
                "the server does not run: call start(), or use it in a with statement"
            )


class LocalPenstock(LocalBroker):
    """A whole Penstock of a test: broker, flows, indexing and SQL, as `penstock up` starts them.

    It has all methods of `LocalBroker`, for its broker. It is ready after 5 to 15 seconds and needs
    Java 17 or newer and 2 GB of memory. Queries share one Spark with indexing, which makes the
    start faster; set `PENSTOCK_QUERY_MEMORY` for two.

    Args:
        folder: Data folder, which is kept. None: a temporary one, deleted at the end.
        variables: Options as environment variables.
    """

    _command = ("up",)

    def __init__(
        self, folder: Path | str | None = None, *, variables: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(folder, variables={"PENSTOCK_QUERY_MEMORY": "none", **(variables or {})})

    @property
    def api_url(self) -> str:
        """URL of the HTTP API for SQL, tasks, supervisors and flows."""
        return self._process.http

    @property
    def api(self) -> JsonClient:
        """Client of the API: `get(path)` and `post(path, body)` send and return JSON."""
        return JsonClient(self.api_url)

    def submit_supervisor(self, spec: Mapping[str, object]) -> str:
        """Create or replace a supervisor and return its id.

        Raises:
            InvalidRequest: The spec is invalid.
        """
        return str(part(self.api.post("/druid/indexer/v1/supervisor", dict(spec)), "id"))

    def run_task(self, spec: Mapping[str, object], timeout_s: float = SQL_TIMEOUT_S) -> str:
        """Submit a task, wait until it has succeeded, and return its id.

        Args:
            spec: The task.
            timeout_s: Limit in seconds.

        Raises:
            InvalidRequest: The spec is invalid.
            Unavailable: The task failed, with its error, or did not end in time.
        """
        __tracebackhide__ = True
        task = str(part(self.api.post("/druid/indexer/v1/task", dict(spec)), "task"))

        def ended() -> object:
            answer = self.api.get(f"/druid/indexer/v1/task/{task}/status")
            status = part(answer, "status")
            return status if part(status, "statusCode") in ("SUCCESS", "FAILED") else None

        status = self._wait_until(ended, f"the end of task {task}", timeout_s, _SQL_POLL_S)
        if part(status, "statusCode") != "SUCCESS":
            raise Unavailable(f"task {task} failed: {part(status, 'errorMsg')}")
        return task

    def sql(self, statement: str) -> list[dict[str, object]]:
        """Run a query and return its rows, by column names.

        Raises:
            InvalidRequest: The statement is invalid, or a table has no rows yet.
            Unavailable: Spark is starting or out of capacity.
        """
        answer = ask(self.api, statement)
        return [dict(zip(answer.names, row, strict=True)) for row in answer.rows]

    def wait_for_rows(
        self,
        statement: str,
        rows: Sequence[Mapping[str, object]],
        timeout_s: float = SQL_TIMEOUT_S,
    ) -> None:
        """Run a query until it returns these rows, in this order.

        Args:
            statement: The query.
            rows: The expected rows, by column names.
            timeout_s: Limit in seconds.

        Raises:
            Unavailable: It did not return them in time; with the last rows or error.
        """
        __tracebackhide__ = True
        expected = [dict(row) for row in rows]

        def returned() -> bool:
            found = self.sql(statement)
            if found != expected:
                raise Unavailable(f"the query returned {found}")
            return True

        self._wait_until(returned, f"{expected} from {statement}", timeout_s, _SQL_POLL_S)


def _temporary_folder() -> Path:
    """Return a path that cannot be guessed: if the folder exists already, `start` uses it."""
    return Path(tempfile.gettempdir()) / f"penstock-{secrets.token_hex(16)}"


def _require_finished(state: Mapping[str, object]) -> bool:
    counts = {
        "waiting": whole(state, "depth"),
        "in flight": whole(state, "in_flight_count"),
        "deferred": whole(state, "deferred_count"),
    }
    if any(counts.values()):
        raise Unavailable(", ".join(f"{count} {name}" for name, count in counts.items()))
    return True


def _body(message: Mapping[str, object]) -> bytes:
    packed = message.get("body_base64")
    return base64.b64decode(str(packed)) if packed else str(message.get("body", "")).encode()
