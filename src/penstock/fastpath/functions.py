"""Functions of Spark that are compiled, and their meaning in DuckDB's SQL. Pure.

Owns the list. A function is on it only if its values are equal for every argument of the types that
it takes here, or DuckDB raises. A function whose meaning differs has another text in DuckDB, such
as `dayofweek`, which DuckDB counts from 0; or DuckDB raises where it differs, as in `upper('ß')`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Final

from penstock.fastpath.compiled_query import NotCompiled
from penstock.fastpath.fragments import (
    INT_MAX,
    INTEGERS,
    Fragment,
    constant,
    converted,
    is_number,
    left_to_spark,
    made,
    named,
    shared_type,
)
from penstock.fastpath.literals import time, truncated
from penstock.fastpath.number_functions import (
    NUMBER_FUNCTIONS,
    Arguments,
    Function,
    whole_constant,
)

_TRUNCATED: Final = {
    **dict.fromkeys(("year", "yyyy", "yy"), "year"),
    "quarter": "quarter",
    **dict.fromkeys(("month", "mon", "mm"), "month"),
    "week": "week",
    **dict.fromkeys(("day", "dd"), "day"),
    "hour": "hour",
    "minute": "minute",
    "second": "second",
}
# Parts of a time in UTC; each is an INTEGER in Spark.
_PARTS: Final = {
    "year": "year({})",
    "quarter": "quarter({})",
    "month": "month({})",
    "day": "day({})",
    "dayofmonth": "day({})",
    "dayofyear": "dayofyear({})",
    "dayofweek": "(dayofweek({}) + 1)",
    "weekday": "(isodow({}) - 1)",
    "weekofyear": "weekofyear({})",
    "hour": "hour({})",
    "minute": "minute({})",
    "second": "second({})",
}
# Those that only EXTRACT and date_part have.
_EXTRACTED_PARTS: Final = {"dayofweek_iso": "isodow({})", "yearofweek": "isoyear({})"}
_OF_DAY: Final = frozenset({"hour", "minute", "second"})
_EXTRACTED: Final = {
    **{unit: unit for unit in ("year", "quarter", "month", "day", "hour", "minute")},
    "week": "weekofyear",
    "doy": "dayofyear",
    "dow": "dayofweek",
    "dayofweek": "dayofweek",
    **{part: part for part in _EXTRACTED_PARTS},
    "dow_iso": "dayofweek_iso",
}
_FORMATS: Final = {
    "yyyy": "%Y",
    "MM": "%m",
    "dd": "%d",
    "HH": "%H",
    "mm": "%M",
    "ss": "%S",
    "'T'": "T",
    "'Z'": "Z",
}
# Letters are not repeated further: MMMM is the name of a month. Two quotes in a text are one.
_PATTERN_PARTS: Final = re.compile(
    r"yyyy(?!y)|MM(?!M)|dd(?!d)|HH(?!H)|mm(?!m)|ss(?!s)|'[TZ]'(?!')|[-/:. ]"
)
_PATTERN: Final = re.compile(rf"(?:{_PATTERN_PARTS.pattern})+")
# From the year 1000 up to, not with, 10000.
_YEAR_MIN_US, _YEAR_END_US = -30_610_224_000_000_000, 253_402_300_800_000_000
_DAYS_MAX: Final = 1_000_000
# Ranges of characters: Latin, Greek and Cyrillic letters that both engines change to the same ones,
# and that later versions of Unicode do not change.
_LETTERS: Final = {
    "lower": r"\x{1}-\x{12F}\x{131}-\x{24F}\x{391}-\x{3A1}\x{3A4}-\x{3CE}\x{400}-\x{52F}",
    "upper": r"\x{1}-\x{DE}\x{E0}-\x{137}\x{139}-\x{148}\x{14A}-\x{17F}"
    r"\x{391}-\x{3AF}\x{3B1}-\x{3CE}\x{400}-\x{52F}",
}
# Hebrew, Arabic, Indian and East Asian scripts, punctuation and pictures.
_WITHOUT_CASE: Final = (
    r"\x{300}-\x{33F}\x{5D0}-\x{6FF}\x{900}-\x{E7F}\x{2000}-\x{20CF}"
    r"\x{3000}-\x{9FFF}\x{AC00}-\x{D7A3}\x{1F300}-\x{1FAFF}"
)
_PLAIN_PATTERN: Final = re.compile(r"\^(?:\[0-9\]|\[[-+.T ]+\]|[-:TZ ()|]|\?|\+)*\$")
_CLASS: Final = re.compile(r"\[[^\]]*\]")
# Python may try each combination of them.
_CHOICES_MAX: Final = 18
_PLAIN_TEXT: Final = re.compile(r"[-+:.TZ 0-9]{0,40}")
_SUBSTRINGS: Final = frozenset({"substr", "substring"})
_MS_MAX: Final = 9_223_372_036_854_775


def called(function: str, arguments: Arguments) -> Fragment:
    """Return the call of a function of one row.

    Args:
        function: Its name in lower case.
        arguments: Its arguments.

    Raises:
        NotCompiled: The function, or its call with these arguments, is not on the list.
    """
    compile_call = _FUNCTIONS.get(function)
    if compile_call is None:
        raise NotCompiled("function")
    found = compile_call(arguments)
    if found.name:
        return found
    shown = [one.name for one in arguments]
    if function in _SUBSTRINGS and len(shown) == 2:
        shown.append(str(INT_MAX))  # Spark adds the length
    return named(found, f"{function}({', '.join(shown)})", arguments)


def extracted(unit: str, value: Fragment) -> Fragment:
    """Return `EXTRACT(unit FROM value)`.

    Raises:
        NotCompiled: The unit is not covered; seconds have a fraction in Spark.
    """
    part = _EXTRACTED.get(unit.lower())
    if part is None:
        raise NotCompiled("function")
    return named(_part(part, value), f"extract({unit} FROM {value.name})", (value,))


def time_of(us: Fragment) -> str:
    """Return the text of a timestamp as DuckDB's own type without a zone."""
    if us.type != "timestamp":
        raise NotCompiled("types of arguments")
    return "make_timestamp({})"


