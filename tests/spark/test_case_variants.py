"""Columns that differ in case alone: apart where one segment has both, one column elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.column_case import ColumnNames, case_variants_in, shown_case_variants
from penstock.core.intervals import Interval
from penstock.indexing.engine import DataFile
from penstock.indexing.specs import DataSchema, parse_data_schema
from penstock.spark.batch.input.dimension_discovery import Found, discovered
from penstock.spark.messages.found_columns import united, unlike
from penstock.spark.schema_columns import output_columns, row_shape
from penstock.spark.tables.table_columns import KnownColumns, union_columns, wider
from penstock.spark.tables.table_files import Columns, TableFile

DAY = Interval(0, 1)
NAMES = st.sampled_from(["City", "city", "CITY", "name", "Name", "n"])
TYPES = st.sampled_from(["bigint", "double", "float", "string"])
COLUMNS = st.dictionaries(NAMES, TYPES, max_size=4).map(
    lambda found: (("__time", "timestamp"), *found.items())
)


def table_file(columns: Columns, part_of: str = "") -> TableFile:
    return TableFile("p", columns, DAY, part_of=part_of, announced=bool(part_of))


def data_file(columns: Columns) -> DataFile:
    return DataFile("p", DAY, 1, 1, 0, 0, columns)


def found_schema(**more: object) -> DataSchema:
    return parse_data_schema(
        {
            "dataSource": "trips",
            "timestampSpec": {"column": "at", "format": "iso"},
            "dimensionsSpec": {"useSchemaDiscovery": True},
            **more,
        }
    )


# names


@given(st.lists(NAMES))
def test_twins_are_the_names_that_another_one_equals_but_for_its_case(names: list[str]) -> None:
    wanted = {a for a in names for b in names if a != b and a.lower() == b.lower()}
    found = case_variants_in(names)
    assert set(found) == wanted
    assert len(found) == len(wanted)


def test_twins_are_shown_by_the_first_of_them() -> None:
    assert shown_case_variants(case_variants_in(["a", "b", "A", "B"])) == '"a" and "A"'
    assert shown_case_variants(("a", "A", "á")) == '"a" and "A"'


@given(st.lists(NAMES, unique=True))
def test_a_name_finds_its_column_exactly_among_twins_and_folded_elsewhere(names: list[str]) -> None:
    columns = ColumnNames({name: name for name in names})
    for name in names:
        assert columns.get(name) == name
    if not case_variants_in(names):
        assert [columns.get(name.swapcase()) for name in names] == names
    elif "CITY" not in names:
        assert columns.get("CITY") is None


# the columns of files


def naive_union(segments: list[list[Columns]]) -> dict[str, str]:
    """Return the columns as the decision says them: by name, or by folded name."""
    own = [{name for columns in one for name, _ in columns} for one in segments]
    exact = any(case_variants_in(names) for names in own)
    found: dict[str, str] = {}
    for one in segments:
        for columns in one:
            for name, type_ in columns:
                key = name if exact else name.lower()
                found[key] = wider(found.get(key, type_), type_)
    return found


@given(st.lists(st.lists(COLUMNS, min_size=1, max_size=3), min_size=1, max_size=4))
def test_names_are_exact_in_a_datasource_once_a_segment_has_twins(
    segments: list[list[Columns]],
) -> None:
    files = [
        table_file(columns, str(number)) for number, one in enumerate(segments) for columns in one
    ]
    found = union_columns(files)
    wanted = naive_union(segments)
    is_exact = bool(case_variants_in(name for name, _ in found))
    assert {name if is_exact else name.lower(): type_ for name, type_ in found} == wanted
    known = KnownColumns()
    assert known.of("trips", files) == known.of("trips", list(files)) == found
    assert known.of("trips", files[:1]) == union_columns(files[:1])
    known.keep({"others"})
    assert known.of("trips", files) == found


@given(st.lists(st.lists(COLUMNS, min_size=1, max_size=3), min_size=1, max_size=4))
def test_to_merge_the_files_of_a_segment_changes_no_column(segments: list[list[Columns]]) -> None:
    schema = found_schema()
    before = [
        table_file(columns, str(number)) for number, one in enumerate(segments) for columns in one
    ]
    after = []
    for one in segments:
        made = output_columns(united(schema, [data_file(columns) for columns in one]))
        after.append(table_file(made))
    assert [name for name, _ in union_columns(after)] == [name for name, _ in union_columns(before)]
    # A number that becomes text on the way is text either way.
    assert dict(union_columns(after)) == dict(union_columns(before))


@given(st.lists(COLUMNS, min_size=1, max_size=5))
def test_files_are_united_in_any_order_by_exact_names(files: list[Columns]) -> None:
    schema = found_schema()
    given_ = [data_file(columns) for columns in files]
    made = output_columns(united(schema, given_))
    assert dict(made) == dict(output_columns(united(schema, given_[::-1])))
    assert {name for name, _ in made} == {name for columns in files for name, _ in columns}
    assert unlike([replace(one, columns=made) for one in given_], made) == []


def test_a_column_whose_case_changed_is_one_until_a_segment_has_both() -> None:
    time = ("__time", "timestamp")
    old = table_file((time, ("City", "string")))
    new = table_file((time, ("city", "string")))
    assert union_columns([old, new]) == (time, ("City", "string"))
    both = (time, ("City", "string"), ("city", "string"))
    assert union_columns([old, new, table_file(both)]) == both
    running = [replace(one, part_of="task 1") for one in (old, new)]
    assert union_columns(running) == both
    apart = [replace(old, part_of="task 1"), replace(new, part_of="task 2")]
    assert union_columns(apart) == (time, ("City", "string"))


def test_files_that_become_one_segment_are_told_to_other_hosts() -> None:
    file = table_file((("__time", "timestamp"),), "task sequence day")
    assert TableFile.from_json(file.to_json()) == file
    old = {name: value for name, value in file.to_json().items() if name != "partOf"}
    assert TableFile.from_json(old) == replace(file, part_of="")


# specs


def test_listed_columns_may_differ_in_case_alone() -> None:
    schema = parse_data_schema(
        {
            "dataSource": "trips",
            "timestampSpec": {"column": "at", "format": "iso"},
            "dimensionsSpec": {"dimensions": ["City", "city"]},
            "metricsSpec": [{"type": "longSum", "name": "CITY", "fieldName": "n"}],
        }
    )
    assert schema.has_exact_names
    assert [name for name, _ in row_shape(schema).fields] == ["City", "city", "n"]


def test_without_twins_the_fields_of_expressions_fold_case() -> None:
    spec: dict[str, object] = {
        "dataSource": "trips",
        "timestampSpec": {"column": "at", "format": "iso"},
        "dimensionsSpec": {"dimensions": ["city", "upper"]},
        "transformSpec": {"transforms": [{"name": "upper", "expression": "upper(City)"}]},
    }
    schema = parse_data_schema(spec)
    assert not schema.has_exact_names
    assert [name for name, _ in row_shape(schema).fields] == ["city"]
    assert [name for name, _ in row_shape(schema, exact=True).fields] == ["city", "City"]
    twins = parse_data_schema(spec | {"dimensionsSpec": {"dimensions": ["city", "CITY", "upper"]}})
    assert [name for name, _ in row_shape(twins).fields] == ["city", "CITY", "City"]


@pytest.mark.parametrize("lenient", [False, True])
def test_columns_that_were_found_may_differ_in_case_alone(lenient: bool) -> None:
    names: Found = {"City": "string", "city": "long", "N": "long"}
    schema = found_schema(metricsSpec=[{"type": "longSum", "name": "sum", "fieldName": "n"}])
    assert not schema.has_exact_names
    made = discovered(schema, names, lenient=lenient)
    assert [d.name for d in made.dimensions] == ["City", "city", "N"]
    assert made.has_exact_names
    beside = discovered(schema, {"N": "long"}, lenient=lenient)
    assert beside.has_exact_names  # the sum is of another field
    assert not discovered(schema, {"M": "long"}, lenient=lenient).has_exact_names
