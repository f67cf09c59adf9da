"""The YAML that is read: texts with their places, and what is refused where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.yaml_tree import InvalidYaml, YamlLimits, YamlNode, read_tree

LIMITS = YamlLimits(1 << 20, depth=3, values=12, remedy="split it")


def plain(node: YamlNode | None) -> object:
    """Return the values of a tree alone."""
    if node is None:
        return None
    if isinstance(node.value, dict):
        return {name: plain(inner) for name, inner in node.value.items()}
    return [plain(one) for one in node.value] if isinstance(node.value, list) else node.value


def test_scalars_are_the_texts_that_were_written() -> None:
    tree = read_tree("a: 0755\nb: [no, 'null', ~]\nc:\n", LIMITS)
    assert plain(tree) == {"a": "0755", "b": ["no", "null", None], "c": None}


def test_keys_and_values_know_where_they_are_and_whether_they_are_quoted() -> None:
    tree = read_tree("{a: 1,\n 'b': \"2\"}", LIMITS)
    assert tree is not None
    assert isinstance(tree.value, dict)
    found = [*tree.keys.values(), *tree.value.values()]
    assert [(one.value, one.line, one.column, one.is_plain) for one in found] == [
        ("a", 1, 2, True), ("b", 2, 2, False), ("1", 1, 5, True), ("2", 2, 7, False),
    ]  # fmt: skip


@pytest.mark.parametrize("document", ["", b"", "# nothing\n", b"\xef\xbb\xbf"])
def test_a_document_may_be_empty(document: str | bytes) -> None:
    assert read_tree(document, LIMITS) is None


BAD: dict[str | bytes, str] = {
    b"a\n \xff": "line 2, column 2: this byte is not UTF-8: write the file in UTF-8",
    " " * ((1 << 20) + 1): "line 1, column 1: the file is larger than 1 MiB: split it",
    "é" * ((1 << 19) + 1): "line 1, column 1: the file is larger than 1 MiB: split it",
    "[[[a]]]\n---\n": "line 2, column 1: a second document: write one document per file",
    "[[[[a]]]]": "line 1, column 5: nested deeper than 3: make it flatter",
    "[[[a: b]]]": "line 1, column 4: nested deeper than 3: make it flatter",
    "[,]": "invalid YAML",
    "[a" + ", a" * 12 + "]": "line 1, column 35: more than 12 values: split it",
    "a: b\na: c": (
        "line 2, column 1: duplicate key 'a', first in line 1: give each key its own name"
    ),
    "- &a b": "line 1, column 3: an anchor, &a: leave it out",
    "- *a": "line 1, column 3: an alias, *a: write the value out",
    "- !b a": "line 1, column 3: a tag, !b: leave it out",
    "{[a]: b}": "line 1, column 2: a key that is a list or a mapping: write a text",
}


@pytest.mark.parametrize("document", BAD, ids=lambda document: str(document[-20:]))
def test_what_is_refused(document: str | bytes) -> None:
    with pytest.raises(InvalidYaml) as caught:
        read_tree(document, LIMITS)
    assert BAD[document] in str(caught.value)


@given(st.one_of(st.text(max_size=40), st.binary(max_size=40)))
def test_any_document_is_read_or_refused_at_a_place_in_it(document: str | bytes) -> None:
    place = (1, 1)
    try:
        read_tree(document, LIMITS)
    except InvalidYaml as error:
        place = (error.line, error.column)
    assert min(place) >= 1
