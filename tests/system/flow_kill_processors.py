"""The ends of the flow that is killed: they know which numbers went in, and which came out."""

from __future__ import annotations

from penstock.flow.processor import (
    InputRequirement,
    ProcessContext,
    Processor,
    ProcessSession,
    Property,
    Relationship,
)


def content_of(number: int) -> bytes:
    """Return what a FlowFile of a number holds."""
    return f"{number},".encode() * (1 + number % 300)


class Numbers(Processor):
    """Makes FlowFiles with numbers, without end; where it was is in the same commit."""

    input = InputRequirement.FORBIDDEN
    batch = Property(int, default=40)
    success = Relationship("All.")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        first = int(session.state.get().get("made", "0"))
        for number in range(first, first + self.batch):
            attributes = {"n": str(number), "last": str(number % 10)}
            flowfile = session.create(attributes=attributes)
            session.transfer(session.write(flowfile, content_of(number)), self.success)
        session.state.set({"made": str(first + self.batch)})


class Append(Processor):
    """Writes more content behind what is there, so that content is read and written under way."""

    input = InputRequirement.REQUIRED
    success = Relationship("All.")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        for flowfile in session.get_many(30):
            with session.append(flowfile) as out:
                out.write(b"end")
            session.transfer(flowfile, self.success)


class Tally(Processor):
    """Counts, sums up and checks what ends in it; the sums are in the commit that ends it."""

    input = InputRequirement.REQUIRED

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        state = {name: int(value) for name, value in session.state.get().items()}
        taken = session.get_many(50)
        for flowfile in taken:
            number = int(flowfile.attributes["n"])
            state["count"] = state.get("count", 0) + 1
            state["sum"] = state.get("sum", 0) + number
            state["squares"] = state.get("squares", 0) + number * number
            whole = content_of(number) + b"end"
            routed = flowfile.attributes.get("seen") == f"by {flowfile.attributes['last']}"
            state["wrong"] = state.get("wrong", 0) + (session.read_all(flowfile) != whole)
            state["wrong"] += not routed
        session.state.set({name: str(value) for name, value in state.items()})
        session.remove(taken)
