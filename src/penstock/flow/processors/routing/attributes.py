"""Processors that work on attributes alone; content is not looked at.

Owns UpdateAttribute, RouteOnAttribute and LogAttribute. The expressions are the SDK's.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterator, Mapping
from typing import ClassVar, Final

from penstock.flow.flowfile import FILENAME, PATH, UUID
from penstock.flow.processor import (
    REGEX,
    SIZE,
    DynamicExpressions,
    FlowFile,
    InputRequirement,
    Problem,
    ProcessContext,
    ProcessError,
    Processor,
    ProcessSession,
    Property,
    Relationship,
    list_of,
)
from penstock.flow.processors.failing import WRITES_REASON, fail
from penstock.flow.processors.routing.routes import BATCH_FLOWFILES, name_problems, send_to_all

_ALWAYS_THERE: Final = (UUID, FILENAME, PATH)
_LOGGED_MAX_BYTES: Final = 1 << 20


class UpdateAttribute(Processor):
    """Sets and removes attributes.

    Each property that is not named here sets the attribute of its name. All values are worked out
    from the attributes as they were before.
    """

    input = InputRequirement.REQUIRED
    supports_batching = True
    tags = ("attributes", "set", "remove")
    reads_attributes: ClassVar[Mapping[str, str]] = {"any": "What the expressions name."}
    writes_attributes: ClassVar[Mapping[str, str]] = {
        "of each property": "Its value.",
        **WRITES_REASON,
    }

    delete = Property(
        REGEX, about="Attributes whose whole name matches are removed, before others are set."
    )
    attributes = DynamicExpressions(str, about="Name and new value of an attribute.")

    success = Relationship("FlowFiles with their new attributes.")
    failure = Relationship("An expression does not work out for this FlowFile; nothing is set.")

    def check(self) -> Iterator[Problem]:
        """Yield what is wrong between properties."""
        if UUID in self.attributes:
            yield Problem(UUID, "never changes: use another name")
        if not self.attributes and self.delete is None:
            yield Problem("", "nothing is to be done: give attributes to set, or delete")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Change the attributes of a batch."""
        now_ms = context.clock.now_ms()
        changed: list[FlowFile] = []
        for flowfile in session.get_many(BATCH_FLOWFILES):
            try:
                wanted = {
                    name: value.of(flowfile, now_ms=now_ms)
                    for name, value in self.attributes.items()
                }
            except ProcessError as error:
                fail(context, session, flowfile, self.failure, error)
                continue
            if self.delete is not None:
                session.remove_attributes(flowfile, self._unwanted(flowfile))
            changed.append(session.put_attributes(flowfile, wanted))
        session.transfer(changed, self.success)

    def _unwanted(self, flowfile: FlowFile) -> list[str]:
        if self.delete is None:
            return []
        matches = self.delete.fullmatch
        return [n for n in flowfile.attributes if n not in _ALWAYS_THERE and matches(n)]


class Routing(enum.Enum):
    """What the properties of RouteOnAttribute mean together."""

    EACH = "each"
    ALL = "all"
    ANY = "any"


