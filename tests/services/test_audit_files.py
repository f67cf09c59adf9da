"""Records of the audit on their way into the topic: each once, none lost without a count."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import Forbidden, PenstockError, Unavailable
from penstock.services.host import audit_files
from penstock.services.host.audit_files import AuditFiles, audit_into
from penstock.services.host.audit_publisher import AuditPublisher
from penstock.testing.clock import VirtualClock


class KeptTopic:
    """A topic that appends each sequence number of a producer once, and fails on request."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.last: dict[str, int] = {}
        self.fails_before: list[PenstockError] = []
        self.fails_after = 0
        self.closed = 0

    def publish(self, lines: list[bytes], producer: tuple[str, int]) -> None:
        if self.fails_before:
            raise self.fails_before.pop()
        name, sequence = producer
        if sequence > self.last.get(name, 0):
            self.last[name] = sequence
            self.lines += lines
        if self.fails_after:
            self.fails_after -= 1
            raise Unavailable("the answer is lost")

    def close(self) -> None:
        self.closed += 1


def opened(folder: Path, file_bytes: int = 1 << 20, files: int = 10) -> AuditFiles:
    return AuditFiles(
        *(folder, "router", VirtualClock()), file_bytes_max=file_bytes, files_max=files
    )


def publisher(files: AuditFiles, topic: KeptTopic) -> AuditPublisher:
    return AuditPublisher(files, topic, VirtualClock(), lambda: 0.0)


def publish_all(files: AuditFiles, topic: KeptTopic) -> None:
    while publisher(files, topic).publish_next():
        pass


def test_records_are_published_in_order_and_once(tmp_path: Path) -> None:
    files, topic = opened(tmp_path), KeptTopic()
    assert not publisher(files, topic).publish_next()
    for number in range(3):
        files.append(f'{{"n":{number}}}')
    publish_all(files, topic)
    files.append('{"n":3}')
    publish_all(files, topic)
    assert topic.lines == [b'{"n":%d}' % number for number in range(4)]
    assert files.published.value == 4
    assert files.lost.value == 0


def test_a_batch_whose_answer_was_lost_is_not_published_twice(tmp_path: Path) -> None:
    files, topic = opened(tmp_path), KeptTopic()
    files.append("1")
    topic.fails_after = 1
    with pytest.raises(Unavailable):
        publisher(files, topic).publish_next()
    files.append("2")  # it must not become a part of the batch
    files.close()
    files = opened(tmp_path)
    files.append("3")
    publish_all(files, topic)
    assert topic.lines == [b"1", b"2", b"3"]


def test_the_files_have_a_limit_and_deleted_records_are_counted(tmp_path: Path) -> None:
    files, topic = opened(tmp_path, file_bytes=10, files=3), KeptTopic()
    for number in range(100):
        files.append(f"{number:03d}")
    assert len(list(files.folder.glob("*.jsonl"))) == 3
    publish_all(files, topic)
    assert topic.lines[-1] == b"099"
    assert len(topic.lines) + files.lost.value == 100
    assert len(topic.lines) >= 6
    files.append("100")
    publish_all(files, topic)
    assert topic.lines[-1] == b"100"


def test_records_that_are_deleted_during_an_attempt_are_counted(tmp_path: Path) -> None:
    files, topic = opened(tmp_path, file_bytes=10, files=3), KeptTopic()
    files.append("a")
    topic.fails_before.append(Unavailable("away"))
    with pytest.raises(Unavailable):
        publisher(files, topic).publish_next()
    for number in range(100):
        files.append(f"{number:03d}")
    publish_all(files, topic)
    assert len(topic.lines) + files.lost.value == 101


def test_a_process_that_is_restarted_often_keeps_its_files(tmp_path: Path) -> None:
    topic = KeptTopic()
    for number in range(30):
        files = opened(tmp_path, files=3)
        files.append(str(number))
        files.close()
    files = opened(tmp_path, files=3)
    publish_all(files, topic)
    assert topic.lines == [str(number).encode() for number in range(30)]


