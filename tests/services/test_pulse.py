"""When a child is taken to hang, and what an HTTP/2 server's sign of life is."""

from __future__ import annotations

import errno
import os
import select
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import Unavailable
from penstock.services.host.liveness import LivenessCheck, LivenessOptions, greet
from penstock.testing.clock import VirtualClock

OPTIONS = LivenessOptions(every_s=10, answer_s=10, check_s=1, failures_max=3)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


class Child:
    """What answers, or does not."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.answer: bool | None = True
        self.takes_questions = True
        self.lacks_descriptors = False
        self.asked = 0
        self.open = 0
        self.pulse = LivenessCheck(self.ask, self.clock, OPTIONS)
        self.pulse.begin(0)

    def ask(self) -> Child | None:
        self.asked += 1
        if self.lacks_descriptors:
            raise Unavailable("too many open files")
        if not self.takes_questions:
            return None
        self.open += 1
        return self

    def answered(self) -> bool | None:
        return self.answer

    def close(self) -> None:
        self.open -= 1

    def hangs_after_s(self, limit_s: float) -> float | None:
        """Let time pass as the launcher does; return when the child was taken to hang."""
        begun_s = self.clock.monotonic_s()
        while (due_s := self.pulse.next_s) is not None and due_s - begun_s <= limit_s:
            self.clock.advance(max(0.0, due_s - self.clock.monotonic_s()))
            if self.pulse.hangs(self.clock.monotonic_s()):
                return self.clock.monotonic_s() - begun_s
        return None


def test_one_that_answers_is_asked_now_and_then() -> None:
    child = Child()
    assert child.hangs_after_s(1_000) is None
    assert child.asked == pytest.approx(1_000 / 11, abs=2)


@pytest.mark.parametrize(("takes", "answer"), [(True, None), (True, False), (False, None)])
def test_one_that_does_not_is_taken_to_hang_after_some_failures(
    takes: bool, answer: bool | None
) -> None:
    child = Child()
    child.takes_questions, child.answer = takes, answer
    after_s = child.hangs_after_s(1_000)
    assert after_s is not None
    assert OPTIONS.every_s + 20 <= after_s <= OPTIONS.every_s + 35
    assert child.asked == OPTIONS.failures_max
    assert child.open == 0


def test_one_answer_makes_good_for_all_failures_before() -> None:
    child = Child()
    child.answer = None
    assert child.hangs_after_s(35) is None
    child.answer = True
    assert child.hangs_after_s(5) is None
    child.answer = None
    assert child.hangs_after_s(35) is None


def test_a_parent_without_descriptors_takes_nobody_for_hung_and_asks_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    child = Child()
    child.lacks_descriptors = True
    assert child.hangs_after_s(1_000) is None
    assert child.asked == pytest.approx(100, abs=2)
    assert len(caplog.messages) == pytest.approx(1_000 / 60, abs=2)
    assert caplog.messages[0] == "a liveness check is postponed: too many open files"
    child.lacks_descriptors, child.answer = False, None
    assert child.hangs_after_s(100) is not None


def test_a_machine_that_slept_takes_nobody_for_hung() -> None:
    child = Child()
    child.answer = None
    child.pulse.hangs(10)
    assert not child.pulse.hangs(100_000)
    child.answer = True
    assert not child.pulse.hangs(100_001)


def test_the_end_closes_what_is_open() -> None:
    child = Child()
    child.answer = None
    child.pulse.hangs(10)
    assert child.open == 1
    child.pulse.end()
    assert child.open == 0
    assert child.pulse.next_s is None
    assert not child.pulse.hangs(1_000)


@given(st.lists(st.tuples(st.floats(0, 30), st.sampled_from([True, False, None])), max_size=60))
def test_there_is_one_question_at_a_time_and_always_a_next_look(
    steps: list[tuple[float, bool | None]],
) -> None:
    child = Child()
    now_s = 0.0
    for passed_s, answer in steps:
        now_s += passed_s
        child.answer = answer
        if child.pulse.hangs(now_s):
            child.pulse.begin(now_s)
        assert child.open in {0, 1}
        assert child.pulse.next_s is not None
        assert child.pulse.next_s <= now_s + OPTIONS.every_s + 1e-6


def test_a_server_that_sends_its_settings_lives() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        greeting = greet(server.getsockname()[1])
        assert greeting is not None
        # Its kernel has taken the connection, and that says nothing.
        assert greeting.answered() is None
        peer, _ = server.accept()
        with peer:
            assert peer.recv(100) == PREFACE
            peer.sendall(b"\0\0\6\4\0")
            select.select([greeting._socket], [], [])
            assert greeting.answered() is None
            peer.sendall(b"\0\0\0\0" + b"\0\3\0\0\0\x64")
            select.select([greeting._socket], [], [])
            assert greeting.answered() is True
        greeting.close()


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_something_else_is_no_sign_of_life(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        greeting = greet(port)
        assert greeting is not None
        peer, _ = server.accept()
        with peer:
            peer.recv(100)
            peer.sendall(said)
        select.select([greeting._socket], [], [])
        assert greeting.answered() is False
        greeting.close()
    assert greet(port) is None


@pytest.mark.parametrize("call", ["__init__", "connect"])
@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EMFILE, "ulimit -n"),
        (errno.ENFILE, "fs.file-max"),
        (errno.ENOBUFS, "free memory of the host"),
        (errno.ENOMEM, "free memory of the host"),
        (errno.EADDRNOTAVAIL, "net.ipv4.ip_local_port_range"),
    ],
)
def test_a_lack_of_descriptors_is_not_taken_for_silence(
    monkeypatch: pytest.MonkeyPatch, call: str, number: int, remedy: str
) -> None:
    class Lacking(socket.socket):
        """Fails at one call, as with a limit of descriptors or of memory for sockets."""

    def lack(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    setattr(Lacking, call, lack)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(socket, "socket", Lacking)
        with pytest.raises(Unavailable, match=rf"port {port} cannot be probed: .*{remedy}"):
            greet(port)
