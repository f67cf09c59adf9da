"""A flow at work: applied, changed while it runs, closed, killed and opened again."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import Conflict, CorruptData, NotFound
from penstock.flow.controller.bulletins import LOGGER_NAME
from penstock.flow.controller.controller import ControllerOptions, FlowController
from penstock.flow.graph.flow_comments import FlowComments, PlacedComment
from penstock.flow.graph.flow_model import Position
from penstock.flow.graph.source_locations import InvalidFlow
from penstock.flow.log_context import of_component
from penstock.flow.processor import (
    InputRequirement,
    ProcessContext,
    Processor,
    ProcessSession,
    Property,
    Relationship,
)
from penstock.flow.processor.processor_registry import ProcessorRegistry
from penstock.flow.user_modules import FlowModules
from penstock.storage.disk import OsFileSystem
from penstock.storage.secrets.secret_sources import SECRETS, Secrets
from tests.flow.controller_kit import Pass, apply


class Source(Processor):
    """Makes so many FlowFiles, once."""

    input = InputRequirement.FORBIDDEN
    count = Property(int, default=10)
    success = Relationship("All.")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        made = int(session.state.get().get("made", "0"))
        for number in range(made, self.count):
            flowfile = session.create(attributes={"n": str(number)})
            session.transfer(flowfile, self.success)
        session.state.set({"made": str(max(made, self.count))})
        if made >= self.count:
            context.yield_(60_000)


class Login(Processor):
    """Uses a password."""

    input = InputRequirement.REQUIRED
    password = Property(str, sensitive=True)
    success = Relationship("All.")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        for one in session.get_many(100):
            length = str(len(self.password))
            session.transfer(session.put_attributes(one, {"length": length}), self.success)


class Sink(Processor):
    """Counts."""

    input = InputRequirement.REQUIRED
    seen: ClassVar[list[str]] = []
    changed = threading.Condition()

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        taken = session.get_many(100)
        session.remove(taken)

        def count() -> None:
            with self.changed:
                self.seen.extend(one.attributes["n"] for one in taken)
                self.changed.notify_all()

        session.on_committed(count)


class Stuck(Processor):
    """Does not end until it is told."""

    input = InputRequirement.REQUIRED
    entered = threading.Event()
    go_on = threading.Event()

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        taken = session.get_many(1)
        self.entered.set()
        assert self.go_on.wait(60)
        session.remove(taken)


FLOW = """
name: test
processors:
  Make: {type: Source, properties: {count: 10}}
  Mark: {type: Pass}
  Count: {type: Sink}
connections:
  - {from: Make.success, to: Mark}
  - {from: Mark.success, to: Count}
"""


class DataFolderWorld:
    """One data folder, opened and killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.uuids = (f"u{number}" for number in itertools.count())
        self.open_ones: list[FlowController] = []

    def open(self, **environment: str) -> FlowController:
        kinds = {kind.__name__: kind for kind in (Source, Pass, Sink, Stuck, Login)}
        controller = FlowController.open(
            self.folder,
            fs=OsFileSystem(),
            clock=SystemClock(),
            registry=ProcessorRegistry(kinds, modules=FlowModules([__name__])),
            new_uuid=lambda: next(self.uuids),
            environment=environment,
            options=ControllerOptions(stop_limit_s=1.0),
        )
        self.open_ones.append(controller)
        return controller


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DataFolderWorld]:
    Sink.seen.clear()
    Stuck.entered.clear()
    Stuck.go_on.clear()
    world = DataFolderWorld(tmp_path)
    yield world
    Stuck.go_on.set()
    for controller in world.open_ones:
        controller.close()


def wait_seen(count: int) -> None:
    with Sink.changed:
        assert Sink.changed.wait_for(lambda: len(Sink.seen) >= count, 120)


def test_a_flow_runs_and_ends_where_it_was(world: DataFolderWorld) -> None:
    controller = world.open()
    apply(controller, FLOW)
    assert {one.scheduling.state.value for one in controller.status().components} == {"stopped"}
    controller.start()
    wait_seen(10)
    controller.close()
    again = world.open()
    assert again.applied.revision == 1
    assert {one.scheduling.desired.value for one in again.status().components} == {"running"}
    assert sorted(Sink.seen, key=int) == [str(number) for number in range(10)]


def test_flowfiles_wait_over_a_restart(world: DataFolderWorld) -> None:
    controller = world.open()
    apply(controller, FLOW)
    controller.run_once("Make")
    assert controller.queue("Make.success -> Mark").size.count == 10
    controller.close()
    again = world.open()
    assert again.queue("Make.success → Mark").size.count == 10
    again.start("Mark")
    again.start("Count")
    wait_seen(10)


