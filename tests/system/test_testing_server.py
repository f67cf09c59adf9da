"""Servers for tests of users: a real broker in a process of its own, and its fixtures."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client import Message
from penstock.core.errors import InvalidRequest, NotFound, Unavailable
from penstock.services.host.server_process import CHILD_MODULE
from penstock.testing.server import LocalBroker

pytestmark = pytest.mark.system

WAIT_S = 120


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_METADATA_URL", "postgresql://production/penstock")
        made = LocalBroker()
        made.start()
    with made:
        yield made
    assert not made.folder.exists(), "it is a temporary one"


def test_no_option_of_the_environment_reaches_it(broker: LocalBroker) -> None:
    # A thread reads the output, and may be later than the file that says that the broker is ready.
    while "roles.runtime: options: " not in broker.logs():
        time.sleep(0.01)
    assert "production" not in broker.logs()


def test_messages_are_published_and_returned(broker: LocalBroker) -> None:
    broker.publish("numbers", b"1", b"\xff2", b"3")
    assert broker.messages("numbers") == [b"1", b"\xff2", b"3"]
    broker.create_topic("wide", "first", "second", partitions=3)
    for number in range(6):
        broker.publish("wide", b"%d" % number)
    assert sorted(broker.messages("wide", count=6)) == [b"%d" % number for number in range(6)]


def test_clients_are_ready_made(broker: LocalBroker) -> None:
    seen: list[bytes] = []

    async def handle(message: Message) -> None:
        seen.append(message.body)

    async def talk() -> None:
        async with broker.producer() as producer:
            await producer.publish("talk", b"hello")
        async with broker.consumer("talk", "ears", handle):
            await asyncio.to_thread(broker.wait_finished, "talk", "ears", WAIT_S)

    asyncio.run(talk())
    assert seen == [b"hello"]


def test_a_wait_says_what_it_waited_for(broker: LocalBroker) -> None:
    with pytest.raises(NotFound):
        broker.messages("missing")
    broker.create_topic("few", "slow")
    broker.publish("few", b"one")
    with pytest.raises(Unavailable, match="2 messages in topic few; last: topic few has 1 mess"):
        broker.messages("few", count=2, timeout_s=0)
    with pytest.raises(Unavailable, match="channel slow of topic few; last: 1 waiting, 0 in fl"):
        broker.wait_finished("few", "slow", timeout_s=0)
    with pytest.raises(Unavailable, match="channel none of topic few does not exist"):
        broker.wait_finished("few", "none", timeout_s=0)


@pytest.mark.parametrize("messages", [(), (b"",), ("text",), ([b"one", b"two"],)])
def test_what_is_no_message_is_refused_with_the_remedy(
    broker: LocalBroker, messages: tuple[bytes, ...]
) -> None:
    with pytest.raises(InvalidRequest, match=r"encode\(\), and pass a list as \*messages"):
        broker.publish("never", *messages)


def test_a_server_that_does_not_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"call start\(\), or use it in a with statement"):
        LocalBroker(str(tmp_path)).publish("never", b"one")


def test_a_stopped_process_is_ended_and_a_given_folder_is_kept(tmp_path: Path) -> None:
    with LocalBroker(tmp_path) as broker:
        broker.publish("kept", b"here")
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGSTOP)
    assert not broker.is_running
    with LocalBroker(tmp_path) as again:
        assert again.messages("kept") == [b"here"]


def test_logs_of_before_are_not_shown(broker: LocalBroker) -> None:
    at_its_start = "roles.runtime: Penstock"
    assert at_its_start in broker.logs()
    broker.forget_logs()
    assert broker.logs() == ""
    broker.kill()
    broker.start()
    # A thread reads the output, and may be later than the file that says that the broker is ready.
    while at_its_start not in broker.logs():
        time.sleep(0.01)


def test_a_killed_broker_keeps_addresses_and_messages(broker: LocalBroker) -> None:
    broker.publish("kept", b"here")
    addresses = (broker.tcp_address, broker.http_url)
    broker.kill()
    assert not broker.is_running
    broker.start()
    assert (broker.tcp_address, broker.http_url) == addresses
    assert broker.messages("kept") == [b"here"]


def test_topics_are_deleted(broker: LocalBroker) -> None:
    broker.publish("gone", b"x")
    broker.delete_topics()
    with pytest.raises(NotFound):
        broker.messages("gone")


def test_a_temporary_folder_is_deleted_and_an_exception_carries_the_logs() -> None:
    broker = LocalBroker()
    with pytest.raises(ZeroDivisionError) as caught, broker:
        _ = 1 / (not broker.folder.exists())
    assert not broker.folder.exists()
    [note] = caught.value.__notes__
    assert "broker serves http://127.0.0.1:" in note


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("dear")
    with pytest.raises(Unavailable, match=r"penstock server broker ended:\n.*thesis.txt"):
        LocalBroker(tmp_path).start()
    with (
        pytest.raises(Unavailable, match="PENSTOCK_MSG_TIMEOUT: 'soon'"),
        LocalBroker(variables={"PENSTOCK_MSG_TIMEOUT": "soon"}),
    ):
        pass


def test_a_start_that_fails_carries_the_logs_and_leaves_no_folder() -> None:
    broker = LocalBroker(variables={"PENSTOCK_MSG_TIMEOUT": "soon"})
    assert not broker.folder.exists()
    with pytest.raises(Unavailable) as caught, broker:
        pass
    [note] = caught.value.__notes__
    assert "PENSTOCK_MSG_TIMEOUT: 'soon'" in note
    assert not broker.folder.exists()


PROGRAM_WITH_A_SERVER = """
import os, sys
from pathlib import Path
from penstock.core.clock import SystemClock
from penstock.services.host.data_folder import DataFolder
from penstock.services.host.server_process import ServerProcess

