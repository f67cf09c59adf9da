"""Retention: which segments of a datasource are kept, and which are marked unused.

Owns the rules' JSON and their matching, which is pure: the first rule that matches a segment
applies; a segment that no rule matches is kept, as by a final "load forever".
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, JsonValue

from penstock.core.durations import parse_period
from penstock.core.errors import InvalidRequest
from penstock.core.instants import add_months
from penstock.core.intervals import START_OF_TIME_MS, Interval
from penstock.indexing.specs.scalars import Count, Flag, IntervalText, PeriodText
from penstock.indexing.specs.spec_base import SpecModel
from penstock.indexing.specs.spec_text import read_list, read_model
from penstock.storage.metadata.tables.configuration import DEFAULT_RULES

if TYPE_CHECKING:
    from penstock.storage.metadata.rows.cluster import RuleRow

_log = logging.getLogger(__name__)

RuleAction = Literal["load", "drop", "broadcast"]

Replicants = dict[str, Annotated[Count, Field(ge=0, le=1000)]]


class ForeverRule(SpecModel):
    """Every segment."""

    type: Literal["loadForever", "dropForever", "broadcastForever"]
    tiered_replicants: Replicants | None = None
    use_default_tier_for_null: Flag = True

    def matches(self, segment: Interval, now_ms: int) -> bool:  # noqa: ARG002 - as of all rules
        """Return whether the rule matches a segment of this interval."""
        return True


class IntervalRule(SpecModel):
    """Segments of an interval: a drop rule requires all of a segment in it, a load rule a part."""

    type: Literal["loadByInterval", "dropByInterval", "broadcastByInterval"]
    interval: IntervalText
    tiered_replicants: Replicants | None = None
    use_default_tier_for_null: Flag = True

    @cached_property
    def time(self) -> Interval:
        """The interval; a run of retention reads it once for each segment."""
        return Interval.parse(self.interval)

    def matches(self, segment: Interval, now_ms: int) -> bool:  # noqa: ARG002 - as of all rules
        """Return whether the rule matches a segment of this interval."""
        time = self.time
        return time.covers(segment) if _drops(self.type) else time.overlaps(segment)


class PeriodRule(SpecModel):
    """Segments of the period up to now, and with `include_future` of all later times."""

    type: Literal["loadByPeriod", "dropByPeriod", "broadcastByPeriod"]
    period: PeriodText
    include_future: Flag = True
    tiered_replicants: Replicants | None = None
    use_default_tier_for_null: Flag = True

    def matches(self, segment: Interval, now_ms: int) -> bool:
        """Return whether the rule matches a segment of this interval."""
        start_ms = start_of_period(self.period, now_ms)
        if _drops(self.type):
            ends_in_time = self.include_future or segment.end_ms <= now_ms
            return segment.start_ms >= start_ms and ends_in_time
        begins_in_time = self.include_future or segment.start_ms < now_ms
        return segment.end_ms > start_ms and begins_in_time


class BeforePeriodRule(SpecModel):
    """Segments that end before the period up to now."""

    type: Literal["dropBeforeByPeriod"]
    period: PeriodText

    def matches(self, segment: Interval, now_ms: int) -> bool:
        """Return whether the rule matches a segment of this interval."""
        return segment.end_ms <= start_of_period(self.period, now_ms)


Rule = Annotated[
    ForeverRule | IntervalRule | PeriodRule | BeforePeriodRule, Field(discriminator="type")
]


class RuleList(SpecModel):
    """The rules of a datasource, or of all, in the order of evaluation."""

    rules: tuple[Rule, ...] = Field(max_length=1000)


@dataclass(frozen=True, slots=True)
class RetentionDecision:
    """The decision for a segment, and the rule that made it; None if none matched."""

    action: RuleAction
    rule: Rule | None = None

    @property
    def is_used(self) -> bool:
        """Whether the segment is kept."""
        return self.action != "drop"


def action_for(segment: Interval, rules: Sequence[Rule], now_ms: int) -> RetentionDecision:
    """Return the decision for a segment.

    Args:
        segment: The segment's interval.
        rules: The datasource's own rules, then those of all datasources.
        now_ms: The time, in milliseconds since 1970.
    """
    for rule in rules:
        if rule.matches(segment, now_ms):
            return RetentionDecision(_action(rule.type), rule)
    return RetentionDecision("load")


def can_drop(rule: Rule) -> bool:
    """Return whether a rule marks segments unused if it matches."""
    return _drops(rule.type)


def parse_rules(raw: bytes | str | Sequence[JsonValue]) -> tuple[Rule, ...]:
    """Parse a list of rules, or its text.

    Raises:
        SpecError: An `InvalidRequest` that lists every mistake with its place.
    """
    value = read_list(raw) if isinstance(raw, bytes | str) else list(raw)
    return read_model(RuleList, {"rules": value}).rules


def rules_to_json(rules: Sequence[Rule]) -> list[JsonValue]:
    """Return the JSON form; `parse_rules` parses it."""
    return [rule.model_dump(mode="json", by_alias=True) for rule in rules]


def _action(kind: str) -> RuleAction:
    if _drops(kind):
        return "drop"
    return "load" if kind.startswith("load") else "broadcast"


def _drops(kind: str) -> bool:
    return kind.startswith("drop")


@lru_cache(maxsize=64)  # a run of retention calls it for very many segments
def start_of_period(period: str, now_ms: int) -> int:
    """Return the start of the period that ends now; not before the start of the calendar."""
    length = parse_period(period, may_be_zero=True)
    try:
        return max(START_OF_TIME_MS, add_months(now_ms, -length.months) - length.ms)
    except InvalidRequest:
        return START_OF_TIME_MS


def dropped(
    chunks: Iterable[tuple[str, int, int]], rules: Mapping[str, Sequence[Rule]], now_ms: int
) -> list[tuple[str, Interval]]:
    """Return the time chunks whose segments the rules drop. Pure.

    Args:
        chunks: Datasources, starts and ends of used segments.
        rules: Rules by datasource; those under ``_default`` apply to all, after its own.
        now_ms: The current time.
    """
    default = rules.get(DEFAULT_RULES, ())
    of_datasource = {name: (*own, *default) for name, own in rules.items()}
    return [
        (datasource, interval)
        for datasource, *times in chunks
        for interval in (Interval(*times),)
        if not action_for(interval, of_datasource.get(datasource, default), now_ms).is_used
    ]


def readable_rules(stored: Mapping[str, RuleRow]) -> dict[str, tuple[Rule, ...]]:
    """Return the rules of each datasource; invalid rules are replaced by keeping everything."""
    keep = parse_rules([{"type": "loadForever"}])
    rules = {}
    for name, row in stored.items():
        try:
            rules[name] = parse_rules([dict(rule) for rule in row.rules])  # type: ignore[arg-type]  # it was stored as JSON
        except InvalidRequest as error:
            _log.error("the rules of %s are invalid, so nothing is dropped: %s", name, error)
            rules[name] = keep
    return rules