@pytest.mark.parametrize("whole", [["1"], []])
def test_a_torn_record_is_not_published(tmp_path: Path, whole: list[str]) -> None:
    files, topic = opened(tmp_path), KeptTopic()
    files.append("1")
    files.close()
    (path,) = files.folder.glob("*.jsonl")
    path.write_bytes("".join(f"{one}\n" for one in whole).encode() + b'{"to')
    files = opened(tmp_path)
    files.append("2")
    files.append("3")
    publish_all(files, topic)
    assert topic.lines == [*(one.encode() for one in whole), b"2", b"3"]
    assert files.lost.value == 0


def test_a_full_disk_does_not_prevent_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(tmp_path).close()

    def full(path: Path, _content: bytes) -> None:
        raise Unavailable(f"cannot write {path}: No space left on device")

    topic = KeptTopic()
    with monkeypatch.context() as patch:
        patch.setattr(audit_files, "replace_private", full)
        files = opened(tmp_path)
        files.append("1")
        with pytest.raises(Unavailable):
            publisher(files, topic).publish_next()
    publish_all(files, topic)
    assert topic.lines == [b"1"]


@pytest.mark.parametrize("is_answered", [True, False])
def test_numbers_of_published_records_are_not_used_again(tmp_path: Path, is_answered: bool) -> None:
    files, topic = opened(tmp_path), KeptTopic()
    for number in range(5):
        files.append(str(number))
    if is_answered:
        publish_all(files, topic)
    else:
        topic.fails_after = 1
        with pytest.raises(Unavailable):
            publish_all(files, topic)
    files.close()
    (path,) = files.folder.glob("*.jsonl")
    path.write_bytes(b"0\n1\n")  # the machine stopped before the others were on the disk
    files = opened(tmp_path)
    files.append("new")
    publish_all(files, topic)
    assert topic.lines == [b"0", b"1", b"2", b"3", b"4", b"new"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"producer":1}', b"\xff"])
def test_a_damaged_position_loses_nothing(tmp_path: Path, content: bytes) -> None:
    files, topic = opened(tmp_path), KeptTopic()
    files.append("1")
    publish_all(files, topic)
    (files.folder / "position.json").write_bytes(content)
    files.append("2")
    publish_all(files, topic)
    assert topic.lines[-1] == b"2"
    assert files.lost.value == 0


def test_a_full_disk_costs_records_and_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, topic = opened(tmp_path), KeptTopic()
    files.append("1")
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(audit_files.os, "write", lambda fd, line: write(fd, line[:2]))
        files.append("22222")
    with monkeypatch.context() as patch:

        def full(_descriptor: int, _line: bytes) -> int:
            raise OSError(28, "No space left on device")

        patch.setattr(audit_files.os, "write", full)
        files.append("3")
    files.append("4")
    publish_all(files, topic)
    assert topic.lines == [b"1", b"4"]
    assert files.not_written.value == 2
    assert files.lost.value == 0


