"""Eligible statements, made of random clauses, for the comparison of the fast path with Spark.

A seed and the number of an attempt give a statement. Templates of operators stand here; calls of
functions and aggregates are found by asking the compiler (`fast_calls_kit`), so that a function
that it learns is compared from then on.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tests.kits.fast_calls_kit import aggregate_calls, function_calls
from tests.kits.fast_rows_kit import COLUMNS, DATASOURCE, TEXTS

EXPRESSIONS_MIN: Final = 10
"""Number of expressions that a statement has at least."""


@dataclass(frozen=True)
class Statement:
    """A statement by its clauses, so that a failure can be made smaller.

    `order` has the text of each sort key and the number of the item that it is, or -1. A statement
    with `whole` is this text.
    """

    items: tuple[str, ...] = ()
    where: str = ""
    groups: tuple[str, ...] = ()
    having: str = ""
    order: tuple[tuple[str, int], ...] = ()
    limit: str = ""
    is_distinct: bool = False
    source: str = DATASOURCE
    whole: str = ""

    @property
    def sql(self) -> str:
        """Return its text."""
        return self.whole or self._text(self.limit)

    @property
    def unlimited(self) -> str:
        """Return its text without a limit."""
        return self._text("")

    def _text(self, limit: str) -> str:
        parts = [f"SELECT {'DISTINCT ' * self.is_distinct}{', '.join(self.items)}"]
        parts.append(f"FROM {self.source}")
        if self.where:
            parts.append(f"WHERE {self.where}")
        if self.groups:
            parts.append(f"GROUP BY {', '.join(self.groups)}")
        if self.having:
            parts.append(f"HAVING {self.having}")
        if self.order:
            parts.append(f"ORDER BY {', '.join(text for text, _ in self.order)}")
        return " ".join([*parts, limit]).strip()

    def smaller(self) -> list[Statement]:
        """Return statements with one part less."""
        found = []
        if self.source != DATASOURCE:
            found.append(replace(self, source=DATASOURCE))
        if self.where:
            found.append(replace(self, where=""))
        if self.having:
            found.append(replace(self, having=""))
        if self.limit:
            found.append(replace(self, limit=""))
        if self.order:
            found.append(replace(self, order=self.order[:-1]))
        if len(self.items) > 1 and not self.order:
            found += [
                replace(self, items=(*self.items[:at], *self.items[at + 1 :]))
                for at in range(len(self.items))
            ]
        return found


def statement_of(seed: int, attempt: int = 0) -> Statement:
    """Return a statement of a seed, with at least `EXPRESSIONS_MIN` expressions."""
    return _Maker(random.Random(f"statement {seed} {attempt}")).statement()


@dataclass
class _Maker:
    """Makes expressions of a type; `count` is how many it made."""

    chance: random.Random
    count: int = 0
    aliases: list[str] = field(default_factory=list)

    def statement(self) -> Statement:
        found = self._statement()
        if self.chance.random() < 0.15:
            items = _GROUPED if self.chance.random() < 0.25 else "*"
            groups = "" if items == "*" else " GROUP BY channel, page"
            inner = f"SELECT {items} FROM {DATASOURCE} WHERE {self.condition(2)}{groups}"
            return replace(found, source=f"({inner}) AS {DATASOURCE}")
        return found

    def _statement(self) -> Statement:
        form = self.chance.choices(("rows", "groups", "whole", "distinct"), (3, 6, 2, 1))[0]
        where = self.condition(3) if self.chance.random() < 0.7 else ""
        if self.chance.random() < 0.3:
            bound = self.time_bound()
            where = f"{where} AND {bound}" if where and " OR " not in where else bound
        if form == "rows":
            return self._rows(where)
        if form == "distinct":
            keys = tuple(self._column() for _ in range(self.chance.randint(1, 3)))
            while self.count < EXPRESSIONS_MIN:
                where = f"{self.condition(2)}" + (f" AND ({where})" if where else "")
            return Statement(keys, where, is_distinct=True, order=self._order(keys))
        return self._aggregated(where, is_grouped=form == "groups")

    def _rows(self, where: str) -> Statement:
        items: list[str] = []
        while self.count < EXPRESSIONS_MIN or not items:
            items.append(self._item(self.any(2)))
        if self.chance.random() < 0.08:
            items = ["*"]  # more columns than that
        order = () if items == ["*"] else self._order(items)
        if self.chance.random() < 0.1:
            order = ((self.chance.choice(("added DESC", "abs(price)", "WIKI.page")), -1),)
        limit = self._limit() if self.chance.random() < 0.3 else ""
        return Statement(tuple(items), where, order=order, limit=limit)

    def _aggregated(self, where: str, *, is_grouped: bool) -> Statement:
        keys = [self._key() for _ in range(self.chance.randint(1, 3))] if is_grouped else []
        items: list[str] = []
        groups: list[str] = []
        for key in keys:
            groups.append(key)
            if self.chance.random() < 0.9:
                items.append(self._item(key))
                alias = items[-1].rpartition(" AS ")[2]
                if self.chance.random() < 0.3:
                    groups[-1] = str(len(items))
                elif alias in self.aliases and self.chance.random() < 0.4:
                    groups[-1] = alias
        if is_grouped and len(items) == len(keys) and self.chance.random() < 0.15:
            groups = ["ALL"]
        while self.count < EXPRESSIONS_MIN or len(items) < 2:
            items.append(self._item(self.result()))
        having = ""
        if self.chance.random() < 0.3:
            having = self._having()
            last = items[-1].rpartition(" AS ")
            if last[2] in self.aliases and self.chance.random() < 0.3:
                having = f"{last[2]} IS NOT NULL"
        order = self._order(items)
        if not having and self.chance.random() < 0.1:
            order = ((self.chance.choice(("count(*) DESC", "max(added)", "-sum(price)")), -1),)
        limit = self._limit() if self.chance.random() < 0.3 else ""
        return Statement(tuple(items), where, tuple(groups), having, order, limit)

    def _item(self, text: str) -> str:
        if self.chance.random() < 0.5:
            return text
        alias = f"x{len(self.aliases)}"
        self.aliases.append(alias)
        return f"{text} AS {alias}"

    def _order(self, items: Sequence[str]) -> tuple[tuple[str, int], ...]:
        if self.chance.random() < 0.4:
            return ()
        found = []
        for at in self.chance.sample(range(len(items)), self.chance.randint(1, min(3, len(items)))):
            text = str(at + 1)
            alias = items[at].rpartition(" AS ")[2]
            if alias in self.aliases and self.chance.random() < 0.5:
                text = alias
            text += self.chance.choice(("", " ASC", " DESC", " DESC"))
            text += self.chance.choice(("", "", " NULLS FIRST", " NULLS LAST"))
            found.append((text, at))
        return tuple(found)

    def _limit(self) -> str:
        text = f"LIMIT {self.chance.choice((0, 1, 3, 10, 1000))}"
        return text + self.chance.choice(("", "", f" OFFSET {self.chance.randint(0, 5)}"))

    def _having(self) -> str:
        return self._one_of(
            "count(*) {compare} {count}",
            "sum(added) {compare} {count}",
            "max(price) {compare} {count}",
            "count(DISTINCT channel) > 1 AND min(added) < {count}",
            "NOT (avg(added) > {count}) OR count(price) > 1",
            "min(channel) IS NOT NULL",
            "sum(added) / count(*) > {count}",
        )

    def _key(self) -> str:
        return self._one_of(
            "channel", "page", "channel", "added", "price", "rate", "ratio", "flag", "day", "small",
            "date_trunc('{unit}', __time)",
            "FLOOR(__time TO {unit})",
            "TIME_FLOOR(__time, '{period}')",
            "CAST(__time AS DATE)",
            "{part}(__time)",
            "extract({extracted} FROM __time)",
            "added % {n}",
            "substring(channel, 1, {n})",
            "length(page)",
            "CASE WHEN {boolean} THEN {string} ELSE {string} END",
            "coalesce(channel, page)",
            "{boolean}",
            "pmod(added, {n})",
            "price + {dyadic}",
            "{string}", "{whole}", "cost", "{date}",
        )  # fmt: skip

    def result(self) -> str:
        """Return an aggregate, or an expression of aggregates."""
        return self._one_of(
            "{aggregate}", "{aggregate}", "{aggregate}", "{aggregate}", "{aggregate}",
            "{filterable} FILTER (WHERE {boolean})",
            "sum(added) / count(*)",
            "sum(added) + count(*)",
            "max(added) - min(added)",
            "CASE WHEN count(*) > {n} THEN sum(price) ELSE 0 END",
            "coalesce(max(channel), '{text}')",
            "sum(price) / {n}",
            "avg(price) * 2",
            "sum(added) / sum(small)",
            "count(*) % {n}",
            "round_trip",
        ).replace("round_trip", "count(1)")  # fmt: skip

    def aggregate(self) -> str:
        if self.chance.random() < 0.3:
            calls = aggregate_calls()
            names = [name for name in calls if name not in _RAISING or self.chance.random() < 0.1]
            return self._filled(self.chance.choice(calls[self.chance.choice(names)]), 2)
        if self.chance.random() < 0.02:  # those of `_RAISING` with a clause
            return self._one_of(
                "any_value({key_column}, true)", "first({key_column}) IGNORE NULLS",
                "last_value({key_column}) RESPECT NULLS",
                "first({key_column}) FILTER (WHERE {boolean}) IGNORE NULLS",
            )  # fmt: skip
        return self._one_of(
            "count(*)", "count({any})", "count(DISTINCT {key_column})",
            "sum({bigint})", "sum(added)", "sum({int})", "sum(price)", "sum({tame})", "sum(ratio)",
            "sum(rate)", "sum(big)", "avg(added)", "avg(price)", "mean({tame})", "avg(small)",
            "min({any})", "max({any})", "min(rate)", "max(rate)", "max(channel)", "min(__time)",
            "approx_count_distinct({key_column})", "count_if({boolean})",
            "sum(CASE WHEN {boolean} THEN 1 ELSE 0 END)",
        )  # fmt: skip

    def any(self, depth: int) -> str:
        return self._filled(f"{{{self.chance.choice(_KINDS)}}}", depth)

    def condition(self, depth: int) -> str:
        return self._filled("{boolean}", depth)

    def time_bound(self) -> str:
        return self._one_of(
            "__time >= TIMESTAMP '{day}' AND __time < TIMESTAMP '{later}'",
            "__time >= '{day}'",
            "__time < DATE '{later}'",
            "__time BETWEEN TIMESTAMP '{day} 00:00:00' AND TIMESTAMP '{later} 12:30:00.5'",
            "TIME_IN_INTERVAL(__time, '{day}/{later}')",
            "__time > CAST('{day}' AS TIMESTAMP) - INTERVAL '1' DAY",
            "TIMESTAMP '{day}' <= __time",
            "__time = TIMESTAMP '{day}'",
        )

    def _column(self) -> str:
        self.count += 1
        name = self.chance.choice([name for name, _ in COLUMNS])
        return self.chance.choice(
            (name, name, name.upper(), f"wiki.{name}", f"Wiki.{name.title()}")
        )

    def _one_of(self, *templates: str) -> str:
        return self._filled(self.chance.choice(templates), 2)

    def _filled(self, template: str, depth: int) -> str:
        """Return a template whose fields are expressions or words."""
        self.count += 1
        parts: list[str] = []
        rest = template
        while rest:
            before, _, after = rest.partition("{")
            parts.append(before)
            name, _, rest = after.partition("}")
            if name:
                parts.append(self._field(name, depth))
        return "".join(parts)

    def _field(self, name: str, depth: int) -> str:
        if name == "any":
            return self.any(depth - 1)
        if name == "aggregate":
            return self.aggregate()
        if name == "filterable":  # in Spark's grammar, FILTER comes before IGNORE NULLS
            while (text := self.aggregate()).endswith(" NULLS"):
                pass
            return text
        if name in _WORDS:
            return str(self.chance.choice(_WORDS[name]))
        if name == "text":
            return str(self.chance.choice([one for one in TEXTS if _is_plain(one)]))
        calls = function_calls(may_raise=name in _LOOSE).get(_LOOSE.get(name, name), {})
        if depth > 0 and calls and self.chance.random() < 0.4:
            return self._filled(
                self.chance.choice(calls[self.chance.choice(sorted(calls))]), depth - 1
            )
        choices = _LEAVES[name] if depth <= 0 else (*_LEAVES[name], *_BRANCHES.get(name, ()) * 2)
        return self._filled(self.chance.choice(choices), depth - 1)


def _is_plain(text: str) -> bool:
    return not any(one in text for one in ("'", "\\", "\n", "\0", "{", "}"))


# One row for each channel and page, with all columns.
_GROUPED: Final = ", ".join(
    name if name in {"channel", "page"} else f"{('min', 'max')[at % 2]}({name}) AS {name}"
    for at, (name, _) in enumerate(COLUMNS)
)
# Aggregates that raise for groups with several values, which are most groups.
_RAISING: Final = frozenset(
    {"any_value", "first", "first_value", "last", "last_value", "max_by", "min_by"}
)
# Kinds of values that may raise, and the kind without those.
_LOOSE: Final = {
    "bigint": "whole",
    "int": "whole",
    "double": "real",
    "loose_exact": "exact",
    "loose_string": "string",
    "loose_timestamp": "timestamp",
}
_KINDS: Final = tuple(
    kind
    for kind in (
        *_LOOSE,
        *("whole", "real", "exact", "string", "boolean", "timestamp", "date", "key_column"),
    )
    if "exact" not in kind or "cost" in dict(COLUMNS)
)


_WORDS: Final = {
    "compare": ("=", "<>", "<", "<=", ">", ">=", "!=", "<=>"),
    "count": (0, 1, 3, 10, 100, -5, "2.5", "0.5"),
    "n": (1, 2, 3, 7, 10),
    "dyadic": ("0.5", "2.25D", "1", "-3.75", "1e2"),
    "unit": ("SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "YEAR"),
    "period": ("PT1M", "PT5M", "PT15M", "PT1H", "PT6H", "P1D", "P1W", "P1M", "P3M", "P1Y"),
    "part": (
        *("year", "quarter", "month", "day", "dayofmonth", "dayofyear", "dayofweek", "weekday"),
        *("weekofyear", "hour", "minute", "second"),
    ),
    "extracted": (
        *("YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "DOW", "DOY"),
        *("YEAROFWEEK", "DAYOFWEEK_ISO", "DOW_ISO"),
    ),
    "day": ("2026-01-01", "2026-01-15", "1970-01-01", "1582-10-15", "0001-01-01"),
    "later": ("2026-02-01", "2026-02-20", "2027-01-01", "9999-12-31"),
    "length": (
        *("1 DAY", "'2' HOUR", "15 MINUTE", "1 WEEK", "30 SECOND"),
        *("250 MILLISECONDS", "-7 MICROSECOND", "'-3' DAY"),
    ),
    "months": ("1 MONTH", "'13' MONTH", "2 YEARS"),
    "escaped": ("a!%%", "%!_b", "!!%", "%!%!_%"),
    "pattern": ("a%", "%b", "%", "_", "a_b", "%a%", "", "_%", "ß%", "%👍%", "é"),
}
_LEAVES: Final[dict[str, tuple[str, ...]]] = {
    "bigint": ("added", "added", "big", "{n}L"),
    "int": ("small", "{n}", "length(channel)", "{part}(__time)"),
    "double": ("price", "rate", "price", "{n}.5D", "1e2"),
    "whole": ("added", "added", "big", "small", "{n}L"),
    "real": ("price", "rate", "ratio", "{n}.5D"),
    "tame": ("price", "price", "added * 0.25D"),
    "string": ("channel", "page", "'{text}'"),
    "boolean": ("flag", "added > {count}", "channel = '{text}'", "price < {count}"),
    "timestamp": ("__time", "TIMESTAMP '{day} 01:02:03'", "__time"),
    "date": ("day", "DATE '{day}'", "CAST(__time AS DATE)"),
    "exact": ("cost", "worth"),
    "loose_exact": ("cost", "worth"),
    "loose_string": ("CAST({bigint} AS STRING)",),
    "loose_timestamp": ("timestamp_millis({bigint})", "timestamp_micros(big)"),
    "calm": ("{whole}", "{real}", "{string}", "{boolean}", "{timestamp}", "{date}", "{key_column}"),
    "key_column": tuple(name for name, _ in COLUMNS),
}
_BRANCHES: Final[dict[str, tuple[str, ...]]] = {
    "bigint": (
        *("{bigint} + {n}", "added - {int}", "(- {bigint})", "added * {n}", "{bigint} % {n}"),
        *("{bigint} div {n}", "abs(added)", "unix_millis({timestamp})", "pmod({bigint}, {n})"),
        *("CASE WHEN {boolean} THEN {bigint} ELSE {bigint} END", "coalesce({bigint}, {int})"),
        *("nullif({bigint}, {n})", "greatest({bigint}, {bigint})", "CAST({int} AS BIGINT)"),
        *("if({boolean}, {bigint}, 0)", "least({bigint}, {int})", "unix_seconds(__time)"),
        *("nvl({bigint}, 0)", "(added)", "CASE added WHEN {n} THEN {bigint} END"),
        *("added div {bigint}", "added % {bigint}", "CAST({double} AS BIGINT)"),
        *("CAST({exact} AS BIGINT)", "CAST({timestamp} AS BIGINT)", "CAST({boolean} AS BIGINT)"),
        "CAST({string} AS BIGINT)",
    ),
    "int": (
        *("{int} % {n}", "extract({extracted} FROM {timestamp})", "length({string})"),
        *("CASE WHEN {boolean} THEN {int} END", "{part}({timestamp})", "instr({string}, 'a')"),
        *("coalesce({int}, {n})", "(- length({string}))", "year({date})", "{int} + 1"),
        "POSITION('{text}' IN {string})",
    ),
    "double": (
        *("{double} + {dyadic}", "{double} * {double}", "{bigint} / {n}", "{double} / {n}"),
        *("CAST({bigint} AS DOUBLE)", "CASE WHEN {boolean} THEN {double} ELSE {bigint} END"),
        *("coalesce({double}, 0)", "(- {double})", "abs({double})", "{double} - {bigint}"),
        *("{bigint} / {int}", "ratio + {double}", "CAST(ratio AS DOUBLE)", "added::double"),
    ),
    "exact": (
        *("{exact} + {exact}", "{exact} - {n}", "cost * {dyadic}", "cost * {whole}", "(- {exact})"),
        *("{exact} / {n}", "worth / 0.7", "{whole} * 0.5", "{whole} / 2.5", "coalesce({exact}, 0)"),
        *("CASE WHEN {boolean} THEN {exact} ELSE {n} END", "CAST({whole} AS DECIMAL(24, 2))"),
    ),
    "loose_exact": (
        *("cost / {exact}", "CAST({exact} AS DECIMAL(7, 1))", "{whole} * 1.0 / {int}"),
        *("added / cost", "{exact} / worth"),
    ),
    "tame": ("price + {dyadic}", "price * 2", "CASE WHEN {boolean} THEN {tame} END", "(- {tame})"),
    "string": (
        *("substring({string}, {n}, {n})", "concat({string}, '{text}')", "{string} || {string}"),
        *("coalesce({string}, '{text}')", "CASE WHEN {boolean} THEN {string} ELSE {string} END"),
        *("left({string}, {n})", "CAST({whole} AS STRING)", "nullif({string}, '{text}')"),
        *("substr({string}, {n})", "concat(channel, '-', page)", "greatest({string}, {string})"),
        *("CAST({boolean} AS STRING)", "CAST({date} AS STRING)", "CAST({timestamp} AS STRING)"),
    ),
    # Those that never raise, because comparisons of others are not compiled.
    "whole": (
        *("{whole} % {n}", "{whole} div {n}", "unix_millis({timestamp})", "pmod({whole}, {n})"),
        *("CASE WHEN {boolean} THEN {whole} ELSE {whole} END", "coalesce({whole}, {n})"),
        *("nullif({whole}, {n})", "greatest({whole}, added)", "CAST(small AS BIGINT)"),
        *("if({boolean}, {whole}, 0)", "unix_seconds(__time)", "nvl({whole}, 0)"),
        *("CASE added WHEN {n} THEN {whole} END", "length({string})", "{part}({timestamp})"),
    ),
    "real": (
        *("{real} + {dyadic}", "{real} * {real}", "{whole} / {n}", "{real} / {n}", "(- {real})"),
        *("CAST({whole} AS DOUBLE)", "CASE WHEN {boolean} THEN {real} ELSE {whole} END"),
        *("coalesce({real}, 0)", "abs({real})", "{real} - {whole}", "ratio + {real}"),
        *("CAST({exact} AS DOUBLE)", "{exact} * {real}", "round({real}, {n})", "{real} + {exact}"),
    ),
    "boolean": (
        *("{whole} {compare} {whole}", "{real} {compare} {real}", "NOT {boolean}"),
        *("{string} {compare} {string}", "{timestamp} {compare} {timestamp}", "{boolean} OR flag"),
        *("{boolean} AND {boolean}", "{whole} IN ({n}, {n}, 5)"),
        *("channel IN ('{text}', '{text}')", "{boolean} AND {boolean}"),
        *("{whole} BETWEEN {n} AND 100", "{string} LIKE '{pattern}'", "({calm}) IS NULL"),
        *("({calm}) IS NOT NULL", "channel NOT LIKE '{pattern}'", "flag IS NOT TRUE"),
        *("{date} {compare} {date}", "{whole} {compare} {count}", "{real} {compare} {count}"),
        *("startswith({string}, '{text}')", "contains({string}, '{text}')", "({boolean})"),
        *("endswith({string}, '{text}')", "{whole} IS DISTINCT FROM {n}", "{whole} NOT IN (1, 2)"),
        *("__time >= '{day}'", "{timestamp} < {date}", "ratio {compare} {count}"),
        *("{real} IN (price, 0, {n})", "{string} BETWEEN 'a' AND '{text}'"),
        *("{exact} {compare} {exact}", "cost {compare} {count}", "({string} IS NULL) = flag"),
        *("{string} LIKE '{escaped}' ESCAPE '!'", "{string} ILIKE '{pattern}'"),
        "{exact} IN (0, 2.5)",
        *("{exact} BETWEEN {n} AND 100.5", "{exact} {compare} {count}", "{exact} {compare} {real}"),
    ),
    "timestamp": (
        *("date_trunc('{unit}', {timestamp})", "TIME_FLOOR({timestamp}, '{period}')"),
        *("__time + INTERVAL {length}", "__time - INTERVAL {length}", "CAST({date} AS TIMESTAMP)"),
        *("__time + INTERVAL {months}", "__time - INTERVAL {months}", "CAST(__time AS TIMESTAMP)"),
        *("CASE WHEN {boolean} THEN __time END", "timestamp_millis(unix_millis(__time))"),
        *("FLOOR(__time TO {unit})", "coalesce({timestamp}, __time)"),
        "TIMESTAMPADD({unit}, {n}, {timestamp})",
    ),
    "date": ("CAST({timestamp} AS DATE)", "to_date({timestamp})", "coalesce({date}, day)"),
}  # fmt: skip
