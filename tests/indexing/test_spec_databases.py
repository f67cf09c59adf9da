"""The input source `sql`: what a spec may say of a database, and what is never told of one."""

from __future__ import annotations

from typing import Any, NoReturn, cast
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue, TypeAdapter

from penstock.core.errors import InvalidRequest
from penstock.indexing.batch.batch_engine import ExternalInput
from penstock.indexing.batch.job import index_job
from penstock.indexing.batch.sql.ingest_statement import parse_ingest
from penstock.indexing.secrets import MASK, masked
from penstock.indexing.specs.batch.batch_task_specs import parse_batch_task
from penstock.indexing.specs.batch.index_parallel import IndexParallelSpec
from penstock.indexing.specs.errors import SpecError
from penstock.indexing.specs.inputs import DruidInput, InputSource
from penstock.indexing.specs.sources.databases import DatabaseInput, read_jdbc
from penstock.storage.databases.database_address import DatabaseAddress

URL = "jdbc:postgresql://db.example:5433/shop"
SOURCE = "spec.ioConfig.inputSource"
CONNECTOR = f"{SOURCE}.database.connectorConfig"


def source(**more: JsonValue) -> dict[str, JsonValue]:
    """An input; `more` is of its connector, but for what the input itself has."""
    own = {name: more.pop(name) for name in ("sqls", "foldCase", "hint") if name in more}
    kind = more.pop("type", "postgresql")
    connector = {"connectURI": URL, "user": "ann", "password": "hush", **more}
    database: JsonValue = {"type": kind, "connectorConfig": connector}
    return {
        "type": "sql",
        "database": database,
        "sqls": ["SELECT 1"],
        **cast("dict[str, Any]", own),
    }


def task(given_: JsonValue, format_: JsonValue = None) -> dict[str, JsonValue]:
    io: JsonValue = {"type": "index_parallel", "inputSource": given_, "inputFormat": format_}
    schema: JsonValue = {
        "dataSource": "d",
        "timestampSpec": {"column": "at"},
        "dimensionsSpec": {"dimensions": ["a"]},
        "granularitySpec": {"segmentGranularity": "DAY"},
    }
    return {"type": "index_parallel", "spec": {"dataSchema": schema, "ioConfig": io}}


def parsed(given_: JsonValue, format_: JsonValue = None) -> IndexParallelSpec:
    found = parse_batch_task(task(given_, format_))
    assert isinstance(found, IndexParallelSpec)
    return found


def _fail(_given: DruidInput) -> NoReturn:
    pytest.fail("it is read from a database")


def test_a_database_is_an_input_without_a_format() -> None:
    spec = parsed(source(sqls=["SELECT 1", "SELECT 2;"], foldCase=True))
    found = spec.io.input_source
    assert isinstance(found, DatabaseInput)
    assert (found.sqls, found.fold_case) == (("SELECT 1", "SELECT 2;"), True)
    address = found.database.connector_config.address
    assert (address.host, address.port, address.name) == ("db.example", 5433, "shop")
    assert parse_batch_task(spec.to_json()) == spec
    job = index_job(spec, _fail)
    assert job.input == ExternalInput(found, None)


def test_what_druid_writes_beside_it_changes_nothing() -> None:
    given_ = source(createTables=True, host="localhost", port=1527, dbcp=None)
    assert isinstance(given_["database"], dict)
    given_["database"]["driverClassName"] = "org.postgresql.Driver"
    secret: JsonValue = {"type": "default", "password": "hush"}
    assert parsed(given_) == parsed(source()) == parsed(source(password=secret))


def test_a_database_beside_files_leaves_them_their_format() -> None:
    both: JsonValue = {
        "type": "combining",
        "delegates": [source(), {"type": "inline", "data": "{}"}],
    }
    assert parsed(both, {"type": "json"}).io.input_format is not None
    with pytest.raises(SpecError, match="inputFormat: is required"):
        parsed(both)


