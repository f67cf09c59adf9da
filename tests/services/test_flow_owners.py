"""A flow acts for the principal that applied it: over HTTP, NSQ's protocol, and in its process.

Broker, overlord and flow have access controls of their own, which read the same files.
"""

from __future__ import annotations

import itertools
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import pytest

from penstock.broker.options import BrokerOptions
from penstock.core.access.access_control import AccessControl
from penstock.core.access.represented import RepresentedPrincipals
from penstock.core.clock import SystemClock
from penstock.core.errors import CorruptData
from penstock.flow.controller.controller import ControllerOptions, FlowController
from penstock.flow.controller.flow_owner import FlowOwner
from penstock.flow.controller.flow_status import ComponentStatus
from penstock.flow.graph.flow_index import FlowIndex
from penstock.flow.graph.yaml_reader import read_flow
from penstock.flow.processor.processor_registry import ProcessorRegistry
from penstock.flow.processors.builtin import BUILTIN
from penstock.flow.processors.topics import consume_topic
from penstock.flow.processors.topics.service_addresses import SERVICE, ServiceAddresses
from penstock.services.api.asgi import application
from penstock.services.api.flow import FlowRoutes
from penstock.services.api.flow.flow_access import required_by_flow, rights_of_processors
from penstock.services.processors import PROCESSORS
from penstock.storage.disk import OsFileSystem
from tests.broker.broker_access_kit import Installation, bearer
from tests.broker.broker_kit import RunningBroker
from tests.harness.access_kit import as_principal
from tests.kits.this_host_kit import this_host_listed
from tests.services.overlord_kit import Api, OverlordWorld, served, supervisor_spec

TEAM = """
"read,write,manage flow:*", "write topic:clicks", "read channel:clicks/*",
"write datasource:clicks", "read topic:payments", "read-external system:inputs",
"read secret:door", "run-code system:code",
"""
RULES = '[roles.team]\nallow = [{}]\n[roles.reads]\nallow = ["read flow:*"]\n[principals]\n{}\n'
ALICE = '"user:alice" = ["team"]'


def without(right: str) -> str:
    """The rules of the team without one of them."""
    assert f'"{right}",' in TEAM
    return TEAM.replace(f'"{right}",', "")


Shared = tuple[RunningBroker, Installation]
FAST = "penalty_duration: 20 ms, yield_duration: 20 ms"


class World:
    """An installation whose flow is applied by users."""

    def __init__(self, folder: Path, broker: RunningBroker, installation: Installation) -> None:
        self.folder, self.broker, self.installation = folder, broker, installation
        self.access = AccessControl(installation.folder, installation.clock, process="flow")
        self.numbers = itertools.count()
        self.controller = self.open()
        app = application(
            FlowRoutes(lambda: self.controller, SystemClock()).routes(), access=self.access
        )
        self.api = Api(app)

    def open(self) -> FlowController:
        owner = FlowOwner(self.access, rights_of_processors)
        SERVICE.set(
            ServiceAddresses(
                lambda: self.broker.url,
                lambda: f"127.0.0.1:{self.broker.server.broker.tcp_port}",
                SERVICE.addresses().overlord,
                owner.tokens,
            )
        )
        return FlowController.open(
            str(self.folder),
            fs=OsFileSystem(),
            clock=SystemClock(),
            registry=ProcessorRegistry(BUILTIN),
            new_uuid=lambda: f"u{next(self.numbers)}",
            environment={},
            options=ControllerOptions(stop_limit_s=10.0, owner=owner),
        )

    def restart(self) -> None:
        self.controller.close()
        self.controller = self.open()

    def apply(
        self, flow: str, user: str = "alice", *roles: str, status: int = 200, query: str = ""
    ) -> dict[str, object]:
        headers = as_principal(self.access, f"user:{user}", *roles)
        answer = self.api("PUT", f"/flow{query}", headers=headers, content=flow)
        assert answer.status_code == status, answer.text
        found: dict[str, object] = answer.json()
        return found

    def rules(self, team: str = TEAM, principals: str = ALICE) -> None:
        self.installation.rules(RULES.format(team, principals))
        self.access.refresh()

    def component(self, name: str) -> ComponentStatus:
        return next(one for one in self.controller.status().components if one.name == name)

    def problem(self, name: str) -> str:
        return "; ".join(self.component(name).problems)

    def queued(self, name: str) -> int:
        found = self.controller.status().connections
        return sum(one.size.count for one in found if one.name.startswith(name))

    def messages(self, topic: str) -> list[bytes]:
        admin = bearer(self.access.key.process_bearer())
        if self.broker.ask("GET", f"/offsets?topic={topic}", None, admin).status != 200:
            return []
        return [message for partition in self.broker.stored(topic) for message in partition]

    def publish(self, topic: str, message: bytes) -> None:
        admin = bearer(self.access.key.process_bearer())
        assert self.broker.ask("POST", f"/pub?topic={topic}", message, admin).status == 200

    def close(self) -> None:
        self.api.close()
        self.controller.close()
        SERVICE.set(ServiceAddresses())


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[RunningBroker, Installation]]:
    installation = Installation(tmp_path_factory.mktemp("installation") / "access")
    installation.user("alice", "correct: horse")
    installation.user("bob", "correct: horse", "admin")
    folder = tmp_path_factory.mktemp("broker") / "topics"
    options = BrokerOptions(folder=str(folder), http_port=0, tcp_port=0)
    with this_host_listed(), RunningBroker(options, access=installation.control) as broker:
        yield broker, installation