def test_only_what_changed_stops(world: DataFolderWorld) -> None:
    controller = world.open()
    apply(controller, FLOW)
    controller.start()
    wait_seen(10)
    changed = FLOW.replace("{type: Pass}", "{type: Pass, properties: {word: new}}")
    lines = apply(controller, changed, revision=1)
    assert any("word" in line for line in lines)
    runs = {one.name: one.scheduling for one in controller.status().components}
    assert all(one.desired.value == "running" for one in runs.values())
    assert runs["Make"].runs > 0
    assert apply(controller, changed) == []
    assert controller.applied.revision == 2


def test_what_is_refused_changes_nothing(world: DataFolderWorld) -> None:
    controller = world.open()
    apply(controller, FLOW)
    controller.run_once("Make")
    shorter = FLOW.replace("  Count: {type: Sink}\n", "").replace("Mark.success, to: Count", "x")
    with pytest.raises(InvalidFlow):
        apply(controller, shorter)
    with pytest.raises(Conflict, match="at revision 1, not 7"):
        apply(controller, FLOW.replace("10", "11"), revision=7)
    gone = """
name: test
processors:
  Make: {type: Source, properties: {count: 10}, auto_terminated: success}
"""
    with pytest.raises(Conflict, match="contains 10 FlowFiles"):
        apply(controller, gone)
    assert controller.applied.revision == 1
    controller.queue("Make.success -> Mark").drop().wait(120)
    apply(controller, gone)
    assert [one.name for one in controller.status().components] == ["Make"]
    with pytest.raises(NotFound):
        controller.queue("Make.success -> Mark")


def test_one_that_does_not_stop_keeps_a_change_out_until_it_is_terminated(
    world: DataFolderWorld,
) -> None:
    flow = FLOW.replace("Count: {type: Sink}", "Count: {type: Stuck}")
    controller = world.open()
    apply(controller, flow)
    controller.start()
    assert Stuck.entered.wait(120)
    changed = flow.replace("{type: Stuck}", "{type: Sink}")
    with pytest.raises(Conflict, match="did not stop"):
        apply(controller, changed)
    with pytest.raises(Conflict, match="did not stop"):
        controller.stop("Count")
    controller.terminate("Count")
    apply(controller, changed)
    controller.start()
    wait_seen(10)
    assert sorted(Sink.seen, key=int) == [str(number) for number in range(10)]


def test_groups_funnels_and_ports_pass_on(world: DataFolderWorld) -> None:
    flow = """
name: test
processors:
  Make: {type: Source}
  Count: {type: Sink}
funnels: [both]
groups:
  Inner:
    input_ports: [in]
    output_ports: [out]
    processors:
      Mark: {type: Pass}
    connections:
      - {from: in, to: Mark}
      - {from: Mark.success, to: out}
connections:
  - {from: Make.success, to: Inner/in}
  - {from: Inner/out, to: both}
  - {from: both, to: Count}
"""
    controller = world.open()
    apply(controller, flow)
    controller.start()
    wait_seen(10)
    assert controller.stop("Inner")
    states = {one.name: one.scheduling.state.value for one in controller.status().components}
    assert states["Inner/Mark"] == "stopped"
    assert states["Count"] == "running"


def test_a_secret_comes_from_the_environment(world: DataFolderWorld) -> None:
    flow = FLOW.replace("{type: Pass}", "{type: Pass, properties: {word: '#{word}'}}")
    flow += "parameters: {word: {env: WORD, sensitive: false}}\n"
    controller = world.open(WORD="from outside")
    apply(controller, flow)
    controller.run_once("Make")
    controller.run_once("Mark")
    [first, *_] = controller.queue("Mark.success -> Count").listing.first()
    assert first.attributes["word"] == "from outside"