def test_a_database_is_an_external_table_of_two_arguments() -> None:
    text = TypeAdapter(dict[str, JsonValue]).dump_json(source()).decode()
    columns = '[{"name": "a", "type": "string"}]'
    for table in (
        f"TABLE(EXTERN(inputSource => '{text}', signature => '{columns}'))",
        f"TABLE(EXTERN('{text}')) EXTEND (a VARCHAR)",
    ):
        spec = parse_ingest(f"INSERT INTO d SELECT *, 1 AS __time FROM {table} PARTITIONED BY DAY")
        (table_,) = spec.externs
        assert table_.input_format is None
        assert parse_batch_task(spec.to_json()) == spec
        assert "hush" not in spec.sql
    inline = '{"type": "inline", "data": "{}"}'
    with pytest.raises(InvalidRequest, match=r"inputFormat: is required: .*line 1"):
        parse_ingest(
            f"INSERT INTO d SELECT * FROM TABLE(EXTERN('{inline}')) EXTEND (a VARCHAR)"
            " PARTITIONED BY DAY"
        )


def test_a_password_is_shown_to_nobody_and_its_mark_is_none() -> None:
    secret: JsonValue = {"type": "default", "password": "hush"}
    both: JsonValue = {"type": "combining", "delegates": [source(), source(password=secret)]}
    for given_ in (task(source()), task(source(password=secret)), task(both)):
        assert "hush" not in str(masked(given_))
        assert MASK in str(masked(given_))
    variable: JsonValue = {"type": "environment", "variable": "PENSTOCK_INPUT_DB"}
    assert masked(task(source(password=variable))) == task(source(password=variable))
    with pytest.raises(SpecError, match=r"connectorConfig.password: .* write the secret again"):
        parsed(source(password=MASK))


@pytest.mark.parametrize(
    ("given_", "place", "told"),
    [
        (source(type="mysql"), f"{SOURCE}.database.type", "export the tables"),
        (source(type="oracle"), f"{SOURCE}.database.type", "postgresql"),
        (source(sqls=[]), f"{SOURCE}.sqls", "must not be empty"),
        (source(sqls=["SELECT 1", " ; "]), f"{SOURCE}.sqls[1]", "write a SELECT"),
        (source(sqls=["SELECT '\x00'"]), f"{SOURCE}.sqls[0]", "no zero byte"),
        (source(sqls=["SELECT '\ud800'"]), f"{SOURCE}.sqls[0]", "half of a surrogate pair"),
        (source(password="\ud800"), f"{CONNECTOR}.password", "not empty"),
        (source(sqls="SELECT 1"), f"{SOURCE}.sqls", "must be a list"),
        (source(foldCase="maybe"), f"{SOURCE}.foldCase", "true or false"),
        (source(hint="hush"), f"{SOURCE}.hint", "unknown field"),
        (source(password=""), f"{CONNECTOR}.password", "not empty"),
        (source(password=5), f"{CONNECTOR}.password", "must be text"),
        (source(password={"variable": "PGPASSWORD"}), f"{CONNECTOR}.password.variable", "PENST"),
        (source(user=""), f"{CONNECTOR}.user", "must not be empty"),
        (source(user=None), f"{CONNECTOR}.user", "must be text"),
        (source(pasword="hush"), f"{CONNECTOR}.pasword", 'did you mean "password"'),
        (source(dbcp={"maxTotal": 5}), f"{CONNECTOR}.dbcp", "leave it out"),
        (source(connectURI=["hush"]), f"{CONNECTOR}.connectURI", "must be text"),
    ],
)
def test_mistakes_have_their_place_and_no_secret(given_: JsonValue, place: str, told: str) -> None:
    with pytest.raises(SpecError) as caught:
        parsed(given_)
    found = {mistake.place: mistake.message for mistake in caught.value.mistakes}
    assert told in found[place]
    assert "hush" not in str(caught.value)