@pytest.fixture
def world(shared: Shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(consume_topic, "REFUSED_S", 0.05)
    made = World(tmp_path / "flow", *shared)
    made.rules()
    yield made
    made.close()
    for topic in ("clicks", "payments"):
        shared[0].ask(
            *("POST", f"/topic/delete?topic={topic}", None),
            bearer(made.access.key.process_bearer()),
        )


def messages_of(world: World) -> list[str]:
    return [one.message for one in world.controller.bulletins.read(after=0)]


Found = TypeVar("Found")


def until(condition: Callable[[], Found]) -> Found:
    """Wait until the condition returns something, and return it: it may disappear at once."""
    pause, end_s = threading.Event(), time.monotonic() + 120
    while time.monotonic() < end_s:
        if found := condition():
            return found
        pause.wait(0.01)
    pytest.fail("it did not come")


def flow(kind: str, properties: str, more: str = "") -> str:
    """One FlowFile each 20 ms for a processor, whose failures stay in a queue."""
    return f"""
name: f
processors:
  Make:
    {{type: GenerateFlowFile, schedule: every 20 ms, properties: {{custom_text: '{{"a": 1}}'}}}}
  Send: {{type: {kind}, properties: {{{properties}}}, auto_terminated: [success], {FAST}}}
  Failed: {{type: LogAttribute, enabled: false, auto_terminated: [success]}}
connections:
  - {{from: Make.success, to: Send}}
  - {{from: Send.failure, to: Failed}}
{more}"""


PUBLISH = flow("PublishTopic", "topic: clicks")
CONSUME = """
name: f
processors:
  Take: {type: ConsumeTopic, properties: {topic: clicks, channel: c}, yield_duration: 20 ms}
  Held: {type: LogAttribute, enabled: false, auto_terminated: [success]}
connections: [{from: Take.success, to: Held}]
"""


def test_publishing_stops_with_the_right_and_goes_on_with_it(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    assert world.apply(PUBLISH)["owner"] == "user:alice"
    world.controller.start()
    until(lambda: world.messages("clicks"))
    with caplog.at_level(logging.INFO, "penstock.audit"):
        # The broker decides alone here: the flow's process has not read the new rules.
        world.installation.rules(RULES.format(without("write topic:clicks"), ALICE))
        wait, *_ = until(lambda: world.component("Send").waits)
    assert "user:alice, for whom process:flow acts, may not write topic:clicks" in str(wait)
    # The messages alone: a logger of PySpark, where there is one, gives the text another form.
    assert any('"via": "process:flow"' in one.getMessage() for one in caplog.records)
    world.access.refresh()
    until(lambda: "user:alice, which may not write topic:clicks" in world.problem("Send"))
    for told in (
        "for whom process:flow acts, may not write",
        "which may not write topic:clicks: give it this right",
    ):
        until(lambda told=told: any(told in one for one in messages_of(world)))
    count = len(world.messages("clicks"))
    before = world.queued("Make")
    until(lambda: world.queued("Make") > before)  # they are kept
    assert len(world.messages("clicks")) == count
    world.rules()
    until(lambda: len(world.messages("clicks")) > count + before)
    assert world.queued("Send.failure") == 0


def test_consuming_stops_with_the_right_and_goes_on_with_it(world: World) -> None:
    world.publish("clicks", b"1")
    world.apply(CONSUME)
    world.controller.start()
    until(lambda: world.queued("Take") == 1)
    world.rules(without("read channel:clicks/*"))
    until(lambda: "may not read channel:clicks/c" in world.problem("Take"))
    world.publish("clicks", b"2")
    world.rules()
    until(lambda: world.queued("Take") == 2)


def test_a_broker_that_still_refuses_a_consumer_is_asked_again(world: World) -> None:
    world.publish("clicks", b"1")
    world.apply(CONSUME)
    world.installation.rules(RULES.format(without("read channel:clicks/*"), ALICE))
    world.controller.start()
    until(lambda: world.component("Take").scheduling.failures)
    assert world.problem("Take") == ""  # its own process allows it
    world.rules()
    until(lambda: world.queued("Take") == 1)


def test_a_consumer_outlives_its_token(world: World) -> None:
    """The broker checks the token of an open connection again when access changes."""
    world.publish("clicks", b"1")
    world.apply(CONSUME)
    world.controller.start()
    until(lambda: world.queued("Take") == 1)
    clock = world.installation.clock
    try:
        clock.ahead_ms = 600_000
        world.rules(TEAM + '"read topic:other"')
        for number in range(2, 5):
            world.publish("clicks", b"%d" % number)
            until(lambda count=number: world.queued("Take") == count)
        assert world.problem("Take") == ""
    finally:
        clock.ahead_ms = 0


def test_a_datasource_needs_the_right_to_publish_to_its_topic(world: World, tmp_path: Path) -> None:
    """The topic of its supervisor is known only while the flow runs."""
    (tmp_path / "overlord").mkdir()
    overlord = OverlordWorld(tmp_path / "overlord").start()
    spec = supervisor_spec("clicks")
    spec["spec"]["ioConfig"]["topic"] = "payments"  # type: ignore[index]
    assert overlord.api.post("/druid/indexer/v1/supervisor", json=spec).status_code == 200
    app = overlord.make_app(access=world.installation.control)
    with served(overlord, app) as address:
        SERVICE.set(ServiceAddresses(overlord=address.url))
        world.restart()
        world.apply(flow("PutDatasource", "datasource: clicks"))
        world.controller.start()
        wait, *_ = until(lambda: world.component("Send").waits)
        assert "may not write topic:payments" in str(wait)
        assert world.queued("Send.failure") == 0
        world.rules(TEAM + '"write topic:payments"')
        until(lambda: world.messages("payments"))
        # The overlord decides about the supervisor; a batch that was begun is tried again first.
        world.installation.rules(RULES.format('"read,write,manage flow:*"', ALICE))
        world.restart()
        wait, *_ = until(lambda: world.component("Send").waits)
        refused = str(wait)
        assert "may not read supervisor:clicks" in refused or "may not write topic" in refused
        world.controller.close()
    overlord.close()


def test_a_restart_keeps_the_owner(world: World) -> None:
    world.apply(PUBLISH)
    world.restart()
    headers = as_principal(world.access, "user:bob", "admin")
    for path in ("/flow", "/flow/status"):
        assert world.api("GET", path, headers=headers).json()["owner"] == "user:alice"
    # Without rights from then on, nothing of it runs.
    world.rules(principals="")
    world.controller.start()
    until(lambda: "the principal has no role" in world.problem("Send"))
    until(lambda: "no role" in world.problem("Make"))
    assert not world.messages("clicks")
    # Home of the console lists them as work that waits.
    found = world.api("GET", "/flow/status?summary=true", headers=headers).json()["stuck"]
    assert {one["name"] for one in found} == {"Make", "Send"}
    assert all("no role" in one["problem"] for one in found)


def test_who_applies_the_same_flow_owns_it(world: World) -> None:
    world.apply(PUBLISH)
    world.controller.start()
    until(lambda: world.messages("clicks"))
    world.rules(without("write topic:clicks"))
    until(lambda: world.problem("Send"))
    plan = world.apply(PUBLISH, "bob", "admin", query="?dryRun=true")
    assert (plan["owner"], plan["previousOwner"]) == ("user:bob", "user:alice")
    assert world.controller.applied.owner == "user:alice"
    assert world.apply(PUBLISH, "bob", "admin")["revision"] == 2
    count = len(world.messages("clicks"))
    until(lambda: len(world.messages("clicks")) > count)
    # Alice cannot take it back without the rights that it needs.
    assert "topic:clicks" in str(world.apply(PUBLISH, "alice", status=403))
    assert world.controller.applied.owner == "user:bob"


def test_administrators_take_a_flow_over_without_restarts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both may do everything, as the user of the server in a browser and a token in a shell."""
    starts: list[str] = []
    made = FlowOwner.tokens

    def counted(self: FlowOwner) -> Callable[[], str]:
        starts.append(self.id)
        return made(self)

    monkeypatch.setattr(FlowOwner, "tokens", counted)
    world.restart()
    world.installation.user("carol", "correct: horse", "admin")
    world.rules(principals='"user:alice" = ["admin"]')
    world.apply(PUBLISH)
    world.controller.start()
    until(lambda: world.messages("clicks"))
    changed = PUBLISH.replace("enabled: false", "enabled: false, bulletin_level: ERROR")
    plan = world.apply(changed, "carol", "admin", query="?dryRun=true")
    assert (plan["previousOwner"], plan["allRestart"]) == ("user:alice", False)
    done = world.apply(changed, "carol", "admin")
    assert (done["owner"], done["revision"]) == ("user:carol", 2)
    assert starts == ["user:alice"]  # Send still runs
    # From then on it has the rights of its new owner, not those of the former one.
    world.rules(principals="")
    count = len(world.messages("clicks"))
    until(lambda: len(world.messages("clicks")) > count + 5)
    world.rules()
    world.installation.remove_user("carol")
    world.access.refresh()
    until(lambda: "acts for user:carol, but the credential was removed" in world.problem("Send"))
    # Neither may do everything now, so that all restart for Alice.
    assert world.apply(changed, query="?dryRun=true")["allRestart"] is True
    world.apply(changed)
    count = len(world.messages("clicks"))
    until(lambda: len(world.messages("clicks")) > count)
    assert starts[-1] == "user:alice"


def test_a_removed_owner_ends_the_work_of_its_flow(world: World) -> None:
    world.installation.user("carol", "correct: horse", "team")
    world.rules()
    world.apply(PUBLISH, "carol", "team")
    world.controller.start()
    until(lambda: world.messages("clicks"))
    world.installation.remove_user("carol")
    world.access.refresh()
    gone = "acts for user:carol, but the credential was removed or changed: apply the flow as"
    until(lambda: gone in world.problem("Make") and gone in world.problem("Send"))


def test_roles_that_end_with_a_token_own_no_flow(world: World) -> None:
    """Groups of an issuer are in its tokens, which expire after minutes."""
    headers = as_principal(world.access, "oidc:dave", "team")
    answer = world.api("PUT", "/flow", headers=headers, content=PUBLISH)
    assert answer.status_code == 403
    assert "give the principal its roles in access.toml" in answer.text
    assert world.controller.applied.revision == 0


def test_a_flow_of_an_earlier_release_belongs_to_the_installation(world: World) -> None:
    world.apply(PUBLISH)
    world.controller.close()
    path = world.folder / "flow.json"
    stored = json.loads(path.read_bytes())
    assert stored.pop("owner") == "user:alice"
    path.write_text(json.dumps(stored))
    world.controller = world.open()
    world.controller.start()
    until(lambda: world.messages("clicks"))
    headers = as_principal(world.access, "user:bob", "admin")
    shown = world.api("GET", "/flow/status", headers=headers).json()["owner"]
    assert shown == world.access.server_user.id
    world.rules(principals="")
    count = len(world.messages("clicks"))
    until(lambda: len(world.messages("clicks")) > count)
    # What belongs to the installation is stored as before, so an earlier release can read it.
    world.controller.stop()
    assert "owner" not in json.loads(path.read_bytes())


def test_no_file_makes_a_flow_act_for_the_server(world: World) -> None:
    world.apply(PUBLISH)
    world.controller.close()
    path = world.folder / "flow.json"
    text = path.read_text()
    for owner in ("owner:root", "process:router", "task:t", "nobody", "alice"):
        path.write_text(text.replace("user:alice", owner))
        with pytest.raises(CorruptData, match=r"flow\.json"):
            world.open()
    path.write_text(text)
    world.controller = world.open()


OF_PROCESS: Mapping[str, tuple[str, str]] = {
    "a file": ("GetFile, properties: {directory: /nowhere}", "read-external system:inputs"),
    "a server": (
        "InvokeHTTP, properties: {url: 'http://a.example'}",
        "read-external system:inputs",
    ),
    "a secret": ("InvokeHTTP, properties: {url: u, password: 'secret://door'}", "read secret:door"),
    "a secret of a parameter": (
        "PublishTopic, properties: {topic: clicks, broker_token: '#{door}'}",
        "read secret:door",
    ),
    "a variable": ("LogAttribute, properties: {prefix: '#{home}'}", "read-external system:inputs"),
    "code": ("'mine:Mine'", "run-code system:code"),
    "a name": ("PublishTopic, properties: {topic: '${t}'}", "run-code system:code"),
}


@pytest.mark.parametrize("about", OF_PROCESS)
def test_what_the_process_itself_uses_is_decided_again(world: World, about: str) -> None:
    kind, right = OF_PROCESS[about]
    text = f"""
name: f
parameters: {{door: {{secret: door}}, home: {{env: HOME}}}}
processors: {{P: {{type: {kind}}}, Other: {{type: LogAttribute}}}}
"""
    index = FlowIndex.of(read_flow(text).flow)
    ids = {placed.name: placed.id for placed, _ in index.processors}
    owner = FlowOwner(world.access, rights_of_processors)
    owner.take("user:alice", index)
    assert owner.problem(ids["P"]) == ""
    assert owner.changed() == frozenset()
    world.rules(without(right))
    assert owner.changed() == {ids["P"]}
    assert owner.changed() == frozenset()
    assert f"may not {right}" in owner.problem(ids["P"])
    assert owner.problem(ids["Other"]) == ""
    world.rules()
    assert owner.changed() == {ids["P"]}
    assert owner.problem(ids["P"]) == ""


def test_nothing_is_decided_twice_in_a_generation(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = FlowIndex.of(read_flow(PUBLISH).flow)
    owner = FlowOwner(world.access, rights_of_processors)
    owner.take("user:alice", index)
    [sends] = [placed.id for placed, _ in index.processors if placed.name == "Send"]
    assert owner.problem(sends) == ""
    with monkeypatch.context() as patched:
        patched.delattr(AccessControl, "require")
        patched.delattr(RepresentedPrincipals, "named")
        assert owner.problem(sends) == ""
        owner.take("", index)  # the installation costs nothing
        assert owner.problem(sends) == ""
        assert owner.changed() == frozenset()
    assert owner.tokens()() == world.access.key.process_bearer()


def test_a_processor_acts_for_the_owner_under_which_it_started(world: World) -> None:
    """One that hangs may continue after another principal has applied the flow."""
    owner, index = FlowOwner(world.access), FlowIndex.of(read_flow(PUBLISH).flow)
    owner.take("user:alice", index)
    started = owner.tokens()
    owner.take("user:bob", index)
    for tokens, name in ((started, "user:alice"), (owner.tokens(), "user:bob")):
        acting = world.access.authenticator.of_bearer(tokens().encode())
        assert acting is not None
        assert acting.id == name


def test_an_expired_token_ends_the_work_without_a_change_of_files(
    world: World, tmp_path: Path
) -> None:
    installation = Installation(tmp_path / "other")
    installation.token("short", "admin", lasts_ms=60_000)
    index = FlowIndex.of(read_flow(PUBLISH).flow)
    owner = FlowOwner(installation.control, rights_of_processors)
    owner.take("token:short", index)
    assert owner.changed() == frozenset()
    installation.clock.ahead_ms = 60_001
    assert owner.changed() == {placed.id for placed, _ in index.processors}
    [problem] = {owner.problem(placed.id) for placed, _ in index.processors}
    assert "the credential has expired" in problem


@pytest.mark.parametrize("kind", PROCESSORS)
def test_a_flow_needs_when_it_is_applied_what_its_processors_need(kind: str) -> None:
    text = f"""
name: f
parameters: {{door: {{secret: door}}, home: {{env: HOME}}}}
processors: {{P: {{type: {kind}, properties: {{a: '#{{door}}', b: '#{{home}}'}}}}}}
"""
    read = read_flow(text).flow
    needed = rights_of_processors(FlowIndex.of(read))
    assert set(itertools.chain(*needed.values())) <= set(required_by_flow(read))
    assert len(next(iter(needed.values()))) >= 2


HOSTILE = [
    *(("PublishTopic", f"topic: {name}") for name in ("payments", "clicks-secret", "'clicks#x'")),
    *(("PutDatasource", f"datasource: {name}") for name in ("payments", "clicks-secret")),
    *(("ConsumeTopic", f"topic: {name}, channel: c") for name in ("payments", "clicks-secret")),
    ("InvokeHTTP", "url: 'http://a.example', password: 'secret://bank'"),
    ("GetFile", "directory: /etc"),
    ("SparkScript", "function: 'os:system'"),
]


@pytest.mark.parametrize(("kind", "properties"), HOSTILE)
def test_an_author_of_flows_alone_reaches_nothing(world: World, kind: str, properties: str) -> None:
    """Neither when it applies a flow, nor while one that got past this check runs."""
    world.rules('"read,write,manage flow:*"')
    given = "" if kind in {"ConsumeTopic", "GetFile"} else "{from: Make.success, to: Send}"
    text = f"""
name: f
processors:
  Make: {{type: GenerateFlowFile, schedule: every 20 ms, properties: {{custom_text: x}}}}
  Send: {{type: {kind}, properties: {{{properties}}}}}
connections: [{given}]
"""
    world.apply(text, status=403)
    index = FlowIndex.of(read_flow(text).flow)
    owner = FlowOwner(world.access, rights_of_processors)
    owner.take("user:alice", index)
    [sends] = [placed.id for placed, _ in index.processors if placed.name == "Send"]
    assert "user:alice, which may not" in owner.problem(sends)


def test_the_token_of_a_flow_reaches_nothing_of_others(world: World) -> None:
    """Whatever a processor sends, the broker decides for the author."""
    world.rules('"read,write,manage flow:*"')
    acting = bearer(world.access.key.represented_bearer("user:alice"))
    world.publish("payments", b"1")
    for method, path in (
        *(("POST", "/pub?topic=payments"), ("POST", "/topic/create?topic=new")),
        *(("GET", "/peek?topic=payments"), ("POST", "/topic/delete?topic=payments")),
        ("POST", "/channel/create?topic=payments&channel=c"),
    ):
        body = b"x" if method == "POST" else None
        assert world.broker.ask(method, path, body, acting).status == 403
    claimed = as_principal(world.access, "user:bob", "admin") | acting
    assert world.broker.ask("GET", "/peek?topic=payments", None, claimed).status == 403
    assert not world.messages("new")
