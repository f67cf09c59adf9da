"""Names and printable text: tables of hostile names, and properties for any text."""

from __future__ import annotations

import json
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest
from penstock.core.names import (
    COMPONENT,
    DATASOURCE,
    LOOKED_UP,
    SUPERVISOR,
    TABLE,
    TASK,
    TIER,
    NameRule,
    check_name,
    check_stored_name,
    is_valid_name,
    known_name,
    normalised,
    spelling,
)
from penstock.core.printable import (
    HIDDEN,
    escaped,
    escaped_json,
    escaped_lines,
    from_header,
    quoted,
    to_header,
)
from penstock.core.sql_text import check_variables

FOLDERS = (DATASOURCE, TABLE, SUPERVISOR, TASK, TIER, LOOKED_UP)
RULES = (*FOLDERS, COMPONENT)
HOSTILE = {
    "": "must not be empty",
    "\x1b[31mred": "U+001B",
    "a\x00b": "U+0000",
    "a\nb": "U+000A",
    "a\x7f": "U+007F",
    "a\x9b2J": "U+009B",
    "a\u202eb": "U+202E",
    "a\u2066b": "U+2066",
    "a\u2028b": "U+2028",
    "a\u00a0b": "U+00A0",
    "a\ud800": "U+D800",
    "\ufffd\ufffd": "U+FFFD",
    " a": "starts or ends with a space",
    "a ": "starts or ends with a space",
    "a/b": "'/'",
    "x" * 10_000: "10,000",
}
PATHS = {"..": "dot", ".": "dot", ".a": "dot", "a\\b": "'\\\\'", "../../etc": "dot"}
NFC, NFD = "Caf\u00e9", "Cafe\u0301"