class RouteOnAttribute(Processor):
    """Sends FlowFiles where expressions on their attributes say.

    Each property that is not named here is an expression that is true or false, such as
    ``${color:equals('red')}``. With ``route`` as it is, each adds a relationship of its name, and a
    FlowFile goes to all those whose expression is true.
    """

    input = InputRequirement.REQUIRED
    supports_batching = True
    tags = ("attributes", "route", "filter")
    reads_attributes: ClassVar[Mapping[str, str]] = {"any": "What the expressions name."}
    writes_attributes: ClassVar[Mapping[str, str]] = WRITES_REASON

    route = Property(
        Routing,
        default="each",
        about="each: a relationship for every property; all: to matched if all are true; any: to "
        "matched if one is.",
    )
    rules = DynamicExpressions(
        bool, about="Name of a relationship, and when FlowFiles go there.", relationships=True
    )

    matched = Relationship("All or any are true, see `route`.")
    unmatched = Relationship("No FlowFile of a relationship above.")
    failure = Relationship("An expression is neither true nor false for this FlowFile.")

    def check(self) -> Iterator[Problem]:
        """Yield what is wrong between properties."""
        if not self.rules:
            yield Problem("", "there are no rules: give a property such as big=${fileSize:gt(9)}")
        yield from name_problems(self)

    def relationships(self) -> Mapping[str, Relationship]:
        """Return where it sends FlowFiles; the properties' names, or `matched`."""
        unused = {"matched"} if self.route is Routing.EACH else self.rules.keys()
        return {n: r for n, r in super().relationships().items() if n not in unused}

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Route a batch."""
        now_ms = context.clock.now_ms()
        ways: dict[tuple[str, ...], list[FlowFile]] = {}
        for flowfile in session.get_many(BATCH_FLOWFILES):
            try:
                names = self._names(flowfile, now_ms)
            except ProcessError as error:
                fail(context, session, flowfile, self.failure, error)
            else:
                ways.setdefault(names, []).append(flowfile)
        for names, flowfiles in ways.items():
            if len(names) == 1:
                session.transfer(flowfiles, names[0])
                continue
            for flowfile in flowfiles:
                send_to_all(session, flowfile, names)

    def _names(self, flowfile: FlowFile, now_ms: int) -> tuple[str, ...]:
        true = tuple(n for n, rule in self.rules.items() if rule.of(flowfile, now_ms=now_ms))
        if self.route is not Routing.EACH:
            enough = len(self.rules) if self.route is Routing.ALL else 1
            true = (self.matched.name,) if len(true) >= enough else ()
        return true or (self.unmatched.name,)


class Level(enum.Enum):
    """How important a line of the log is."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogAttribute(Processor):
    """Writes the attributes of FlowFiles to the log."""

    input = InputRequirement.REQUIRED
    supports_batching = True
    tags = ("attributes", "log", "debug")
    reads_attributes: ClassVar[Mapping[str, str]] = {"any": "What is logged."}

    level = Property(Level, default="info", about="How important the line is.")
    prefix = Property(str, default="", about="Stands before each line.")
    attributes = Property(
        list_of(str), about="Only these are logged; without it all, but for those ignored."
    )
    ignore = Property(REGEX, about="Attributes whose whole name matches are not logged.")
    content = Property(
        SIZE, default="0", about="So many bytes of the content are logged, up to 1 MB."
    )

    success = Relationship("All FlowFiles.")

    def check(self) -> Iterator[Problem]:
        """Yield what is wrong between properties."""
        if self.content > _LOGGED_MAX_BYTES:
            yield Problem("content", f"{self.content:,} bytes are too many for a log: at most 1 MB")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Log a batch."""
        flowfiles = session.get_many(BATCH_FLOWFILES)
        level = logging.getLevelNamesMapping()[self.level.name]
        if context.log.isEnabledFor(level):
            for flowfile in flowfiles:
                context.log.log(level, "%s", self._text(session, flowfile))
        session.transfer(flowfiles, self.success)

    def _text(self, session: ProcessSession, flowfile: FlowFile) -> str:
        names = sorted(flowfile.attributes) if self.attributes is None else self.attributes
        shown = [
            # As written in Python, so that a value cannot pass for a line of its own.
            f"{name}={flowfile.attributes[name]!r}"
            for name in names
            if name in flowfile.attributes
            and not (self.ignore is not None and self.ignore.fullmatch(name))
        ]
        lines = f"{self.prefix}{flowfile.size:,} bytes; {', '.join(shown)}"
        if not self.content:
            return lines
        with session.read(flowfile) as content:
            start = content.read(self.content)
        return f"{lines}; content: {start.decode('utf-8', 'backslashreplace')!r}"


__all__ = ["Level", "LogAttribute", "RouteOnAttribute", "Routing", "UpdateAttribute"]
