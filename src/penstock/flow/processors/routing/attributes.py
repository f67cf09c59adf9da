"""Processors that use only attributes, not content.

Owns UpdateAttribute, RouteOnAttribute and LogAttribute. Does not own expressions
(`flow.processor`).
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
from penstock.flow.processors.failure import WRITES_REASON, fail
from penstock.flow.processors.routing.named_relationships import (
    BATCH_FLOWFILES,
    name_problems,
    send_to_all,
)

_ALWAYS_THERE: Final = (UUID, FILENAME, PATH)
_LOGGED_MAX_BYTES: Final = 1 << 20


class UpdateAttribute(Processor):
    """Sets and removes attributes.

    Each dynamic property sets the attribute with its name. All expressions use the attributes
    before the change.
    """

    input = InputRequirement.REQUIRED
    supports_batching = True
    tags = ("attributes", "set", "remove")
    reads_attributes: ClassVar[Mapping[str, str]] = {"any": "Attributes in the expressions."}
    writes_attributes: ClassVar[Mapping[str, str]] = {
        "of each property": "Value of the property.",
        **WRITES_REASON,
    }

    delete = Property(
        REGEX,
        about="Regular expression for whole names of attributes to remove, before others are set.",
    )
    attributes = DynamicExpressions(str, about="Name and new value of an attribute.")

    success = Relationship("FlowFiles with changed attributes.")
    failure = Relationship("An expression fails for this FlowFile; it is unchanged.")

    def check(self) -> Iterator[Problem]:
        """Yield errors that involve several properties."""
        if UUID in self.attributes:
            yield Problem(UUID, "never changes: use another name")
        if not self.attributes and self.delete is None:
            yield Problem("", "nothing to do: add properties for attributes to set, or set delete")

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


class RoutingMode(enum.Enum):
    """How the rules of RouteOnAttribute are combined."""

    EACH = "each"
    ALL = "all"
    ANY = "any"


class RouteOnAttribute(Processor):
    """Routes FlowFiles by expressions on their attributes.

    Each dynamic property is an expression that is true or false, such as
    ``${color:equals('red')}``. By default each adds a relationship with its name, and a FlowFile
    goes to every relationship whose expression is true; see ``route``.
    """

    input = InputRequirement.REQUIRED
    supports_batching = True
    tags = ("attributes", "route", "filter")
    reads_attributes: ClassVar[Mapping[str, str]] = {"any": "Attributes in the expressions."}
    writes_attributes: ClassVar[Mapping[str, str]] = WRITES_REASON

    route = Property(
        RoutingMode,
        default="each",
        about="each: a relationship for every property; all: to matched if all are true; any: "
        "to matched if at least one is true.",
    )
    rules = DynamicExpressions(
        bool, about="Name of a relationship, and the condition for it.", relationships=True
    )

    matched = Relationship("All or any expressions are true, see `route`.")
    unmatched = Relationship("No other relationship applies.")
    failure = Relationship("An expression is not a boolean for this FlowFile.")

    def check(self) -> Iterator[Problem]:
        """Yield errors that involve several properties."""
        if not self.rules:
            yield Problem("", "there are no rules: add a property such as big=${fileSize:gt(9)}")
        yield from name_problems(self)

    def relationships(self) -> Mapping[str, Relationship]:
        """Return the relationships: the properties' names, or `matched`."""
        unused = {"matched"} if self.route is RoutingMode.EACH else self.rules.keys()
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
        if self.route is not RoutingMode.EACH:
            enough = len(self.rules) if self.route is RoutingMode.ALL else 1
            true = (self.matched.name,) if len(true) >= enough else ()
        return true or (self.unmatched.name,)


class Level(enum.Enum):
    """Level of a log line."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogAttribute(Processor):
    """Writes the attributes of FlowFiles to the log."""

    input = InputRequirement.REQUIRED
    supports_batching = True
    tags = ("attributes", "log", "debug")
    reads_attributes: ClassVar[Mapping[str, str]] = {"any": "Attributes that are logged."}

    level = Property(Level, default="info", about="Level of the log line.")
    prefix = Property(str, default="", about="Prefix of each log line.")
    attributes = Property(
        list_of(str),
        about="Only these attributes are logged; without it, all except those in `ignore`.",
    )
    ignore = Property(
        REGEX, about="Regular expression for whole names of attributes that are not logged."
    )
    content = Property(
        SIZE, default="0", about="Number of bytes of the content that are logged, up to 1 MB."
    )

    success = Relationship("All FlowFiles.")

    def check(self) -> Iterator[Problem]:
        """Yield errors that involve several properties."""
        if self.content > _LOGGED_MAX_BYTES:
            yield Problem(
                "content", f"{self.content:,} bytes are too many for a log: use at most 1 MB"
            )

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
            # As a Python literal, so that a value cannot imitate another log line.
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


__all__ = ["Level", "LogAttribute", "RouteOnAttribute", "RoutingMode", "UpdateAttribute"]
