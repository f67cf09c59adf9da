"""Processors and short ways for the tests of the flow graph."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.flow.graph.declarations import ClassTypes
from penstock.flow.graph.validation import validate
from penstock.flow.graph.yaml_reader import read_flow
from penstock.flow.processor import (
    BOOL,
    PERIOD,
    DynamicProperties,
    InputRequirement,
    Problem,
    ProcessContext,
    Processor,
    ProcessSession,
    Property,
    Relationship,
    list_of,
)


class Idle(Processor):
    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        del context, session


class GetFile(Idle):
    input = InputRequirement.FORBIDDEN
    directory = Property(str, required=True)
    batch = Property(int, default=10, name="Batch Size")
    age = Property(PERIOD, default="0 sec")
    success = Relationship("What was read.")


class Check(Idle):
    input = InputRequirement.REQUIRED
    strict = Property(BOOL, default=False)
    columns = Property(list_of(str), default=())
    valid = Relationship("Good.")
    invalid = Relationship("Bad.")


class Put(Idle):
    input = InputRequirement.REQUIRED
    url = Property(str, default="http://localhost/")
    user = Property(str)
    password = Property(str, sensitive=True)

    def check(self) -> Iterator[Problem]:
        if self.user is not None and self.password is None:
            yield Problem("user", "needs a password, too: give both")


class Pass(Idle):
    success = Relationship("Everything.")


class Single(Idle):
    triggers_serially = True


class Route(Idle):
    input = InputRequirement.REQUIRED
    rules = DynamicProperties(str, about="Rules.", relationships=True)
    unmatched = Relationship("The rest.")


TYPES = ClassTypes({cls.__name__: cls for cls in (GetFile, Check, Put, Pass, Single, Route)})


def problems(text: str) -> list[str]:
    """Return what is wrong with a flow file, as lines."""
    read = read_flow(text, "f.yaml")
    return [str(problem) for problem in validate(read.flow, TYPES, places=read.places)]