Text = st.text(st.characters(exclude_categories=())) | st.text(HIDDEN + "a\\[]")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.what)
@pytest.mark.parametrize(("name", "reason"), HOSTILE.items())
def test_a_hostile_name_is_refused_with_value_place_reason_and_remedy(
    rule: NameRule, name: str, reason: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_name(name, rule, place="spec.x")
    text = str(caught.value)
    assert text.startswith("spec.x: ")
    assert reason in text
    assert not re.search(f"[{HIDDEN}]", text)
    assert len(text) < 400
    if name:
        assert repr(name[:20])[1:-1] in text
        assert "; use up to " in text


@pytest.mark.parametrize("rule", FOLDERS, ids=lambda rule: rule.what)
@pytest.mark.parametrize(("name", "reason"), PATHS.items())
def test_a_name_that_becomes_a_folder_leads_to_no_other(
    rule: NameRule, name: str, reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(reason)):
        check_name(name, rule)


@pytest.mark.parametrize(
    "name", ["a", "a.b", "web-2 x_y", "_default", "日本語", "😀", NFC, "[bold]"]
)
def test_ordinary_names_are_names_of_everything(name: str) -> None:
    assert [check_name(name, rule) for rule in RULES] == [name] * len(RULES)


def test_the_files_of_a_worker_are_not_names_of_tasks() -> None:
    for name in TASK.taken:
        with pytest.raises(InvalidRequest, match=f"id: '{name}' is not a valid task id: Penstock"):
            check_name(name, TASK, place="id")
        # An earlier release may have stored it.
        assert check_stored_name(name, TASK) == check_name(name, LOOKED_UP) == name


@pytest.mark.parametrize("name", ["${x}", "a${env:HOME}b"])
def test_a_name_that_no_query_can_contain_is_no_name_of_a_new_datasource(name: str) -> None:
    sql = f'SELECT * FROM "{name}"'
    with pytest.raises(InvalidRequest, match="not allowed"):
        check_variables(sql)
    with pytest.raises(InvalidRequest, match=r"variable of Spark"):
        check_name(name, TABLE)
    # An earlier release may have stored it: it can be compacted and removed.
    assert check_stored_name(name, TABLE) == check_name(name, DATASOURCE) == name
    assert check_name("$x{y}", TABLE) == "$x{y}"


def test_the_length_is_that_of_the_normal_form() -> None:
    assert check_name("e\u0301" * 32, DATASOURCE) == "é" * 32
    with pytest.raises(InvalidRequest, match="66 bytes"):
        check_name("é" * 33, DATASOURCE)
    assert check_name("é" * 200, COMPONENT)
    with pytest.raises(InvalidRequest, match="201 characters"):
        check_name("é" * 201, COMPONENT)


@given(Text, st.sampled_from(RULES))
def test_a_checked_name_is_its_own_normal_form(name: str, rule: NameRule) -> None:
    if not is_valid_name(name, rule):
        return
    checked = check_name(name, rule)
    assert unicodedata.is_normalized("NFC", checked)
    assert check_name(checked, rule) == checked == check_stored_name(name, rule)
    assert escaped(checked) == checked
    assert checked.encode().decode() == checked
    assert len(checked.encode()) <= (rule.bytes_max or 4 * rule.characters_max)


@given(Text)
def test_names_are_equal_exactly_when_their_normal_forms_are(name: str) -> None:
    for form in ("NFC", "NFD"):
        assert normalised(unicodedata.normalize(form, name)) == normalised(name)
    assert normalised(normalised(name)) == normalised(name)


def test_a_name_that_an_earlier_release_stored_keeps_its_spelling() -> None:
    assert spelling(NFD, lambda _name: False) == NFC
    assert spelling(NFD, {NFD}.__contains__) == NFD
    assert spelling(NFC, {NFD}.__contains__) == NFC
    assert known_name(NFD, DATASOURCE, {NFD, NFC}.__contains__) == NFD
    assert known_name(NFD, DATASOURCE, {NFC}.__contains__) == NFC
    assert known_name("..", DATASOURCE, {".."}.__contains__) == ".."
    with pytest.raises(InvalidRequest, match="datasource"):
        known_name("..", DATASOURCE, lambda _name: False)
    assert check_stored_name("a\ufffd", DATASOURCE) == "a\ufffd"


def test_control_characters_are_escaped() -> None:
    assert escaped("a\x1b[31m\n\t\r\x00\x7f\x9b\u202e\u2028") == (
        r"a\x1b[31m\n\t\r\x00\x7f\x9b\u202e\u2028"
    )
    assert escaped_lines("a\tb\r\nc\rd\x1b\u2028") == "a\tb\nc\\rd\\x1b\\u2028"
    assert escaped("👨‍👩‍👧 日本 é [bold]") == "👨‍👩‍👧 日本 é [bold]"
    assert quoted("x" * 100) == repr("x" * 60 + "…")


@given(Text)
def test_no_text_keeps_a_control_character(text: str) -> None:
    assert not re.search(f"[{HIDDEN}]", escaped(text))
    assert escaped(escaped(text)) == escaped(text)
    assert not re.search(f"(?![\n\t])[{HIDDEN}]", escaped_lines(text))
    assert escaped_lines(escaped_lines(text)) == escaped_lines(text)
    assert not re.search(f"[{HIDDEN}]", quoted(text))


@given(Text, Text)
def test_escaped_json_means_the_same(name: str, value: str) -> None:
    content = {name: [value, 1]}
    for indent in (None, 2):
        text = escaped_json(json.dumps(content, ensure_ascii=False, indent=indent))
        # Two halves of a pair that follow each other are one character in JSON's escapes.
        assert json.loads(text) == json.loads(json.dumps(content))
        assert not re.search(f"(?!\n)[{HIDDEN}]", text)


@given(Text)
def test_a_text_comes_through_a_header_escaped(text: str) -> None:
    header = to_header(text)
    assert not re.search(rb"[\x00-\x1f\x7f]", header)
    assert from_header(header.decode("latin-1")) == escaped(text)


def test_a_header_that_is_not_utf8_stays_as_it_was_read() -> None:
    assert from_header("Caf\u00e9") == "Caf\u00e9"
    assert from_header("\u20ac") == "\u20ac"