def as_date(value: Fragment) -> Fragment:
    """Return the day of a time.

    Raises:
        NotCompiled: It is not a time.
    """
    if value.type == "date":
        return made("CAST({} AS DATE)", "date", (value,))
    return made(f"CAST({time_of(value)} AS DATE)", "date", (value,))


def floored(time: Fragment, period_ms: int) -> Fragment:
    """Return the start of the period since the epoch in which a time is."""
    us = period_ms * 1_000
    if isinstance(time.constant, int):
        return constant(time.constant - time.constant % us, "timestamp")
    millis = f"unix_millis({time.name})"
    found = made(f"({{}} - ((({{}} % {us}) + {us}) % {us}))", "timestamp", (time, time))
    return named(found, f"timestamp_millis(({millis} - pmod({millis}, {period_ms})))", (time,))


def _checked(arguments: Arguments, *types: str) -> None:
    if len(arguments) != len(types):
        raise NotCompiled("number of arguments")
    for one, type_ in zip(arguments, types, strict=True):
        if one.type != type_:
            raise NotCompiled("types of arguments")


def _text(piece: Fragment) -> str:
    if not isinstance(piece.constant, str) or piece.type != "string":
        raise NotCompiled("argument that is not constant")
    return piece.constant


def _date_trunc(arguments: Arguments) -> Fragment:
    if len(arguments) == 2 and arguments[1].type == "date":
        arguments = (arguments[0], converted(arguments[1], "timestamp"))
    _checked(arguments, "string", "timestamp")
    unit = _TRUNCATED.get(_text(arguments[0]).lower())
    if unit is None:
        raise NotCompiled("function")
    if isinstance(arguments[1].constant, int):
        return constant(truncated(arguments[1].constant, unit), "timestamp")
    return made(f"epoch_us(date_trunc('{unit}', make_timestamp({{}})))", "timestamp", arguments[1:])


