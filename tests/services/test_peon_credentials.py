"""The tokens of one task's peon."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.core.access.access_control import AccessControl
from penstock.core.access.derived_tokens import TASK_MADE_AGAIN_S
from penstock.core.access.principal import PrincipalKind
from penstock.core.access.rules import Action, Resource, ResourceKind
from penstock.core.clock import SystemClock
from penstock.core.errors import Unauthenticated
from penstock.indexing.specs import parse_supervisor
from penstock.indexing.task_spec import MessageTimes, make_task
from penstock.services.roles.peon_credentials import (
    CREDENTIALS_FILE,
    PeonCredentials,
    PeonToken,
    credentials_of,
)
from penstock.testing.clock import VirtualClock

SPEC = {
    "type": "penstock",
    "spec": {
        "dataSchema": {
            "dataSource": "clicks",
            "timestampSpec": {"column": "t", "format": "millis"},
            "dimensionsSpec": {"dimensions": ["a"]},
            "granularitySpec": {"segmentGranularity": "DAY"},
        },
        "ioConfig": {"topic": "clicks", "deadLetterTopic": "bad"},
    },
}


@pytest.fixture
def access(tmp_path: Path) -> AccessControl:
    return AccessControl(tmp_path / "access", SystemClock(), process="worker")


def written(folder: Path, task: object) -> str:
    (folder / "task.json").write_text(json.dumps(task))
    return str(folder)


def streaming_task() -> object:
    spec = parse_supervisor(SPEC)  # type: ignore[arg-type]
    return make_task(
        spec,  # type: ignore[arg-type]
        *(0, {0: 0}, None),
        topic_id="",
        times=MessageTimes(),
        token="t",
    ).to_json()


def test_a_streaming_task_may_read_its_topic_and_write_its_dead_letters(
    access: AccessControl, tmp_path: Path
) -> None:
    found = credentials_of(access, "t", written(tmp_path, streaming_task()))
    principal = access.authenticator.of_bearer(found.sends.encode())
    assert principal is not None
    assert (principal.kind, principal.name) == (PrincipalKind.TASK, "t")
    allowed = {
        (action, f"{kind}:{name}")
        for action in Action
        for kind in (ResourceKind.TOPIC, ResourceKind.DATASOURCE, ResourceKind.CHANNEL)
        for name in ("clicks", "bad", "other", "clicks/c")
        if access.decide(principal, action, Resource(kind, name)).allowed
    }
    assert allowed == {(Action.READ, "topic:clicks"), (Action.WRITE, "topic:bad")}


@pytest.mark.parametrize("task", [{"type": "noop"}, {"type": "index_penstock"}, [], "x"])
def test_other_tasks_and_damaged_ones_have_no_rights(
    access: AccessControl, tmp_path: Path, task: object
) -> None:
    found = credentials_of(access, "t", written(tmp_path, task))
    principal = access.authenticator.of_bearer(found.sends.encode())
    assert principal is not None
    assert principal.scope is None
    assert credentials_of(access, "t", str(tmp_path / "missing")).key == found.key


def test_they_are_private_and_are_read_again(access: AccessControl, tmp_path: Path) -> None:
    found = credentials_of(access, "t", written(tmp_path, streaming_task()))
    found.write(tmp_path)
    assert (tmp_path / CREDENTIALS_FILE).stat().st_mode & 0o777 == 0o600
    assert PeonCredentials.read(tmp_path) == found
    (tmp_path / CREDENTIALS_FILE).unlink()
    assert PeonCredentials.read(tmp_path) == PeonCredentials()


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"{}",
        b"[]",
        b'{"sends": 1',
        b"\xff",
        b'{"sends": "a", "key": 1}',
        b'{"sends": "a", "key": ""}',
    ],
)
def test_with_a_damaged_file_nobody_is_let_in(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / CREDENTIALS_FILE).write_bytes(damaged)
    found = PeonCredentials.read(tmp_path)
    assert not found.sends
    assert found.key != PeonCredentials.read(tmp_path).key
    peon = found.access_control("t", SystemClock())
    assert peon.of_owner() is None


def test_a_peon_lets_in_processes_alone(access: AccessControl, tmp_path: Path) -> None:
    found = credentials_of(access, "t", written(tmp_path, streaming_task()))
    peon = found.access_control("t", SystemClock())
    assert peon.of_owner() is None
    process = peon.authenticator.of_bearer(access.key.peon_bearer("t").encode())
    assert process is not None
    assert process.kind is PrincipalKind.PROCESS
    others = (access.key.task_bearer("t"), access.key.peon_bearer("u"), access.key.process_bearer())
    for other in (found.sends, *others, found.key.hex(), "", "x"):
        assert peon.authenticator.of_bearer(other.encode()) is None
    # A worker of an earlier release writes none: then this user on this host is let in.
    none = PeonCredentials().access_control("t", SystemClock())
    assert none.of_owner() is not None
    assert none.authenticator.of_bearer(b"") is None


# Renewal


def test_a_peon_sends_the_token_that_its_worker_wrote_last(tmp_path: Path) -> None:
    clock = VirtualClock()
    worker = AccessControl(tmp_path / "access", clock, process="worker")
    folder = tmp_path / "task"
    folder.mkdir()
    token = PeonToken(folder)
    assert token() == ""
    spec = written(folder, streaming_task())
    sent: list[str] = []
    for _ in range(3):
        credentials_of(worker, "t", spec).write(folder)
        sent += [token(), token()]
        clock.advance(TASK_MADE_AGAIN_S)
    assert sent[0] == sent[1]
    assert len(set(sent)) == 3
    principal = worker.authenticator.of_bearer(sent[-1].encode())
    assert principal is not None
    assert [str(one) for one in principal.scope or ()] == ["read topic:clicks", "write topic:bad"]
    # Neither a damaged nor a missing file makes it forget the token.
    (folder / CREDENTIALS_FILE).write_text("{")
    assert token() == sent[-1]
    (folder / CREDENTIALS_FILE).unlink()
    assert token() == sent[-1]


def test_the_token_of_an_ended_task_counts_nowhere_later(tmp_path: Path) -> None:
    clock = VirtualClock()
    worker = AccessControl(tmp_path / "access", clock, process="worker")
    found = credentials_of(worker, "t", written(tmp_path, streaming_task()))
    broker = AccessControl(tmp_path / "access", clock, process="broker")
    principal = broker.authenticator.of_bearer(found.sends.encode())
    assert principal is not None
    topic = Resource(ResourceKind.TOPIC, "clicks")
    assert broker.decide(principal, Action.READ, topic).allowed
    clock.advance(35 * 60)
    assert not broker.decide(principal, Action.READ, topic).allowed
    with pytest.raises(Unauthenticated, match=r"the token of task:t was made at"):
        broker.authenticator.of_bearer(found.sends.encode())


def test_a_peon_refuses_what_a_process_sent_it_long_ago(tmp_path: Path) -> None:
    clock = VirtualClock()
    overlord = AccessControl(tmp_path / "access", clock, process="overlord")
    peon = credentials_of(overlord, "t", written(tmp_path, {})).access_control("t", clock)
    replayed = overlord.key.peon_bearer("t")
    assert peon.authenticator.of_bearer(replayed.encode()) is not None
    clock.advance(7 * 60)
    with pytest.raises(Unauthenticated, match=r"the token of the caller of task t was made at"):
        peon.authenticator.of_bearer(replayed.encode())
    assert peon.authenticator.of_bearer(overlord.key.peon_bearer("t").encode()) is not None
