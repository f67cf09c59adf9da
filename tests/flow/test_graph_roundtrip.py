"""What is exported is read back as it was; the same flow is the same text."""

from __future__ import annotations

import pytest
from hypothesis import given

from penstock.flow.graph.diff import describe, diff
from penstock.flow.graph.export import to_json, to_yaml, without_secrets
from penstock.flow.graph.flow_comments import (
    FlowComments,
    PlacedComment,
    comments_of,
    with_comments,
)
from penstock.flow.graph.flow_model import Flow
from penstock.flow.graph.source_locations import InvalidFlow
from penstock.flow.graph.validation import validate
from penstock.flow.graph.yaml_reader import read_flow
from tests.flow.graph_kit import TYPES
from tests.flow.graph_strategies_kit import FLOWS


@given(FLOWS)
def test_any_flow_is_exported_and_read_back_judged_and_compared(flow: Flow) -> None:
    # One test for all, as making such flows takes longer than all that is done to them.
    yaml, json = to_yaml(flow), to_json(flow)
    assert read_flow(yaml).flow == flow
    assert read_flow(json).flow == flow
    assert to_yaml(read_flow(yaml).flow) == yaml
    assert to_json(read_flow(json).flow) == json
    assert all(problem.message for problem in validate(flow, TYPES))
    assert diff(flow, flow) == []
    shown = without_secrets(flow, TYPES)
    assert without_secrets(shown, TYPES) == shown
    changes = diff(flow, shown)
    assert bool(describe(changes)) == bool(changes)
    places = read_flow(yaml).places
    everywhere = FlowComments(
        tuple(
            PlacedComment(path, (f"# above {at}", "", "# more"), f"# beside {at}")
            for at, path in enumerate([*places.key_marks, *places.marks, ("gone", 3)])
        ),
        ("# the end",),
    )
    commented = with_comments(yaml, everywhere)
    read = read_flow(commented)
    assert read.flow == flow
    assert all(f"{line}\n" in commented for one in everywhere.placed for line in one.above[:1])
    assert all(one.beside in commented for one in everywhere.placed)
    assert with_comments(yaml, comments_of(commented, read.places)) == commented


def test_a_comment_beside_a_text_that_ends_with_a_no_break_space_leaves_the_text() -> None:
    text = to_yaml(read_flow('name: a\ncomments: "by day\\xa0"\n').flow)
    commented = with_comments(text, FlowComments((PlacedComment(("comments",), (), "# often"),)))
    assert "# often\n" in commented
    assert read_flow(commented).flow == read_flow(text).flow
    assert read_flow(text).flow.comments == "by day\xa0"


def test_the_export_is_as_short_as_a_person_would_write_it() -> None:
    text = """\
format: 1
name: flights
parameters:
  folder: /data
  password:
    env: PASSWORD
processors:
  Read:
    type: GetFile
    properties:
      directory: '#{folder}'
    schedule: every 10 sec
    auto_terminated:
    - failure
    retry:
      success: 3
funnels:
- All
connections:
- from: Read.success
  to: All
  back_pressure_count: 5
labels:
- Reads files
"""
    assert to_yaml(read_flow(text).flow) == text


def test_comments_are_written_where_they_stood() -> None:
    text = """\
# Flights, by day.
#
# second paragraph

# third paragraph
name: flights  # of 2013
processors:
  # Reads the folder.
  Read:   # from NFS
    type: GetFile
    concurrent_tasks: 1   # the disk is slow
    comments: "a text  # not a comment
      and goes on"   # after it
    auto_terminated: [success, failure]   # both
# all of them
funnels:
- All # first
- Others
connections:
# to All
- from: [Others, Read.success]  # two
  to: All
# the end
"""
    read = read_flow(text)
    written = with_comments(to_yaml(read.flow), comments_of(text, read.places))
    assert (
        written
        == """\
# Flights, by day.
#
# second paragraph

# third paragraph
format: 1
name: flights  # of 2013
processors:
  # Reads the folder.
  # the disk is slow
  Read:  # from NFS
    comments: 'a text  # not a comment and goes on'  # after it
    type: GetFile
    auto_terminated:  # both
    - failure
    - success
# all of them
funnels:
- All  # first
- Others
connections:
# to All
- from: Others  # two
  to: All
- from: Read.success
  to: All
# the end
"""
    )


@pytest.mark.parametrize(
    ("comment", "kept"),
    [
        ("# password: hunter2", "# password: (left out)"),
        ("#- Old Password = 'hunter2'", "#- Old Password = (left out)"),
        ("# note, the API key: hunter2", "# note, the API key: (left out)"),
        ("# PIN: hunter2", "# PIN: (left out)"),
        ("# from https://me:hunter2@host/a", "# from https://me:(left out)@host/a"),
        ("# password: secret://shop", "# password: secret://shop"),
        ("# password: '#{shop}'", "# password: '#{shop}'"),
        ("# user: me, at 10:00", "# user: me, at 10:00"),
    ],
)
def test_comments_keep_no_secrets(comment: str, kept: str) -> None:
    for text in ("{}\nname: x\n", "name: x  {}\n", "name: x\n{}\n"):
        given = text.format(comment)
        comments = comments_of(given, read_flow(given).places, {"pin"})
        assert with_comments("name: x\n", comments) == text.format(kept)


def test_comments_keep_no_secret_in_the_lines_below_its_name() -> None:
    text = """\
# private key: |
#   -----BEGIN KEY-----
#
#   hunter2
# PIN:
# - hunter2
# The folder:
#   /data
name: x  # token:
processors:
  # Reads.
  Read: {type: GetFile}
"""
    comments = comments_of(text, read_flow(text).places, {"pin"})
    assert "hunter2" not in repr(comments)
    assert [line for one in comments.placed for line in one.above] == [
        "# private key: (left out)",
        "#   (left out)",
        "#",
        "#   (left out)",
        "# PIN:",
        "# (left out)",
        "# The folder:",
        "#   /data",
        "# Reads.",
    ]


@pytest.mark.parametrize(
    "comment",
    [
        "#" * 250_000,
        "# a" + ":" * 250_000,
        "# " + "://a:" * 50_000,
        "# " + "token," * 40_000,
        "#\n" * 50_000,
    ],
)
def test_long_comments_take_little_time_or_are_refused(comment: str) -> None:
    text = f"name: x\ncomments: |\n{'  # no' * 10}\n{comment}\n"
    read = read_flow(text)
    kept = comments_of(text, read.places)
    assert "# no" not in repr(kept)
    with pytest.raises(InvalidFlow, match="comments"):
        comments_of(f"{text}#{'x' * 20_000}\n{comment}", read.places)


def test_what_is_sensitive_is_not_exported() -> None:
    flow = read_flow(
        "name: x\nprocessors:\n"
        "  A: {type: Put, properties: {password: hunter2, user: me}}\n"
        "  B: {type: Put, properties: {password: '#{secret}'}}\n"
        "  C: {type: Unknown, properties: {a: hunter2}}\n"
        "  D: {type: Put, properties: {password: 'secret://shop'}}\n"
        "groups: {G: {processors: {A: {type: Put, properties: {password: hunter2}}}}}\n"
    ).flow
    shown = without_secrets(flow, TYPES)
    assert "hunter2" not in repr(flow)
    assert "hunter2" not in to_yaml(shown) + to_json(shown) + describe(diff(shown, shown))
    assert shown.processors["A"].properties == {"user": "me"}
    assert shown.processors["B"] == flow.processors["B"]
    assert shown.processors["D"] == flow.processors["D"]