def _part_of(part: str) -> Function:
    def compile_part(arguments: Arguments) -> Fragment:
        if len(arguments) != 1:
            raise NotCompiled("number of arguments")
        return _part(part, arguments[0])

    return compile_part


def _part(part: str, value: Fragment) -> Fragment:
    shown = "{}" if value.type == "date" and part not in _OF_DAY else time_of(value)
    return made(
        f"CAST({(_PARTS | _EXTRACTED_PARTS)[part].format(shown)} AS INTEGER)", "int", (value,)
    )


def _of_floor(us: int) -> Function:
    """Return the function that divides the microseconds of a time and rounds down."""

    def compile_floor(arguments: Arguments) -> Fragment:
        _checked(arguments, "timestamp")
        (value,) = arguments
        if us == 1:
            return made("CAST({} AS BIGINT)", "bigint", (value,))
        if isinstance(value.constant, int):
            return constant(value.constant // us, "bigint")
        sql = f"(({{}} - ((({{}} % {us}) + {us}) % {us})) // {us})"
        return made(sql, "bigint", (value, value))

    return compile_floor


def _of_times(us: int) -> Function:
    """Return the function that makes a time of a number of units since the epoch."""

    def compile_time(arguments: Arguments) -> Fragment:
        if len(arguments) != 1 or arguments[0].type not in INTEGERS:
            raise NotCompiled("types of arguments")
        number = converted(arguments[0], "bigint")
        if isinstance(number.constant, int):
            if abs(number.constant) * us > _MS_MAX * 1_000:
                raise NotCompiled("time out of range")
            return constant(number.constant * us, "timestamp")
        return made(f"({{}} * CAST({us} AS BIGINT))", "timestamp", (number,), raises=us > 1)

    return compile_time


def _same(template: str, count: int | None = None) -> Function:
    """Return the function of values of one type, to which they are converted."""

    def compile_same(arguments: Arguments) -> Fragment:
        if not arguments or (count is not None and len(arguments) != count):
            raise NotCompiled("number of arguments")
        if len(arguments) < 2:
            raise NotCompiled("number of arguments")
        type_ = shared_type(one.type for one in arguments)
        parts = [converted(one, type_) for one in arguments]
        return made(template.format(", ".join(["{}"] * len(parts))), type_, parts)

    return compile_same


def _nullif(arguments: Arguments) -> Fragment:
    if len(arguments) != 2:
        raise NotCompiled("number of arguments")
    value, other = arguments
    found = _value_unless(value, other)
    # Such as the divisor of `sum(a) / nullif(count(*), 0)`.
    return replace(found, is_never_zero=_is_zero(other))


def _value_unless(value: Fragment, other: Fragment) -> Fragment:
    if value.type == other.type:
        return made("nullif({}, {})", value.type, (value, other))
    if not is_number(value.type) or not is_number(other.type) or value.raises or other.raises:
        raise NotCompiled("types of arguments")
    # The result has the type of the first one.
    type_ = shared_type((value.type, other.type))
    parts = (converted(value, type_), converted(other, type_), value)
    return made("(CASE WHEN {} = {} THEN NULL ELSE {} END)", value.type, parts)


def _is_zero(piece: Fragment) -> bool:
    return isinstance(piece.constant, int | float | Decimal) and not piece.constant


def _nullifzero(arguments: Arguments) -> Fragment:
    if len(arguments) != 1 or not is_number(arguments[0].type):
        raise NotCompiled("types of arguments")
    found = _value_unless(arguments[0], constant(0, "int"))
    return replace(found, is_never_zero=True)


def _zeroifnull(arguments: Arguments) -> Fragment:
    if len(arguments) != 1 or arguments[0].type not in {*INTEGERS, "double"}:
        raise NotCompiled("types of arguments")
    zero = converted(constant(0, "int"), arguments[0].type)
    return made("coalesce({}, {})", arguments[0].type, (arguments[0], zero))


def _nvl2(arguments: Arguments) -> Fragment:
    if len(arguments) != 3:
        raise NotCompiled("number of arguments")
    shared_type((arguments[0].type,))
    if arguments[0].raises:
        raise NotCompiled("error in a test for null")
    type_ = shared_type(one.type for one in arguments[1:])
    parts = (arguments[0], *(converted(one, type_) for one in arguments[1:]))
    return made("(CASE WHEN {} IS NOT NULL THEN {} ELSE {} END)", type_, parts)


def _if(arguments: Arguments) -> Fragment:
    if len(arguments) != 3 or arguments[0].type != "boolean":
        raise NotCompiled("types of arguments")
    type_ = shared_type(one.type for one in arguments[1:])
    parts = [arguments[0], *(converted(one, type_) for one in arguments[1:])]
    found = made("(CASE WHEN {} THEN {} ELSE {} END)", type_, parts)
    return named(found, f"(IF({', '.join(one.name for one in arguments)}))", arguments)


def _length(arguments: Arguments) -> Fragment:
    _checked(arguments, "string")
    return made("CAST(length({}) AS INTEGER)", "int", arguments)


def _substring(arguments: Arguments) -> Fragment:
    if len(arguments) not in {2, 3} or arguments[0].type != "string":
        raise NotCompiled("types of arguments")
    numbers = [whole_constant(one) for one in arguments[1:]]
    value, start = arguments[0], numbers[0]
    length = max(numbers[1], 0) if len(numbers) == 2 else INT_MAX
    if start >= 0:
        # Spark takes 0 for 1.
        return made(f"substring({{}}, {max(start, 1)}, {length})", "string", (value,))
    if len(numbers) == 1:
        return made(f"right({{}}, {-start})", "string", (value,))
    # A start before the text counts as part of the length.
    sql = (
        f"(CASE WHEN length({{}}) >= {-start} THEN substring({{}}, length({{}}) - {-start - 1},"
        f" {length}) ELSE substring({{}}, 1, greatest(length({{}}) + {length - -start}, 0)) END)"
    )
    return made(sql, "string", (value,) * 5)


def _end(function: str) -> Function:
    def compile_end(arguments: Arguments) -> Fragment:
        if len(arguments) != 2 or arguments[0].type != "string":
            raise NotCompiled("types of arguments")
        length = max(whole_constant(arguments[1]), 0)
        return made(f"{function}({{}}, {length})", "string", arguments[:1])

    return compile_end


def _trimmed(function: str) -> Function:
    def compile_trim(arguments: Arguments) -> Fragment:
        _checked(arguments, "string")
        # Without the characters, DuckDB removes all kinds of spaces.
        return made(f"{function}({{}}, ' ')", "string", arguments)

    return compile_trim


def _of_letters(function: str) -> Function:
    """Return upper or lower."""

    def compile_letters(arguments: Arguments) -> Fragment:
        _checked(arguments, "string")
        return cased(function, arguments[0])

    return compile_letters


def cased(function: str, value: Fragment) -> Fragment:
    """Return a text with upper or lower letters; DuckDB raises where it has unusual ones.

    Both engines agree on each character of `_LETTERS`, by a comparison of all of Unicode; Spark's
    lower depends on the letters beside a Greek sigma.
    """
    if isinstance(value.constant, str) and value.constant.isascii():
        changed = value.constant.upper() if function == "upper" else value.constant.lower()
        return constant(changed, "string")
    others = f"[^{_LETTERS[function]}{_WITHOUT_CASE}]".replace("{", "{{").replace("}", "}}")
    sql = (
        f"(CASE WHEN strlen({{}}) = length({{}}) THEN {function}({{}})"
        f" WHEN regexp_matches({{}}, '{others}') THEN {left_to_spark('letters')}"
        f" ELSE {function}({{}}) END)"
    )
    return made(sql, "string", (value,) * 5)


def _regexp_extract(arguments: Arguments) -> Fragment:
    """Return the part of a constant text that fits a pattern, as in TIME_PARSE of a constant."""
    _checked(arguments, "string", "string", "int")
    text, pattern = _text(arguments[0]), _text(arguments[1])
    # Java and Python read patterns of these characters in the same way.
    if whole_constant(arguments[2]) or not _PLAIN_PATTERN.fullmatch(pattern):
        raise NotCompiled("pattern")
    choices = _CLASS.sub("a", pattern)
    is_bounded = sum(map(choices.count, "?|")) <= _CHOICES_MAX and choices.count("+") <= 1
    if not is_bounded or ")+" in choices or not _PLAIN_TEXT.fullmatch(text):
        raise NotCompiled("pattern")
    try:
        found = re.search(pattern, text)
    except re.error:
        raise NotCompiled("pattern") from None
    return constant("" if found is None else found[0], "string")


def _replace(arguments: Arguments) -> Fragment:
    _checked(arguments, "string", "string", "string")
    return made("replace({}, {}, {})", "string", arguments)


def _locate(function: str) -> Function:
    def compile_locate(arguments: Arguments) -> Fragment:
        _checked(arguments, "string", "string")
        part, value = arguments
        found = made("CAST(instr({}, {}) AS INTEGER)", "int", (value, part))
        return named(found, f"{function}({part.name}, {value.name}, 1)", arguments)

    return compile_locate


def _as_texts(arguments: Arguments) -> Fragment:
    """Return texts one after the other, among which integers may be."""
    texts = [
        made("CAST({} AS VARCHAR)", "string", (one,), name=one.name)
        if one.type in INTEGERS
        else one
        for one in arguments
    ]
    return joined_texts(texts)


def joined_texts(arguments: Arguments) -> Fragment:
    """Return texts one after the other; NULL if one is.

    Raises:
        NotCompiled: They are not texts.
    """
    if len(arguments) < 2 or {one.type for one in arguments} != {"string"}:
        raise NotCompiled("types of arguments")
    name = f"concat({', '.join(one.name for one in arguments)})"
    found = made(f"({' || '.join(['{}'] * len(arguments))})", "string", arguments)
    return named(found, name, arguments)


def _of_texts(function: str, type_: str = "boolean") -> Function:
    def compile_texts(arguments: Arguments) -> Fragment:
        _checked(arguments, "string", "string")
        sql = f"{function}({{}}, {{}})"
        return made(sql if type_ == "boolean" else f"CAST({sql} AS INTEGER)", type_, arguments)

    return compile_texts


def _is_null(arguments: Arguments) -> Fragment:
    return is_null(arguments, "IS NULL")


def _is_not_null(arguments: Arguments) -> Fragment:
    return is_null(arguments, "IS NOT NULL")


def is_null(arguments: Arguments, test: str) -> Fragment:
    """Return the test whether a value is NULL, or is not.

    Raises:
        NotCompiled: There is not one argument with a type.
    """
    if len(arguments) != 1:
        raise NotCompiled("number of arguments")
    shared_type(one.type for one in arguments)
    if arguments[0].raises:
        # DuckDB does not compute a value that cannot be NULL by the statistics of the files.
        raise NotCompiled("error in a test for null")
    found = made(f"({{}} {test})", "boolean", arguments)
    return named(found, f"({arguments[0].name} {test})", arguments)


def _to_timestamp(arguments: Arguments) -> Fragment:
    if len(arguments) != 1:
        raise NotCompiled("number of arguments")
    if arguments[0].type == "timestamp":
        return made("{}", "timestamp", arguments)
    return time(_text(arguments[0]))


def _to_date(arguments: Arguments) -> Fragment:
    if len(arguments) != 1:
        raise NotCompiled("number of arguments")
    return as_date(arguments[0])


def _date_part(arguments: Arguments) -> Fragment:
    if len(arguments) != 2:
        raise NotCompiled("number of arguments")
    part = _EXTRACTED.get(_text(arguments[0]).lower())
    if part is None:
        raise NotCompiled("function")
    return _part(part, arguments[1])


def _datepart(arguments: Arguments) -> Fragment:
    found = _date_part(arguments)
    return named(found, f"datepart({arguments[0].name} FROM {arguments[1].name})", arguments)


def _trunc(arguments: Arguments) -> Fragment:
    _checked(arguments, "date", "string")
    unit = _TRUNCATED.get(_text(arguments[1]).lower())
    if unit not in {"year", "quarter", "month", "week"}:
        raise NotCompiled("function")
    return made(f"CAST(date_trunc('{unit}', {{}}) AS DATE)", "date", arguments[:1])


def _days_between(arguments: Arguments) -> Fragment:
    if len(arguments) != 2:
        raise NotCompiled("number of arguments")
    return made("CAST(({} - {}) AS INTEGER)", "int", [as_date(one) for one in arguments])


def _days_later(sign: int) -> Function:
    def compile_days(arguments: Arguments) -> Fragment:
        if len(arguments) != 2:
            raise NotCompiled("number of arguments")
        days = sign * whole_constant(arguments[1])
        if abs(days) > _DAYS_MAX:
            raise NotCompiled("time out of range")
        return made(f"({{}} + ({days}))", "date", (as_date(arguments[0]),))

    return compile_days


def _date_format(arguments: Arguments) -> Fragment:
    if len(arguments) != 2:
        raise NotCompiled("number of arguments")
    pattern = _text(arguments[1])
    if not _PATTERN.fullmatch(pattern):
        raise NotCompiled("pattern")
    found = "".join(_FORMATS.get(one, one) for one in _PATTERN_PARTS.findall(pattern))
    time = converted(arguments[0], "timestamp")
    return made(in_four_digits(f"strftime({time_of(time)}, '{found}')"), "string", (time,) * 3)


def in_four_digits(text: str) -> str:
    """Return the text of a time in microseconds; DuckDB raises if its year has not four digits."""
    return (
        f"(CASE WHEN {{}} < {_YEAR_MIN_US} OR {{}} >= {_YEAR_END_US} THEN {left_to_spark('a year')}"
        f" ELSE {text} END)"
    )


_FUNCTIONS: Final[Mapping[str, Function]] = {
    **NUMBER_FUNCTIONS,
    "btrim": _trimmed("trim"),
    "char_length": _length,
    "character_length": _length,
    "coalesce": _same("coalesce({})"),
    "concat": _as_texts,
    "contains": _of_texts("contains"),
    "date_add": _days_later(1),
    "date_diff": _days_between,
    "date_format": _date_format,
    "date_part": _date_part,
    "date_sub": _days_later(-1),
    "date_trunc": _date_trunc,
    "datediff": _days_between,
    "datepart": _datepart,
    "endswith": _of_texts("ends_with"),
    "greatest": _same("greatest({})"),
    "if": _if,
    "ifnull": _same("coalesce({})", 2),
    "instr": _of_texts("instr", "int"),
    "isnotnull": _is_not_null,
    "isnull": _is_null,
    "lcase": _of_letters("lower"),
    "least": _same("least({})"),
    "left": _end("left"),
    "len": _length,
    "length": _length,
    "locate": _locate("locate"),
    "lower": _of_letters("lower"),
    "ltrim": _trimmed("ltrim"),
    "nullif": _nullif,
    "nullifzero": _nullifzero,
    "nvl": _same("coalesce({})", 2),
    "nvl2": _nvl2,
    "position": _locate("position"),
    "regexp_extract": _regexp_extract,
    "replace": _replace,
    "right": _end("right"),
    "rtrim": _trimmed("rtrim"),
    "startswith": _of_texts("starts_with"),
    "substr": _substring,
    "substring": _substring,
    "timestamp_micros": _of_times(1),
    "timestamp_millis": _of_times(1_000),
    "to_date": _to_date,
    "to_timestamp": _to_timestamp,
    "trim": _trimmed("trim"),
    "trunc": _trunc,
    "ucase": _of_letters("upper"),
    "unix_micros": _of_floor(1),
    "unix_millis": _of_floor(1_000),
    "unix_seconds": _of_floor(1_000_000),
    "upper": _of_letters("upper"),
    "zeroifnull": _zeroifnull,
    **{part: _part_of(part) for part in _PARTS},
}

FUNCTIONS: Final = frozenset(_FUNCTIONS)
"""Those that are compiled, by their names in lower case."""
