"""A server whose disk is full: principals stay let in, and nothing of access is lost or opened.

The folder of the data is on a small disk that is really full for a while. Served in the test's
process: the broker, the routes of logins, and the flow.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from penstock.broker.options import BrokerOptions
from penstock.core.access.access_control import AccessControl
from penstock.core.access.browser_logins import BrowserLogins
from penstock.core.access.credentials import CredentialFile
from penstock.core.access.rules import Action, Resource
from penstock.core.clock import SystemClock
from penstock.core.errors import Unavailable
from penstock.flow.controller.controller import FlowController
from penstock.flow.graph.yaml_reader import read_flow
from penstock.flow.processor.processor_registry import ProcessorRegistry
from penstock.flow.processors.builtin import BUILTIN
from penstock.services.host.audit_files import AuditFiles, audit_into
from penstock.storage.disk import OsFileSystem
from tests.broker.broker_access_kit import bearer
from tests.broker.broker_kit import RunningBroker

RULES = """
[roles.team]
allow = ["read,write,manage topic:clicks*"]
deny = ["* topic:clicks-secret"]
[principals]
"token:ci" = ["team"]
"""
FLOW = "name: {}\nprocessors: {{Make: {{type: GenerateFlowFile, auto_terminated: [success]}}}}\n"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a disk")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Take all the room that is left."""
    path = disk / "fill"
    for piece in (1 << 16, 1):
        with suppress(OSError), path.open("ab", buffering=0) as file:
            while True:
                file.write(b"x" * piece)
    return path


def test_access_survives_a_full_disk(disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = SystemClock()
    folder = disk / "access"
    folder.mkdir(mode=0o700)
    (folder / "access.toml").write_text(RULES)
    credentials = CredentialFile(folder / "credentials.json", clock)
    token = credentials.add_token("ci", ()).text
    control = AccessControl(folder, clock, process="broker")
    logins = control.browser_logins
    assert logins is not None
    operator = control.authenticator.of_bearer((folder / "operator.token").read_bytes().strip())
    assert operator is not None
    code = logins.new_link(operator)
    options = BrokerOptions(folder=str(disk / "topics"), http_port=0, tcp_port=0, min_free_bytes=0)
    numbers = itertools.count()
    audit = AuditFiles(disk / "audit", "broker", clock)
    audit.start()
    logger = logging.getLogger("penstock.audit")
    caplog.set_level(logging.INFO, logger="penstock.audit")
    with (
        audit_into(audit),
        RunningBroker(options, access=control) as broker,
        closing(
            FlowController.open(
                str(disk / "flow"),
                fs=OsFileSystem(),
                clock=clock,
                registry=ProcessorRegistry(BUILTIN),
                new_uuid=lambda: f"u{next(numbers)}",
                environment={},
            )
        ) as flow,
    ):
        flow.apply(read_flow(FLOW.format("first")).flow)
        stored = (folder / "credentials.json").read_bytes()
        room = fill(disk)

        # Nobody is added or removed by halves, and no file of an attempt stays.
        for change in (
            lambda: credentials.add_token("more", ("admin",)),
            lambda: credentials.remove_token("ci"),
            lambda: logins.new_link(operator),
            lambda: logins.redeem(code),
        ):
            with pytest.raises(Unavailable, match="No space left"):
                change()
        assert (folder / "credentials.json").read_bytes() == stored
        assert not list(folder.glob("*.tmp"))
        with pytest.raises(Unavailable):
            flow.apply(read_flow(FLOW.format("second")).flow)
        assert flow.applied.flow.name == "first"

        # A save that fails leaves an empty file: the rules before it stay.
        with suppress(OSError), (folder / "access.toml").open("w") as file:
            fill(disk)  # the room that emptying the file has freed
            file.write(RULES)
        assert (folder / "access.toml").stat().st_size == 0
        control.refresh()
        assert any("it is empty" in problem for problem in control.problems)
        control.authenticator.write_last_used(folder / "last-used", "broker")

        # Requests are decided as before, and the audit counts what it cannot write.
        refused = broker.ask("POST", "/pub?topic=clicks-secret", b"x", bearer(token))
        assert refused.status == 403
        assert broker.ask("GET", "/stats?format=json", None, bearer(token)).status == 200
        assert broker.ask("GET", "/stats?format=json", None, bearer("wrong")).status == 401
        logger.info("%s", json.dumps({"event": "x" * 5_000}))
        assert audit.not_written.value >= 1

        room.unlink()
        (folder / "access.toml").write_text(RULES.replace("[roles", "# saved again\n[roles"))
        control.refresh()
        assert not control.problems
        credentials.remove_token("ci")
        control.refresh()
        assert broker.ask("GET", "/stats?format=json", None, bearer(token)).status == 401
        assert logins.redeem(code) is not None  # the failed attempt did not use it up
        flow.apply(read_flow(FLOW.format("second")).flow)
    audit.close()
    lines = audit.read(1, 10_000, 1 << 24).lines
    assert all(json.loads(line) for line in lines)
    again = BrowserLogins(folder, clock)
    assert again.link(code) is None


def test_a_process_that_starts_after_a_failed_save_of_the_rules_is_closed(tmp_path: Path) -> None:
    """Otherwise, roles in `credentials.json` would count without the denials of the rules."""
    folder = tmp_path / "access"
    folder.mkdir(mode=0o700)
    (folder / "access.toml").write_bytes(b"")
    token = CredentialFile(folder / "credentials.json", SystemClock()).add_token("a", ("analyst",))
    control = AccessControl(folder, SystemClock())
    assert control.is_configured
    principal = control.authenticator.of_bearer(token.text.encode())
    assert principal is not None
    decision = control.decide(principal, Action.READ, Resource.parse("datasource:clicks"))
    assert not decision.allowed
    assert "it is empty" in decision.reason