def test_a_sensitive_property_names_a_secret(
    world: DataFolderWorld,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flow = FLOW.replace("{type: Pass}", "{type: Login, properties: {password: 'secret://shop'}}")
    secrets = Secrets(tmp_path_factory.mktemp("secrets"))
    monkeypatch.setattr(SECRETS, "_secrets", secrets)
    controller = world.open()
    with pytest.raises(InvalidFlow, match=r"processors.Mark.properties.password: unknown secret"):
        apply(controller, flow)
    secrets.store().set("shop", "open-sesame-4711")
    apply(controller, flow)
    controller.run_once("Make")
    controller.run_once("Mark")
    [first, *_] = controller.queue("Mark.success -> Count").listing.first()
    assert first.attributes["length"] == "16"
    secrets.store().remove("shop")
    controller.run_once("Make")
    controller.start()
    controller.close()  # or files come and go while they are read
    files = [one for one in Path(world.folder).rglob("*") if one.is_file()]
    assert files
    assert not [one for one in files if b"open-sesame-4711" in one.read_bytes()]


def test_bulletins_and_the_log_name_the_component(
    world: DataFolderWorld, caplog: pytest.LogCaptureFixture
) -> None:
    class_path = f"{__name__}:Failing"
    flow = FLOW.replace("{type: Pass}", f"{{type: '{class_path}'}}")
    controller = world.open()
    apply(controller, flow)
    controller.start()
    assert Failing.failed.wait(120)
    controller.stop("Mark")
    said = [one for one in controller.bulletins.read() if "it broke" in one.message]
    assert said
    ids = {one.name: one.id for one in controller.status().components}
    assert said[0].component == ids["Mark"]
    assert said[0].message == "raised ValueError: it broke; it yields for 1000 ms"
    logged = [text for text in caplog.messages if "it broke" in text]
    assert logged[0].startswith(f"Mark ({ids['Mark']}) raised ValueError")
    connection = controller.status().connections[0]
    logging.getLogger(f"{LOGGER_NAME}.test").warning("queue %s is slow", connection.id)
    assert caplog.messages[-1] == f"queue {connection.name} ({connection.id}) is slow"


def test_refusals_name_the_component(world: DataFolderWorld) -> None:
    controller = world.open()
    apply(controller, FLOW)
    controller.start("Mark")
    with pytest.raises(Conflict, match=r"processor Mark is running: stop it before it runs once"):
        controller.run_once("Mark")


def test_bulletins_are_kept_from_the_level_that_the_processor_has(world: DataFolderWorld) -> None:
    class_path = f"{__name__}:Failing"
    flow = FLOW.replace("{type: Pass}", f"{{type: '{class_path}', bulletin_level: NONE}}")
    controller = world.open()
    apply(controller, flow)
    controller.run_once("Make")
    controller.run_once("Mark")
    assert not controller.bulletins.read()
    apply(controller, flow.replace("NONE", "ERROR"))
    mark = next(one.id for one in controller.status().components if one.name == "Mark")
    log = logging.getLogger(LOGGER_NAME)
    log.warning("a warning", extra=of_component(mark))
    log.error("an error", extra=of_component(mark))
    log.warning("a warning of nobody")
    assert [one.message for one in controller.bulletins.read()] == [
        "an error",
        "a warning of nobody",
    ]


def test_a_class_that_is_not_there_is_told_with_the_mend(world: DataFolderWorld) -> None:
    with pytest.raises(InvalidFlow, match=r"may not name module nowhere.at_all, because importing"):
        apply(world.open(), FLOW.replace("{type: Pass}", "{type: 'nowhere.at_all:Mark'}"))


def test_a_start_that_fails_leaves_nothing_behind(world: DataFolderWorld) -> None:
    world.open().close()
    (Path(world.folder) / "flow.json").write_bytes(b"{")
    before = set(threading.enumerate())
    with pytest.raises(CorruptData, match="restore the file"):
        world.open()
    assert set(threading.enumerate()) <= before
    (Path(world.folder) / "flow.json").unlink()
    world.open()


def test_a_stored_flow_with_numbers_of_more_than_64_bits_opens(
    world: DataFolderWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """Earlier releases stored any whole number; such a flow is refused only when it is applied."""
    controller = world.open()
    apply(controller, f"{FLOW}labels: [{{text: a, position: [11111, -22222]}}]\n")
    controller.close()
    path = Path(world.folder) / "flow.json"
    stored = path.read_text("utf-8")
    path.write_text(stored.replace("11111", "9" * 30).replace("-22222", f"-{'9' * 25}"), "utf-8")
    again = world.open()
    assert again.applied.revision == 1
    (label,) = again.applied.flow.labels
    assert label.position == Position(x=(1 << 63) - 1, y=-(1 << 63))
    assert [one for one in caplog.messages if "labels[0].position[0], which" in one]
    apply(again, FLOW)


def test_comments_of_the_file_are_stored(world: DataFolderWorld) -> None:
    comments = FlowComments((PlacedComment(("name",), ("# Ours",), "# beside"),), ("# end",))
    controller = world.open()
    apply(controller, FLOW)
    assert not controller.apply(controller.applied.flow, comments=comments)
    controller.stop()
    controller.close()
    again = world.open()
    assert (again.applied.revision, again.applied.comments) == (2, comments)
    again.close()
    path = Path(world.folder) / "flow.json"
    path.write_text(path.read_text("utf-8").replace("# end", "# end\\nprocessors: {}"), "utf-8")
    with pytest.raises(CorruptData, match="not a line that begins with #"):
        world.open()


class Failing(Processor):
    """Fails."""

    input = InputRequirement.REQUIRED
    success = Relationship("Never.")
    failed = threading.Event()

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        session.get()
        self.failed.set()
        raise ValueError("it broke")
