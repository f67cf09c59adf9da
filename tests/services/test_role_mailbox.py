"""A role's mailbox: runs with the process, and takes it down when it fails."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import Closed
from penstock.core.threads import OnDeath
from penstock.services.lifecycle import Lifecycle
from penstock.services.options.table import PenstockOptions
from penstock.services.roles.mailbox import role_mailbox
from penstock.services.roles.runtime import RoleContext
from tests.harness.event_kit import KeptEvents
from tests.services.start_kit import Start


class Process:
    """What a role is given, and whether it was asked to stop."""

    def __init__(self, folder: Path) -> None:
        self.stop_asked = threading.Event()
        self.alerts = KeptEvents()
        self.listener = socket.socket()
        self.context = RoleContext(
            name="overlord",
            options=PenstockOptions(data_dir=folder),
            clock=SystemClock(),
            listener=self.listener,
            start_listener=Start(),
            request_stop=self.stop_asked.set,
            emitter=self.alerts,
        )


@pytest.fixture
def process(tmp_path):
    made = Process(tmp_path)
    yield made
    made.listener.close()


def test_it_runs_mail_until_the_process_stops(process):
    thread, handler = role_mailbox(process.context)
    early = thread.executor.submit(lambda: "early", "before the start")
    lifecycle = Lifecycle()
    lifecycle.add_handler(handler)
    lifecycle.start()
    assert early.result(120) == "early"
    lifecycle.stop()
    assert not thread.is_alive
    with pytest.raises(Closed):
        thread.executor.submit(lambda: None, "too late")
    assert not process.stop_asked.is_set()
    assert process.alerts.events == []


def test_a_fault_is_a_death_that_ends_the_process(process, deaths):
    found = []
    forget = deaths.listen(found.append)
    thread, handler = role_mailbox(process.context)
    handler.start()
    thread.executor.execute(lambda: 1 // 0, "a fault of ours")
    assert thread.join(120)
    forget()
    (death,) = found
    assert death.name == "overlord mailbox"
    assert isinstance(death.error, ZeroDivisionError)
    assert death.then is OnDeath.END_PROCESS
    handler.stop()
    assert not process.stop_asked.is_set()