def test_a_format_is_left_out() -> None:
    with pytest.raises(SpecError, match=r"ioConfig.inputFormat: leave it out"):
        parsed(source(), {"type": "json"})


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://h/d", "write jdbc:postgresql://host:5432/database"),
        ("jdbc:mysql://h/d", "for PostgreSQL"),
        ("jdbc:postgresql:d", "with a host"),
        ("jdbc:postgresql:///d", "one host"),
        ("jdbc:postgresql://h1:5432,h2:5432/d", "host a name"),
        ("jdbc:postgresql://h1,h2/d", "one host"),
        ("jdbc:postgresql://%2Ftmp/d", "one host"),
        ("jdbc:postgresql://h:hush/d", "port must be a number"),
        ("jdbc:postgresql://h:0/d", "one host"),
        ("jdbc:postgresql://h", "name a database"),
        ("jdbc:postgresql://h/", "name a database"),
        ("jdbc:postgresql://h/d/e", "name a database"),
        ("jdbc:postgresql://h/d%00", "name a database"),
        ("jdbc:postgresql://h/\ud800", "name a database"),
        ("jdbc:postgresql://h/d#hush", "name a database"),
        ("jdbc:postgresql://ann:hush@h/d", "no user and no password"),
        ("jdbc:postgresql://h/d?user=hush", "must not contain user"),
        ("jdbc:postgresql://h/d?password=hush", "must not contain password"),
        (f"jdbc:postgresql://h/d?sslmode={MASK}", "the mark that Penstock shows"),
        ("jdbc:postgresql://h/d?sslmod=hush", 'did you mean "sslmode"'),
        ("jdbc:postgresql://h/d?sslkey=hush", "unsupported parameter 'sslkey'"),
        ("jdbc:postgresql://h/d?socketFactory=hush", "leave it out"),
        ("jdbc:postgresql://h/d?sslmode=hush", "one of disable, allow"),
        ("jdbc:postgresql://h/d?ssl=hush", "true or false"),
        ("jdbc:postgresql://h/d?connectTimeout=0", "seconds, 1 to 600"),
        ("jdbc:postgresql://h/d?connectTimeout=hush", "seconds, 1 to 600"),
        ("jdbc:postgresql://h/d?ssl=true&ssl=false", "twice"),
        ("jdbc:postgresql://h/d?currentSchema=", "a text of up to 255"),
    ],
)
def test_a_url_that_is_wrong_is_told_without_what_it_holds(url: str, told: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_jdbc(url)
    assert told in str(caught.value)
    with pytest.raises(SpecError, match=r"connectorConfig\.connectURI: ") as refused:
        parsed(source(connectURI=url))
    assert "hush" not in str(caught.value) + str(refused.value)


@pytest.mark.parametrize(
    ("query", "mode"),
    [
        ("", "prefer"),
        ("?ssl", "verify-full"),
        ("?ssl=true", "verify-full"),
        ("?ssl=false", "prefer"),
        ("?sslmode=require", "require"),
        ("?ssl=true&sslmode=verify-ca", "verify-ca"),
    ],
)
def test_tls_is_asked_for_as_the_jdbc_driver_does(query: str, mode: str) -> None:
    assert read_jdbc(f"jdbc:postgresql://h/d{query}").tls == mode


_TEXTS = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=20)


@given(
    host=st.sampled_from(["h", "db.example.org", "10.0.0.1", "::1", "2001:db8::7"]),
    port=st.integers(1, 65_535),
    name=_TEXTS.filter(lambda text: "/" not in text and MASK not in text),
    schema=st.none() | _TEXTS,
    timeout=st.integers(1, 600),
)
def test_a_url_says_what_was_meant(
    host: str, port: int, name: str, schema: str | None, timeout: int
) -> None:
    wanted = DatabaseAddress(host, port, name, search_path=schema, connect_timeout_s=timeout)
    more = {"connectTimeout": str(timeout)} | ({} if schema is None else {"currentSchema": schema})
    shown = f"[{host}]" if ":" in host else host
    url = f"jdbc:postgresql://{shown}:{port}/{quote(name, safe='')}?{urlencode(more)}"
    assert read_jdbc(url) == wanted
    TypeAdapter[InputSource](InputSource).validate_python(source(connectURI=url))


@given(st.text(max_size=60))
def test_any_url_is_read_or_refused(rest: str) -> None:
    try:
        found = read_jdbc(f"jdbc:postgresql://{rest}")
    except InvalidRequest:
        return
    assert found.host
    assert found.name
    assert 0 < found.port < 65_536
