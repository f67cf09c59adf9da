"""EXTERN in statements: what is read of it, what is said of what is wrong, and what is shown."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest
from penstock.core.sql_text import tokens
from penstock.indexing.batch.batch_engine import SqlInput
from penstock.indexing.batch.job import sql_job
from penstock.indexing.batch.sql.ingest_statement import parse_ingest
from penstock.indexing.ports import TaskState
from penstock.indexing.secrets import MASK, masked
from penstock.indexing.specs.batch.batch_task_specs import parse_batch_task
from penstock.indexing.specs.batch.sql_ingest import SqlIngestSpec
from penstock.indexing.specs.inputs import InlineInput
from tests.indexing.batch_kit import BatchWorld, Cut

FORMAT = '{"type":"json"}'
COLUMNS = '[{"name":"a","type":"string"}]'
INLINE = '{"type":"inline","data":"x"}'
DATASOURCE = '{"type":"druid","dataSource":"w","interval":"2020/2021"}'
ARGUMENTS = f"'{INLINE}', '{FORMAT}', '{COLUMNS}'"


def statement(table: str) -> str:
    return f"INSERT INTO t SELECT *, 1 AS __time FROM {table} PARTITIONED BY DAY"


def parsed(table: str) -> SqlIngestSpec:
    return parse_ingest(statement(table))


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@pytest.mark.parametrize(
    "table",
    [
        f"TABLE(EXTERN({ARGUMENTS}))",
        f"table ( extern ( {ARGUMENTS} ) )",
        f"TABLE(EXTERN('{INLINE}', r'{FORMAT}')) (a VARCHAR)",
        f"TABLE(EXTERN('{INLINE}', '{FORMAT}')) EXTEND (\"a\" VARCHAR(20))",
        f"TABLE(EXTERN(inputFormat => '{FORMAT}', INPUTSOURCE => '{INLINE}')) EXTEND (a CHAR)",
        f"TABLE(EXTERN(signature=>'{COLUMNS}',inputFormat=>'{FORMAT}',inputSource=>'{INLINE}'))",
        f"TABLE(/* why */ EXTERN('{INLINE}', -- so\n '{FORMAT}', '{COLUMNS}'))",
        f"TABLE(EXTERN('{INLINE}', ' {FORMAT} ', '{COLUMNS.replace('string', 'STRING')}'))",
    ],
)
def test_all_forms_say_the_same(table: str) -> None:
    found = parsed(f"{table} AS x")
    assert found.externs == parsed(f"TABLE(EXTERN({ARGUMENTS})) AS x").externs
    assert " ".join(found.query.split()) == "SELECT *, 1 AS __time FROM __penstock_extern_1 AS x"


def test_types_of_columns_in_sql_and_in_json() -> None:
    in_sql = parsed(
        f"TABLE(EXTERN('{INLINE}', '{FORMAT}')) (a VARCHAR, b BIGINT, c DOUBLE, d FLOAT,"
        " e VARCHAR ARRAY, f BIGINT ARRAY, g DOUBLE ARRAY, h TYPE('COMPLEX<json>'))"
    )
    types = ["STRING", "long", "Double", "FLOAT", "ARRAY<STRING>", "array<long>", "ARRAY< DOUBLE >"]
    names = [
        {"name": name, "type": type_}
        for name, type_ in zip("abcdefgh", [*types, "COMPLEX<json>"], strict=True)
    ]
    in_json = parsed(f"TABLE(EXTERN('{INLINE}', '{FORMAT}', {quoted(json.dumps(names))}))")
    assert in_sql.externs == in_json.externs


def data_of(found: SqlIngestSpec) -> list[str]:
    sources = [table.input_source for table in found.externs]
    return [one.data for one in sources if isinstance(one, InlineInput)]


def test_each_table_has_its_name_and_equal_ones_have_one() -> None:
    other = ARGUMENTS.replace('"x"', '"y"')
    found = parse_ingest(
        f"REPLACE INTO t OVERWRITE ALL WITH c AS (SELECT * FROM TABLE(EXTERN({ARGUMENTS})))\n"
        f"SELECT *, 1 AS __time FROM c, TABLE(EXTERN(\n{other}\n)) AS y,\n(SELECT * FROM"
        f" TABLE(EXTERN({ARGUMENTS}))) z PARTITIONED BY ALL"
    )
    assert data_of(found) == ["x", "y"]
    names = [token.raw for token in tokens(found.query) if token.raw.startswith("__penstock")]
    assert [name[-1] for name in names] == ["1", "2", "1"]
    assert found.query.count("\n") == 4, "Spark names lines, so they stay"
    given = sql_job(found).input
    assert isinstance(given, SqlInput)
    assert given.externs == found.externs


@given(st.text(), st.sampled_from(["'", "r'"]))
def test_no_text_breaks_out_of_its_quotes(data: str, quote: str) -> None:
    source = json.dumps({"type": "inline", "data": data}, ensure_ascii=len(data) % 2 == 0)
    if quote == "r'":
        source = source.replace("'", "\\u0027")
    literal = f"r'{source}'" if quote == "r'" else quoted(source)
    found = parsed(f"TABLE(EXTERN({literal}, '{FORMAT}', '{COLUMNS}')) AS x")
    assert data_of(found) == [data]
    assert " ".join(found.query.split()) == "SELECT *, 1 AS __time FROM __penstock_extern_1 AS x"
    assert parse_batch_task(found.to_json()) == found


_PIECES = f"""TABLE ( EXTERN ( ) => , inputSource inputFormat signature '{INLINE}' '{FORMAT}'
'{COLUMNS}' EXTEND a VARCHAR BIGINT ARRAY TYPE 'COMPLEX<json>' ? AS x FROM SELECT * INTO 'it''s'
/*c*/ --c"""


@given(st.lists(st.sampled_from(_PIECES.split()), max_size=20))
def test_any_layout_is_a_table_or_is_refused(pieces: list[str]) -> None:
    try:
        found = parsed("\n".join(pieces))
    except InvalidRequest:
        return
    assert "inline" not in found.query.replace(" ", "") or not found.externs


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (
            f'TABLE(EXTERN(\'{{"type":"http","uris":["ftp://x"]}}\', \'{FORMAT}\', \'{COLUMNS}\'))',
            "EXTERN argument 1, inputSource.uris[0]: 'ftp://x' has the scheme ftp: it must be http",
        ),
        (
            f"TABLE(EXTERN('{{', '{FORMAT}', '{COLUMNS}'))",
            "EXTERN argument 1, inputSource: not JSON",
        ),
        (
            f"TABLE(EXTERN('{INLINE}', '[]', '{COLUMNS}'))",
            "argument 2, inputFormat: must be a JSON",
        ),
        (
            f"TABLE(EXTERN('{INLINE}', '{FORMAT}', '[]'))",
            "argument 3, signature: must not be empty",
        ),
        (f"TABLE(EXTERN('{INLINE}', '{FORMAT}', '{{}}'))", "argument 3, signature: must be a JSON"),
        (
            f'TABLE(EXTERN(\'{INLINE}\', \'{FORMAT}\', \'[{{"name":"a","type":"strin"}}]\'))',
            'signature[0].type: "strin" is not one of',
        ),
        (
            f"TABLE(EXTERN(signature=>'[{{}}]', inputSource=>'{INLINE}', inputFormat=>'{FORMAT}'))",
            "EXTERN argument signature, signature[0].name: is required",
        ),
        (
            f"TABLE(EXTERN('{DATASOURCE}', '{FORMAT}', '{COLUMNS}'))",
            "write FROM w, without EXTERN",
        ),
        (
            f"TABLE(EXTERN('{{\"type\":\"delta\"}}', '{FORMAT}', '{COLUMNS}'))",
            "inputSource.type: the type delta of Druid is not supported here",
        ),
        (
            f'TABLE(EXTERN(\'{{"type":"inline","type":"inline"}}\', \'{FORMAT}\', \'{COLUMNS}\'))',
            "inputSource.type: occurs more than once",
        ),
        (
            f'TABLE(EXTERN(\'{INLINE}\', \'{{"type":"csv","delimiter":"|"}}\', \'{COLUMNS}\'))',
            "inputFormat.delimiter: not supported here: csv values are separated by commas; use",
        ),
        (f"TABLE(EXTERN('{INLINE}', '{FORMAT}')) (a VARCHAR, A BIGINT)", "SQL ignores case"),
        (f"TABLE(EXTERN('{INLINE}', '{FORMAT}')) (a TIMESTAMP)", "CAST(name AS TIMESTAMP)"),
        (f"TABLE(EXTERN('{INLINE}', '{FORMAT}')) EXTEND a", "( is expected, not a, line 1"),
        (f"TABLE(EXTERN('{INLINE}', '{FORMAT}'))", "lacks its signature, line 1, column 48"),
        (
            f"TABLE(EXTERN(inputSource => '{INLINE}', signature => '{COLUMNS}'))",
            "EXTERN, inputFormat: is required: specify the format",
        ),
        (f"TABLE(EXTERN({ARGUMENTS})) (a VARCHAR)", "has its columns twice"),
        ("TABLE(EXTERN())", "lacks its inputSource"),
        (f"TABLE(EXTERN({ARGUMENTS}, 'x'))", "EXTERN takes 3 arguments"),
        (f"TABLE(EXTERN(inputFmt => '{FORMAT}'))", 'did you mean "inputFormat"?'),
        (f"TABLE(EXTERN('{INLINE}', inputFormat => '{FORMAT}'))", "either all by name or none"),
        ("TABLE(EXTERN(?, ?, ?))", "a task takes no parameters"),
        (f"EXTERN({ARGUMENTS})", "EXTERN must be inside TABLE(…), line 1, column 42"),
        (
            "TABLE(http(password => 'hush', uris => ARRAY['http://x/a'])) (a CHAR)",
            "HTTP is not supported, line 1, column 48: write FROM TABLE(EXTERN(",
        ),
        ("__penstock_extern_1", "is a name of Penstock's own"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(table: str, told: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parsed(table)
    assert told in str(caught.value)
    assert "line 1, column" in str(caught.value)


def test_tables_without_number_are_refused_before_each_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = " UNION ALL ".join([f"SELECT * FROM TABLE(EXTERN({ARGUMENTS}))"] * 501)
    monkeypatch.setattr("penstock.indexing.batch.sql.external_tables.read_model", None)
    with pytest.raises(InvalidRequest, match="EXTERN is called 501 times"):
        parse_ingest(f"INSERT INTO t {many} PARTITIONED BY DAY")


def test_rows_are_not_exported_by_a_statement() -> None:
    with pytest.raises(InvalidRequest, match="penstock sql --format csv"):
        parse_ingest("INSERT INTO EXTERN(local(exportPath => '/x')) AS CSV SELECT 1")


def test_the_word_is_free_elsewhere() -> None:
    found = parsed('(SELECT extern, "EXTERN" FROM extern AS extern (a, b))')
    assert not found.externs


def test_secrets_are_shown_nowhere() -> None:
    source = {
        "type": "http",
        "uris": ["https://example.org/a.json?sig=hush"],
        "httpAuthenticationUsername": "ann",
        "httpAuthenticationPassword": "hu'sh",
        "requestHeaders": {"X-Auth": "hush"},
    }
    table = f"TABLE(EXTERN({quoted(json.dumps(source))}, '{FORMAT}', '{COLUMNS}'))"
    found = parsed(f"{table} AS a, TABLE(EXTERN({ARGUMENTS})) AS b")
    shown = json.dumps(masked(found.to_json()))
    assert "hu" not in shown.replace("httpAuth", "").replace("huge", "")
    assert found.sql.count(MASK) == 3
    assert found.sql.endswith(f"AS a, TABLE(EXTERN({ARGUMENTS})) AS b PARTITIONED BY DAY")
    kept = found.to_json()["externs"]
    assert "hu'sh" in json.dumps(kept)
    # What was shown does not become a secret.
    with pytest.raises(InvalidRequest, match=r"EXTERN argument 1, inputSource\."):
        parse_ingest(found.sql)
    wrong = table.replace('"https:', '"ftp:')
    with pytest.raises(InvalidRequest) as caught:
        parsed(f"{wrong} garbage 'hush'")
    assert "hu'sh" not in str(caught.value)


def test_the_context_says_how_many_rows_may_be_bad() -> None:
    sql = statement(f"TABLE(EXTERN({ARGUMENTS}))")
    assert sql_job(parse_ingest(sql)).parse_errors_max == 0
    assert sql_job(parse_ingest(sql, context={"maxParseExceptions": 3})).parse_errors_max == 3
    any_number = parse_ingest(sql, context={"maxParseExceptions": -1})
    assert sql_job(any_number).parse_errors_max is None
    with pytest.raises(InvalidRequest, match="maxParseExceptions"):
        parse_ingest(sql, context={"maxParseExceptions": -2})


# The task


@pytest.mark.parametrize("verb", ["INSERT INTO d", "REPLACE INTO d OVERWRITE ALL"])
@pytest.mark.parametrize("moment", ["before segmentTransactional", "after segmentTransactional"])
def test_files_that_were_read_are_not_read_again_by_a_new_process(
    world: BatchWorld, verb: str, moment: str
) -> None:
    rows = world.folder / "rows.json"
    rows.write_text('{"__time":"2026-01-01","a":"x","n":1}\n')
    source = json.dumps({"type": "local", "files": [str(rows)]})
    table = f"TABLE(EXTERN({quoted(source)}, '{FORMAT}')) (a VARCHAR, n BIGINT)"
    task = parse_ingest(f"{verb} SELECT *, 1 AS __time FROM {table} PARTITIONED BY DAY").to_json()
    spec = world.add({name: value for name, value in task.items() if name != "id"})

    def cut(seen: str) -> None:
        if seen.startswith(moment):
            raise Cut

    world.at = cut
    with pytest.raises(Cut):
        world.make(spec).run()
    world.at = lambda _kind: None
    rows.unlink()
    assert world.make(spec).run().state is TaskState.SUCCESS
    assert len(world.engine.writes) == 1
    assert len(world.visible()) == 1