server = ServerProcess(DataFolder(Path(sys.argv[1])), SystemClock(), command=("server", "broker"))
server.start()
server.wait_ready()
# As multiprocessing does: the child has the pipe that is the server's input.
if "fork" not in sys.argv or os.fork():
    print(server.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["alone", "fork"])
def test_it_ends_with_the_process_that_started_it(tmp_path: Path, how: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM_WITH_A_SERVER, str(tmp_path / "data"), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        server = os.pidfd_open(pid)
        try:
            parent.kill()
            ended, _, _ = select.select([server], [], [], 180)
            assert ended
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(server, signal.SIGKILL)
            os.close(server)


def test_a_server_whose_input_cannot_be_read_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-m", CHILD_MODULE, "server", "broker"]
    addresses = [f"--{name}=127.0.0.1:0" for name in ("http", "broker-http", "broker-tcp")]
    with (tmp_path / "only-written").open("wb") as unreadable:
        done = subprocess.run(
            [*command, "--data-dir", str(tmp_path / "data"), *addresses],
            stdin=unreadable,
            check=False,
            timeout=300,
        )
    assert done.returncode in (0, -signal.SIGTERM)


def test_pytest_is_imported_only_with_the_fixtures() -> None:
    program = "import sys; sys.modules['pytest'] = None; import penstock.testing.server"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


TESTS_OF_A_USER = """
import pytest

@pytest.fixture
def topic(penstock_broker):
    penstock_broker.create_topic("clicks")
    return penstock_broker

def test_a(penstock_broker):
    penstock_broker.publish("clicks", b"1")
    assert penstock_broker.messages("clicks") == [b"1"]
    penstock_broker.kill()

def test_b(penstock_broker):
    assert penstock_broker.is_running
    penstock_broker.publish("clicks", b"2")
    assert penstock_broker.messages("clicks") == [b"2"]

def test_c(topic):
    assert topic.messages("clicks", count=1, timeout_s=0)
"""


def test_fixtures_empty_the_broker_and_report_its_logs(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["penstock.testing.fixtures"]\n')
    (tmp_path / "test_user.py").write_text(TESTS_OF_A_USER)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "1 failed, 2 passed" in done.stdout
    assert "Logs of penstock_broker_process" in done.stdout
    assert "broker serves http://127.0.0.1:" not in done.stdout, "logged before the failed test"
