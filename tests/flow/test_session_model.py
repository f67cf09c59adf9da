"""Conservation: random programs of session calls against a model.

No FlowFile is lost or doubled, content and attributes are what the model says, and the references
to content are counted right: after every call, for the queues and for what a crash would leave.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from penstock.core.errors import Unavailable
from penstock.flow.flowfile import FlowFile
from penstock.flow.processor import ProcessSession, SessionMisuse
from penstock.flow.queue.queue import FilterVerdict
from penstock.flow.session.content_streams import ContentStream
from penstock.flow.session.session_transaction import SessionTransaction
from tests.flow.session_kit import SessionWorld, full_disk

SEEN = ("color", "shape")  # attributes that the model follows

CONTENT = st.binary(max_size=20)
SMALL = st.integers(0, 5)


@dataclass(frozen=True)
class Thing:
    """A FlowFile as the model has it."""

    content: bytes
    attributes: tuple[tuple[str, str], ...] = ()

    def with_attribute(self, name: str, value: str | None) -> Thing:
        known = dict(self.attributes)
        known.pop(name, None)
        if value is not None:
            known[name] = value
        return Thing(self.content, tuple(sorted(known.items())))


@dataclass
class Held:
    """A FlowFile in a session."""

    flowfile: FlowFile  # any version
    thing: Thing
    source: str = ""
    original: Thing | None = None
    route: str | None = None  # a relationship, "source", "removed"


@dataclass
class Session:
    session: ProcessSession
    transaction: SessionTransaction
    held: dict[int, Held] = field(default_factory=dict)
    links: list[tuple[int, int]] = field(default_factory=list)
    checkpointed: list[Held] = field(default_factory=list)

    def open(self) -> list[Held]:
        return [held for held in self.held.values() if held.route is None]


ROUTES = {
    "success": ["out"],
    "both": ["copy", "out"],
    "loop": ["a"],
    "ends": [],
    "removed": [],
}


class Conservation(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = self.make_world()
        self.world.wire(loop=True)
        self.queues: dict[str, Counter[Thing]] = {n: Counter() for n in self.world.queues}
        self.sessions = [Session(*self.world.begin()) for _ in range(2)]

    def make_world(self) -> SessionWorld:
        return SessionWorld()

    # -- what goes on around the sessions

    @rule(queue=st.sampled_from("ab"), contents=st.lists(CONTENT, min_size=1, max_size=4))
    def feed(self, queue: str, contents: list[bytes]) -> None:
        self.world.feed(queue, *contents, color="red")
        for content in contents:
            self.queues[queue][Thing(content, (("color", "red"),))] += 1

    @rule(which=SMALL)
    def begin(self, which: int) -> None:
        """A new session takes the place of one that is done."""
        place = which % len(self.sessions)
        old = self.sessions[place]
        if not old.held and not old.checkpointed:
            self.sessions[place] = Session(*self.world.begin())

    # -- calls

    @rule(which=SMALL, limit=st.integers(1, 4))
    def get_many(self, which: int, limit: int) -> None:
        one = self.pick(which)
        self.take(one, one.session.get_many(limit))

    @rule(which=SMALL)
    def get(self, which: int) -> None:
        one = self.pick(which)
        flowfile = one.session.get()
        self.take(one, [] if flowfile is None else [flowfile])

    @rule(which=SMALL, size=SMALL, stop=st.booleans())
    def get_where(self, which: int, size: int, stop: bool) -> None:
        one = self.pick(which)
        yes = FilterVerdict.ACCEPT_AND_STOP if stop else FilterVerdict.ACCEPT
        self.take(
            one, one.session.get_where(lambda f: yes if f.size > size else FilterVerdict.REJECT)
        )

    @rule(which=SMALL, parents=st.lists(SMALL, max_size=2))
    def create(self, which: int, parents: list[int]) -> None:
        one = self.pick(which)
        chosen = {h.flowfile.id: h for h in (self.choose(one, p) for p in parents) if h}
        flowfile = one.session.create([held.flowfile for held in chosen.values()])
        each = [set(held.thing.attributes) for held in chosen.values()]
        common = set.intersection(*each) if each else set()
        self.hold(one, flowfile, Thing(b"", tuple(sorted(common))), list(chosen))

    @rule(which=SMALL, of=SMALL, offset=SMALL, size=SMALL)
    def clone(self, which: int, of: int, offset: int, size: int) -> None:
        one = self.pick(which)
        if held := self.choose(one, of):
            offset = min(offset, len(held.thing.content))
            size = min(size, len(held.thing.content) - offset)
            flowfile = one.session.clone(held.flowfile, offset, size)
            part = held.thing.content[offset : offset + size]
            self.hold(one, flowfile, Thing(part, held.thing.attributes), [held.flowfile.id])

    @rule(which=SMALL, of=SMALL, data=CONTENT, way=st.sampled_from(["data", "stream", "append"]))
    def write(self, which: int, of: int, data: bytes, way: str) -> None:
        one = self.pick(which)
        if held := self.choose(one, of):
            if way == "data":
                held.flowfile = one.session.write(held.flowfile, data)
            elif way == "stream":
                self.through(one.session.write(held.flowfile), data)
            else:
                self.through(one.session.append(held.flowfile), data)
                data = held.thing.content + data
            held.thing = Thing(data, held.thing.attributes)

    @rule(which=SMALL, of=SMALL, way=st.sampled_from(["stream", "append"]))
    def write_that_raises(self, which: int, of: int, way: str) -> None:
        one = self.pick(which)
        if held := self.choose(one, of):
            call = one.session.write if way == "stream" else one.session.append
            with suppress(RuntimeError), call(held.flowfile) as out:
                out.write(b"garbage")
                raise RuntimeError

    @rule(which=SMALL, of=SMALL)
    def read(self, which: int, of: int) -> None:
        one = self.pick(which)
        if held := self.choose(one, of):
            assert one.session.read_all(held.flowfile) == held.thing.content

    @rule(which=SMALL, of=SMALL, name=st.sampled_from(SEEN), value=st.sampled_from("xy"))
    def put_attribute(self, which: int, of: int, name: str, value: str) -> None:
        one = self.pick(which)
        if held := self.choose(one, of):
            one.session.put_attributes(held.flowfile, {name: value})
            held.thing = held.thing.with_attribute(name, value)

    @rule(which=SMALL, of=SMALL, name=st.sampled_from(SEEN))
    def remove_attribute(self, which: int, of: int, name: str) -> None:
        one = self.pick(which)
        if held := self.choose(one, of):
            one.session.remove_attributes(held.flowfile, [name])
            held.thing = held.thing.with_attribute(name, None)

    @rule(which=SMALL, count=SMALL, route=st.sampled_from([*ROUTES, "source"]))
    def send(self, which: int, count: int, route: str) -> None:
        one = self.pick(which)
        going = one.open()[:count]
        if route == "source":
            going = [held for held in going if held.original is not None]
        flowfiles = [held.flowfile for held in going]
        if route == "removed":
            one.session.remove(flowfiles)
        else:
            one.session.transfer(flowfiles, None if route == "source" else route)
        for held in going:
            held.route = route

    @rule(which=SMALL, route=st.sampled_from([*ROUTES]))
    def send_all(self, which: int, route: str) -> None:
        self.send(which, len(self.pick(which).open()), route)

    @rule(count=SMALL, closely=st.booleans())
    def migrate(self, count: int, closely: bool) -> None:
        one, other = self.sessions
        moving = {held.flowfile.id for held in one.open()[:count]}
        if closely:  # with all kin, which must be open, too
            while more := {n for link in one.links if set(link) & moving for n in link} - moving:
                moving |= more
        refused = not all(one.held[number].route is None for number in moving) or any(
            (parent in moving) != (child in moving) for parent, child in one.links
        )
        try:
            one.session.migrate(other.session, [one.held[n].flowfile for n in moving])
        except SessionMisuse:
            assert refused
            self.gave_back(one)
            return
        assert not refused
        for number in moving:
            other.held[number] = one.held.pop(number)
        other.links += [link for link in one.links if link[0] in moving]
        one.links = [link for link in one.links if link[0] not in moving]

    # -- ends

    @rule(which=SMALL)
    def checkpoint(self, which: int) -> None:
        one = self.pick(which)
        try:
            one.session.checkpoint()
        except SessionMisuse:
            assert one.open()
            self.gave_back(one)
            return
        assert not one.open()
        one.checkpointed += one.held.values()
        one.held, one.links = {}, []

    @rule(which=SMALL, route=st.sampled_from([*ROUTES]))
    def checkpoint_all(self, which: int, route: str) -> None:
        self.get_many(which, 2)
        self.send_all(which, route)
        self.checkpoint(which)

    @rule(which=SMALL, route=st.sampled_from([*ROUTES]))
    def commit_all(self, which: int, route: str) -> None:
        self.send_all(which, route)
        self.commit(which, durable=False)

    @rule(which=SMALL, durable=st.booleans())
    def commit(self, which: int, durable: bool) -> None:
        one = self.pick(which)
        try:
            one.session.commit(durable=durable)
        except SessionMisuse:
            assert one.open()
            self.gave_back(one)
            return
        assert not one.open()
        self.committed(one)

    @rule(which=SMALL)
    def commit_on_a_full_disk(self, which: int) -> None:
        one = self.pick(which)
        self.world.repository.fails = full_disk()
        try:
            one.session.commit()
        except SessionMisuse:
            self.gave_back(one)
        except Unavailable:
            self.gave_back(one, whole=True)
        else:
            assert not one.held
            assert not one.checkpointed
        finally:
            self.world.repository.fails = None

    @rule(which=SMALL, whole=st.booleans())
    def rollback(self, which: int, whole: bool) -> None:
        one = self.pick(which)
        one.session.rollback(whole=whole)
        self.gave_back(one, whole=whole)

    @rule(which=SMALL, of=SMALL)
    def misuse(self, which: int, of: int) -> None:
        """One that is sealed, or of the other session, rolls back."""
        one = self.pick(which)
        other = self.sessions[1 - self.sessions.index(one)]
        wrong = [held for held in one.held.values() if held.route] + list(other.held.values())
        if wrong:
            with suppress(SessionMisuse):
                one.session.put_attributes(wrong[of % len(wrong)].flowfile, {"x": "y"})
                raise AssertionError
            self.gave_back(one)

    @rule(which=SMALL)
    def terminate(self, which: int) -> None:
        one = self.pick(which)
        one.transaction.calls.terminate()
        self.gave_back(one, whole=True)
        self.sessions[self.sessions.index(one)] = Session(*self.world.begin())

    # -- the model

    def pick(self, which: int) -> Session:
        return self.sessions[which % len(self.sessions)]

    def choose(self, one: Session, of: int) -> Held | None:
        known = one.open()
        return known[of % len(known)] if known else None

    def through(self, stream: ContentStream, data: bytes) -> None:
        with stream as out:
            out.write(data[:3])
            out.write(data[3:])

    def thing(self, flowfile: FlowFile) -> Thing:
        attributes = {k: v for k, v in flowfile.attributes.items() if k in SEEN}
        return Thing(self.world.read(flowfile), tuple(sorted(attributes.items())))

    def take(self, one: Session, flowfiles: list[FlowFile]) -> None:
        for flowfile in flowfiles:
            thing = self.thing(flowfile)
            source = self.world.repository.known[flowfile.id][0]
            self.queues[source][thing] -= 1
            assert self.queues[source][thing] >= 0
            one.held[flowfile.id] = Held(flowfile, thing, source, thing)

    def hold(self, one: Session, flowfile: FlowFile, thing: Thing, parents: list[int]) -> None:
        one.held[flowfile.id] = Held(flowfile, thing)
        one.links += [(parent, flowfile.id) for parent in parents]

    def gave_back(self, one: Session, *, whole: bool = False) -> None:
        back = [*one.held.values(), *(one.checkpointed if whole else ())]
        for held in back:
            if held.original is not None:
                self.queues[held.source][held.original] += 1
        one.held, one.links = {}, []
        if whole:
            one.checkpointed = []

    def committed(self, one: Session) -> None:
        for held in [*one.checkpointed, *one.held.values()]:
            assert held.route is not None
            for queue in [held.source] if held.route == "source" else ROUTES[held.route]:
                self.queues[queue][held.thing] += 1
        one.held, one.links, one.checkpointed = {}, [], []

    @invariant()
    def queues_hold_what_the_model_says(self) -> None:
        for name, queue in self.world.queues.items():
            assert Counter(map(self.thing, queue.flowfiles)) == +self.queues[name], name
        held = [h for s in self.sessions for h in [*s.held.values(), *s.checkpointed]]
        for name, queue in self.world.queues.items():
            of_queue = [h for h in held if h.original is not None and h.source == name]
            assert queue.unacknowledged == [
                len(of_queue),
                sum(len(h.original.content) for h in of_queue if h.original),
            ]

    @invariant()
    def a_crash_would_leave_what_was_committed(self) -> None:
        expected = {name: Counter(things) for name, things in self.queues.items()}
        for one in self.sessions:
            for held in [*one.held.values(), *one.checkpointed]:
                if held.original is not None:
                    expected[held.source][held.original] += 1
        found: dict[str, Counter[Thing]] = {name: Counter() for name in self.queues}
        for queue, flowfile in self.world.repository.known.values():
            found[queue][self.thing(flowfile)] += 1
        assert found == {name: +things for name, things in expected.items()}

    @precondition(lambda self: not any(s.held or s.checkpointed for s in self.sessions))
    @invariant()
    def references_are_right_when_no_session_holds_any(self) -> None:
        self.world.check()


Conservation.TestCase.settings = settings(stateful_step_count=40)
test_conservation = Conservation.TestCase
