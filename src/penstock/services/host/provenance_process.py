"""The process that reads the record of provenance, as the flow's process uses it.

Owns its start, its restart after an unexpected end, and the order of calls. Its calls are those of
`ProvenanceReader`. Does not own what it does (`provenance_child`).

Invariant: a call has its answer in time, or raises `Unavailable` and the process is replaced; no
answer is taken for that of another call.
"""

from __future__ import annotations

import select
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import msgspec

from penstock.core.errors import Unavailable
from penstock.flow.provenance.provenance_reader import DerivedEvents, Lineage
from penstock.flow.provenance.provenance_selection import (
    EventFilter,
    FlowFileVersion,
    SelectionStep,
)
from penstock.services.host.provenance_child import (
    ProvenanceAnswer,
    ProvenanceCall,
    read_framed,
    write_framed,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

T = TypeVar("T")

_MODULE: Final = "penstock.services.host.provenance_child"
_END_S: Final = 5.0
_ANSWER_S: Final = 60.0
"""Most time until an answer. Indexes of files are kept, so the next call needs less time."""


class ProvenanceQueries(Protocol):
    """Calls of the reader, in this process or in another one."""

    def events(self, following: int, last: int = 0) -> DerivedEvents:
        """Return events in order; see `ProvenanceReader.events`."""
        ...

    def lineage(self, flowfiles: Iterable[int], depth: int) -> Lineage:
        """Return the lineage of FlowFiles; see `ProvenanceReader.lineage`."""
        ...

    def flowfiles_of(self, topic: str, partition: int, offset: int) -> list[int]:
        """Return the FlowFiles of a message; see `ProvenanceReader.flowfiles_of`."""
        ...

    def version(self, flowfile: int, event: str = "") -> FlowFileVersion | None:
        """Return a FlowFile as it was in a queue; see `ProvenanceReader.version`."""
        ...

    def select(self, wanted: EventFilter, following: int, until: int = 0) -> SelectionStep:
        """Return a step of a selection; see `ProvenanceReader.select`."""
        ...


class ProvenanceProcess:
    """The process. Any thread; the mutex lets one call run at a time.

    Args:
        folder: Folder of the spool.
        environment: Its environment variables, without secrets.
    """

    def __init__(self, folder: str, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = dict(environment)
        self._mutex = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self.starts = 0

    def events(self, following: int, last: int = 0) -> DerivedEvents:
        """Return events in order; see `ProvenanceReader.events`."""
        return self._call(ProvenanceCall("events", [following, last]), DerivedEvents)

    def lineage(self, flowfiles: Iterable[int], depth: int) -> Lineage:
        """Return the lineage of FlowFiles; see `ProvenanceReader.lineage`."""
        return self._call(ProvenanceCall("lineage", [depth, *flowfiles]), Lineage)

    def flowfiles_of(self, topic: str, partition: int, offset: int) -> list[int]:
        """Return the FlowFiles of a message; see `ProvenanceReader.flowfiles_of`."""
        return self._call(ProvenanceCall("flowfiles_of", [partition, offset], topic), list[int])

    def version(self, flowfile: int, event: str = "") -> FlowFileVersion | None:
        """Return a FlowFile as it was in a queue; see `ProvenanceReader.version`."""
        call = ProvenanceCall("version", [flowfile], event)
        found: list[FlowFileVersion] = self._call(call, list[FlowFileVersion])
        return found[0] if found else None

    def select(self, wanted: EventFilter, following: int, until: int = 0) -> SelectionStep:
        """Return a step of a selection; see `ProvenanceReader.select`."""
        text = msgspec.json.encode(wanted).decode()
        return self._call(ProvenanceCall("select", [following, until], text), SelectionStep)

    def close(self) -> None:
        """End the process; a running call raises."""
        self._is_closed = True
        process = self._process
        if process is not None:
            process.kill()  # it only reads, and writes indexes atomically
        with self._mutex:
            self._end()

    def _call(self, call: ProvenanceCall, kind: type[T]) -> T:
        with self._mutex:
            is_done = False
            try:
                content = self._exchange(msgspec.msgpack.encode(call))
                answer = msgspec.msgpack.decode(content, type=ProvenanceAnswer)
                is_done = True
            except (OSError, msgspec.MsgspecError) as error:
                raise Unavailable(
                    f"the process that reads provenance ended ({error}); it is started again: try"
                    " again"
                ) from error
            finally:
                if not is_done:
                    self._end()
        if answer.error:
            raise Unavailable(f"provenance cannot be read now: {answer.error}")
        return msgspec.msgpack.decode(answer.content, type=kind)

    def _exchange(self, content: bytes) -> bytes:
        process = self._process
        if process is None or process.poll() is not None:
            process = self._begin()
        assert process.stdin is not None
        assert process.stdout is not None
        write_framed(process.stdin, content)
        waiting = select.poll()
        waiting.register(process.stdout, select.POLLIN)
        # The process sends an answer at once, so the rest of it does not take long.
        if not waiting.poll(_ANSWER_S * 1_000):
            process.kill()
            raise OSError(f"no answer within {_ANSWER_S:g} s")
        answer = read_framed(process.stdout)
        if answer is None:
            raise OSError("it ended without an answer")
        return answer

    def _begin(self) -> subprocess.Popen[bytes]:
        self._end()
        if self._is_closed:
            raise Unavailable("the flow is being closed: try again")
        self.starts += 1
        self._process = subprocess.Popen(
            (sys.executable, "-P", "-m", _MODULE, self._folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environment,
        )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:  # narrow: it has ended, and did not read everything
                    continue
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
