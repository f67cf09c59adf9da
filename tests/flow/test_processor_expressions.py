"""The expression language: what it gives, and where mistakes are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest
from penstock.flow.flowfile import FlowFile
from penstock.flow.processor import ProcessError
from penstock.flow.processor.expression_language import parse_expression
from penstock.flow.processor.property_types import BOOL, INT

FLOWFILE = FlowFile(
    7,
    {
        "uuid": "u",
        "name": "Ada",
        "path": "a/b/c.txt",
        "n": "10",
        "blank": " ",
        "strange name": "s",
        "yes": "TRUE",
    },
    size=123,
    entry_ms=1_768_472_430_123,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", ""),
        ("plain $ text }", "plain $ text }"),
        ("$${name}", "${name}"),
        ("cost $$5", "cost $$5"),
        ("${name}", "Ada"),
        ("${ name : toUpper ( ) }", "ADA"),
        ("<${name}|${missing}|${name}>", "<Ada||Ada>"),
        ("${'strange name'}", "s"),
        ("${fileSize}", "123"),
        ("${flowFileId}", "7"),
        ("${name:toLower():prepend('x-'):append(\"-y\")}", "x-ada-y"),
        ("${name:append(${n})}", "Ada10"),
        ("${name:length():plus(1)}", "4"),
        ("${path:substringBefore('/')}", "a"),
        ("${path:substringBeforeLast('/')}", "a/b"),
        ("${path:substringAfter('/')}", "b/c.txt"),
        ("${path:substringAfterLast('.')}", "txt"),
        ("${path:substringAfter('#')}", "a/b/c.txt"),
        ("${path:substring(2, 3)}", "b"),
        ("${path:replace('/', '-')}", "a-b-c.txt"),
        (r"${path:replaceAll('[/.](\w)', '-\1')}", "a-b-c-txt"),
        ("${blank:replaceEmpty('none')}", "none"),
        ("${blank:isEmpty()}", "true"),
        ("${blank:trim():length()}", "0"),
        ("${name:equals('Ada'):and(${n:gt(9)})}", "true"),
        ("${name:equalsIgnoreCase('ADA')}", "true"),
        ("${name:startsWith('A')}${name:endsWith('x')}${name:contains('d')}", "truefalsetrue"),
        (r"${path:matches('.*\.txt')}${path:matches('txt')}${path:find('txt')}", "truefalsetrue"),
        ("${name:in('Bob', 'Ada')}", "true"),
        ("${yes:not():or(false)}", "false"),
        ("${yes:ifElse('a', 'b')}", "a"),
        ("${n:toNumber():multiply(2):minus(1):divide(2)}", "9"),
        ("${n:multiply(-1):divide(3)}", "-3"),
        ("${n:divide(4.0)}", "2.5"),
        ("${n:mod(3)}", "1"),
        ("${n:ge(10)}${n:lt(10)}${n:le(10)}", "truefalsetrue"),
        ("${entryDate:format('yyyy/MM/dd')}", "2026/01/15"),
        ("${now():format(\"HH:mm:ss.SSS 'at' DDD\")}", "10:20:30.123 at 015"),
        ("${literal('2026-01-15T10:20:30Z'):toDate()}", "1768472430000"),
        ("${path:urlEncode()}", "a%2Fb%2Fc.txt"),
        ("${path:urlEncode():urlDecode()}", "a/b/c.txt"),
        (r"${literal('it\'s \\ \d')}", r"it's \ \d"),
    ],
)
def test_values(text: str, value: str) -> None:
    assert parse_expression(text, str).of(FLOWFILE, now_ms=1_768_472_430_123) == value


def test_the_result_is_of_the_kind() -> None:
    assert parse_expression("${n}", INT.parse).of(FLOWFILE) == 10
    assert parse_expression("${n:gt(3)}", BOOL.parse).of(FLOWFILE) is True
    assert parse_expression("5", INT.parse).is_constant
    assert parse_expression("${a}", str).of() == ""


@pytest.mark.parametrize(
    ("text", "character"),
    [
        ("ab${name", 3),
        ("${}", 3),
        ("${name:}", 8),
        ("${name:nothing()}", 8),
        ("${nothing()}", 3),
        ("${name:toUpper}", 15),
        ("${name:toUpper(}", 16),
        ("${name:toUpper(1)}", 8),
        ("${name:replace('a')}", 8),
        ("${name:append('a' 'b')}", 19),
        ("${name:append(abc)}", 15),
        ("${name:append('abc)}", 15),
        ("${name name}", 8),
        ("${'name}", 3),
        ("x" * 30 + "${a:append(" * 25, 251),
    ],
)
def test_a_mistake_is_found_at_its_character(text: str, character: int) -> None:
    with pytest.raises(InvalidRequest, match=f", character {character}: "):
        parse_expression(text, str)


def test_a_constant_that_will_not_do_is_found_at_once() -> None:
    with pytest.raises(InvalidRequest, match="integer"):
        parse_expression("five", INT.parse)


@pytest.mark.parametrize(
    "text",
    [
        "${name:plus(1)}",
        "${n:divide(0)}",
        "${n:mod(0)}",
        "${name:matches('(')}",
        "${name:replaceAll('a', '\\\\9')}",
        "${name:format('yyyy')}",
        "${n:format('EEE')}",
        "${literal(99999999999999999):format('yyyy')}",
        "${name:toDate()}",
        "${name:substring(3, 1)}",
    ],
)
def test_what_does_not_work_out_names_the_flowfile(text: str) -> None:
    with pytest.raises(ProcessError, match="of FlowFile u: "):
        parse_expression(text, str).of(FLOWFILE)


@given(st.text(alphabet="${}:()'\"\\,. a1-", max_size=40))
def test_any_text_is_an_expression_or_a_mistake(text: str) -> None:
    try:
        expression = parse_expression(text, str)
    except InvalidRequest:
        return
    try:
        expression.of(FLOWFILE)
    except ProcessError:
        return


@given(st.text().filter(lambda text: "${" not in text))
def test_text_without_expressions_is_itself(text: str) -> None:
    assert parse_expression(text, str).of(FLOWFILE) == text


@given(st.text(), st.text(min_size=1))
def test_a_quoted_text_is_itself(value: str, mark: str) -> None:
    quoted = value.replace("\\", "\\\\").replace("'", "\\'")
    assert parse_expression(f"${{literal('{quoted}')}}", str).of() == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${n:format('yyyy')}", "inf"),
        ("${n:format('yyyy')}", "nan"),
        ("${literal('abc'):substring(${n})}", "1e400"),
        ("${n:multiply(${n})}", "9" * 4_000),
        ("${n:plus(0.5)}", "9" * 4_000),
        ("${n:divide(0.5)}", "9" * 4_000),
        ("${n:mod(0.5)}", "9" * 4_000),
        ("${n:matches(${n})}", "(?u)(?a)x"),
    ],
)
def test_a_value_that_does_not_work_out_is_an_error_of_its_flowfile(text: str, value: str) -> None:
    with pytest.raises(ProcessError):
        parse_expression(text, str).of(FlowFile(1, {"uuid": "u", "n": value}))