class SlowDisk:
    """Writes wait until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.came, self.released = threading.Event(), threading.Event()
        write = audit_files._write

        def slowly(descriptor: int, line: bytes) -> None:
            self.came.set()
            assert self.released.wait(120)
            write(descriptor, line)

        monkeypatch.setattr(audit_files, "_write", slowly)


def test_an_event_loop_does_not_wait_for_a_slow_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files, topic = opened(tmp_path), KeptTopic()
    files.start()
    disk = SlowDisk(monkeypatch)
    logger = logging.getLogger("penstock.audit")
    # Not by its attribute: loggers remember which levels are enabled.
    caplog.set_level(logging.INFO, logger.name)

    async def record() -> None:
        for number in range(3):
            logger.info("%d", number)
        assert disk.came.wait(120)
        other = threading.Thread(target=logger.info, args=("%d", 3))
        other.start()
        logger.info("%d", 4)  # not even while another thread waits for its record
        assert not disk.released.is_set()
        disk.released.set()
        await asyncio.to_thread(other.join)

    with audit_into(files):
        asyncio.run(record())
    files.close()
    publish_all(files, topic)
    assert topic.lines[:3] == [b"0", b"1", b"2"]
    assert sorted(topic.lines[3:]) == [b"3", b"4"]


def test_records_that_wait_have_a_bound_and_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_files, "WAITING_MAX", 3)
    files = opened(tmp_path)
    files.start()
    disk = SlowDisk(monkeypatch)

    async def record() -> None:
        for number in range(5):
            files.append(str(number))
        disk.released.set()

    asyncio.run(record())
    files.close()
    assert files.not_written.value == 2
    assert files.read(1, 10, 1 << 20).lines == [b"0", b"1", b"2"]


def test_a_thread_waits_until_its_record_is_written(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.start()
    files.append("1")
    assert files.read(1, 10, 1 << 20).lines == [b"1"]
    files.close()


def test_two_processes_of_one_role_have_folders_of_their_own(tmp_path: Path) -> None:
    one, two = opened(tmp_path), opened(tmp_path)
    assert (one.folder.name, two.folder.name) == ("router", "router-2")
    one.close()
    assert opened(tmp_path).folder.name == "router"
    assert one.folder.stat().st_mode & 0o777 == 0o700


def test_the_thread_publishes_and_waits_longer_after_failures(tmp_path: Path) -> None:
    clock, topic = VirtualClock(), KeptTopic()
    files = AuditFiles(tmp_path, "router", clock)
    running = AuditPublisher(files, topic, clock, lambda: 0.0)
    files.append("1")
    topic.fails_before = [Forbidden("not yet"), Unavailable("away")]
    running.start()
    try:
        clock.wait_for_waiting(1)
        assert topic.lines == []
        assert topic.closed == 1
        clock.advance(1.0)
        clock.wait_for_waiting(1)
        clock.advance(1.0)
        clock.wait_for_waiting(1)
        assert topic.lines == [], "the second failure doubles the wait"
        clock.advance(1.0)
        clock.wait_for_waiting(1)
        assert topic.lines == [b"1"]
    finally:
        running.stop()


def test_records_of_the_logger_go_into_the_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files, topic = opened(tmp_path), KeptTopic()
    logger = logging.getLogger("penstock.audit")
    caplog.set_level(logging.INFO, logger.name)
    with audit_into(files):
        logger.info("%s", '{"a":1}')
    logger.info("later")
    publish_all(files, topic)
    assert topic.lines == [b'{"a":1}']


STEPS = st.lists(
    st.sampled_from(["append", "append", "publish", "fail before", "fail after", "restart"]),
    max_size=40,
)


@settings(max_examples=100, deadline=None)
@given(STEPS, st.integers(1, 60), st.integers(1, 4))
def test_each_record_is_published_once_or_counted(
    steps: list[str], file_bytes: int, files_max: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        topic = KeptTopic()
        files = opened(path, file_bytes, files_max)
        written, lost = 0, 0.0
        for step in [*steps, "publish"]:
            if step == "append":
                files.append(f"{written:04d}")
                written += 1
            elif step == "restart":
                lost += files.lost.value
                files.close()
                files = opened(path, file_bytes, files_max)
            elif step == "publish":
                publish_all(files, topic)
            else:
                topic.fails_before = [Unavailable("away")] if step == "fail before" else []
                topic.fails_after = int(step == "fail after")
                with contextlib.suppress(Unavailable):
                    publisher(files, topic).publish_next()
                topic.fails_before, topic.fails_after = [], 0
        lost += files.lost.value
        files.close()
        assert topic.lines == sorted(set(topic.lines))
        # A batch that was appended, and then deleted before its answer was known, counts as lost.
        assert written - lost <= len(topic.lines) <= written
        if not lost:
            assert len(topic.lines) == written
