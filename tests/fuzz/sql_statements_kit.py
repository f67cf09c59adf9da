"""Random SQL: queries of Spark's grammar, and mutations of attacks on the host.

The generator is seeded: a number gives the same statement in every run. Statements name the
canaries that `sql_canaries_kit` watches.
"""

# ruff: noqa: E501 - statements are read better in one line

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

FUNCTIONS: Final = [
    "upper",
    "lower",
    "concat",
    "abs",
    "count",
    "sum",
    "max",
    "min",
    "avg",
    "coalesce",
    "length",
    "explode",
    "array",
    "map",
    "from_json",
    "to_json",
    "named_struct",
    "size",
    "split",
    "transform",
    "filter",
    "aggregate",
    "date_trunc",
    "current_timestamp",
    "row_number",
    "rank",
    "stack",
    "json_tuple",
    "inline",
    "posexplode",
    "version",
    "current_user",
    "current_catalog",
    "spark_partition_id",
    "session_user",
    "uuid",
    "rand",
    "reflect",
    "java_method",
    "try_reflect",
    "input_file_name",
    "from_xml",
    "schema_of_xml",
    "to_xml",
    "xpath",
    "xpath_string",
    "from_avro",
    "from_protobuf",
    "identifier",
    "raise_error",
    "hex",
    "unhex",
    "base64",
    "unbase64",
    "decode",
    "encode",
    "repeat",
    "sequence",
    "monotonically_increasing_id",
    "builtin.upper",
    "system.builtin.reflect",
    "python_worker_logs",
    "range",
    "collations",
    "sql_keywords",
    "try_cast",
    "read_files",
    "http_get",
    "load_file",
    "parse_url",
    "url_decode",
    "collate",
    "variant_get",
    "parse_json",
]
TYPES: Final = ("INT", "STRING", "DOUBLE", "BOOLEAN", "TIMESTAMP", "BIGINT", "DECIMAL(9, 2)")
NAMES: Final = ("n", "s", "__time", '"n"', "`s`", "canary.n", "t.n", "_metadata", "x", '"a b"')


@dataclass(frozen=True, slots=True)
class Canaries:
    """Names of what no statement may reach.

    Attributes:
        file: A file with a secret.
        script: A program that leaves a mark when it runs.
        output: A folder that does not exist.
        variable: An environment variable of Spark's with a secret.
        url: Where a server counts requests.
        module: A module of Python that leaves a mark when it is imported.
    """

    file: str
    script: str
    output: str
    variable: str
    url: str
    module: str


def attacks(canaries: Canaries) -> list[tuple[str, tuple[str, ...]]]:
    """Return statements that reach a canary where nothing stops them, with their parameters."""
    c = canaries
    scripts = [
        "SELECT TRANSFORM(1) USING {} AS (x string)",
        "SELECT TRANSFORM(n, s) USING {} FROM canary",
        "SELECT TRANSFORM(n) ROW FORMAT DELIMITED FIELDS TERMINATED BY ',' USING {} AS (x) FROM canary",
        "FROM canary MAP n USING {} AS x",
        "FROM (FROM canary SELECT n) REDUCE n USING {} AS (x INT)",
        "FROM canary SELECT TRANSFORM(n) USING {} AS x",
        "SELECT * FROM (SELECT TRANSFORM(1) USING {} AS (x string))",
        "SELECT (SELECT TRANSFORM(1) USING {} AS (x string))",
        "WITH t AS (SELECT TRANSFORM(1) USING {} AS (x string)) SELECT * FROM t",
        "SELECT 1 WHERE 1 IN (SELECT TRANSFORM(1) USING {} AS (x int))",
        "VALUES (1) UNION ALL (MAP 1 USING {} AS x)",
        "SELECT * FROM canary, LATERAL (SELECT TRANSFORM(n) USING {} AS (x int))",
        "FROM canary |> SELECT TRANSFORM(n) USING {} AS x",
        "SELECT EXISTS (REDUCE 1 USING {} AS x)",
    ]
    text = f"'{c.script}'"
    found: list[tuple[str, tuple[str, ...]]]
    found = [(one.format(text), ()) for one in scripts]
    found += [(one.format("?"), (c.script,)) for one in scripts]
    found += [(one.format(f'"{c.script}"'), ()) for one in scripts[:4]]
    found += [(one.format(f"r{text}"), ()) for one in scripts[:4]]
    found += [(one.format(":x"), ()) for one in scripts[:2]]
    plain = [
        f"SELECT '${{env:{c.variable}}}'",
        f'SELECT "${{env:{c.variable}}}"',
        f"SELECT 1 AS `${{env:{c.variable}}}`",
        f"SELECT '${{{c.variable}}}', '${{spark:spark.app.name}}', '${{hiveconf:x}}'",
        f"SELECT 'x' --${{system:line.separator}} UNION ALL SELECT TRANSFORM(1) USING {text} AS (x string)",
        f"SELECT 'x' --${{system:line.separator}} UNION ALL SELECT '${{env:{c.variable}}}'",
        f"SELECT 1 /*${{env:{c.variable}}}*/",
        f"INSERT OVERWRITE DIRECTORY '{c.output}' USING csv SELECT 1",
        f"INSERT OVERWRITE LOCAL DIRECTORY '{c.output}' USING parquet SELECT 1",
        f"FROM canary INSERT OVERWRITE DIRECTORY '{c.output}' USING csv SELECT n",
        f"WITH t AS (SELECT 1 a) FROM t INSERT OVERWRITE DIRECTORY '{c.output}' USING csv SELECT a",
        f"CREATE TABLE forged USING csv LOCATION '{c.output}' AS SELECT 1 a",
        "CREATE OR REPLACE TEMPORARY VIEW canary AS SELECT 666 AS n, 'forged' AS s",
        "CREATE OR REPLACE TEMP VIEW forged AS SELECT 1",
        f"CREATE TEMPORARY VIEW forged USING csv OPTIONS (path '{c.file}')",
        "CREATE OR REPLACE GLOBAL TEMPORARY VIEW forged AS SELECT 1",
        "ALTER VIEW canary AS SELECT 666 AS n, 'forged' AS s",
        "DROP VIEW canary",
        "SET spark.sql.ansi.enabled = false",
        "SET spark.penstock.canary = reached",
        "SET spark.sql.variable.substitute = true",
        "RESET",
        "SET TIME ZONE 'Asia/Tokyo'",
        "SET VAR x = 1",
        "DECLARE OR REPLACE VARIABLE x INT DEFAULT 1",
        "USE global_temp",
        f"ADD JAR '{c.file}'",
        f"ADD FILE '{c.file}'",
        "LIST FILES",
        "CACHE TABLE canary",
        "CACHE TABLE forged OPTIONS ('storageLevel' 'DISK_ONLY') AS SELECT 1",
        "UNCACHE TABLE canary",
        "REFRESH TABLE canary",
        f"REFRESH '{c.file}'",
        "ANALYZE TABLE canary COMPUTE STATISTICS",
        "CREATE TEMPORARY FUNCTION forged AS 'java.lang.Runtime'",
        "CREATE TEMPORARY FUNCTION forged() RETURNS INT RETURN 1",
        "EXECUTE IMMEDIATE 'CREATE OR REPLACE TEMP VIEW canary AS SELECT 666 AS n, 1 AS s'",
        f"EXECUTE IMMEDIATE 'SELECT TRANSFORM(1) USING ? AS (x string)' USING {text}",
        "BEGIN CREATE OR REPLACE TEMP VIEW canary AS SELECT 666 AS n, 1 AS s; END",
        "BEGIN DECLARE x INT DEFAULT 1; SET x = 2; SELECT x; END",
        f"SELECT * FROM csv.`{c.file}`",
        f"SELECT * FROM text.`{c.file}`",
        f'SELECT * FROM "text"."{c.file}"',
        f"SELECT * FROM binaryFile.`file:{c.file}`",
        f"SELECT * FROM parquet.`{c.url}`",
        f"TABLE text.`{c.file}`",
        f"SELECT * FROM IDENTIFIER('text.`{c.file}`')",
        f"SELECT * FROM IDENTIFIER('te' || 'xt.`{c.file}`')",
        f"SELECT reflect('java.lang.System', 'getenv', '{c.variable}')",
        f"SELECT java_method('java.lang.System', 'getenv', '{c.variable}')",
        f"SELECT try_reflect('java.lang.System', 'getenv', '{c.variable}')",
        f"SELECT system.builtin.reflect('java.lang.System', 'getenv', '{c.variable}')",
        f"SELECT `reflect` /* */ ('java.lang.System', 'getenv', '{c.variable}')",
        f"SELECT IDENTIFIER('reflect')('java.lang.System', 'getenv', '{c.variable}')",
        f"SELECT from_xml('<a><b>1</b></a>', 'b INT', map('rowValidationXSDPath', '{c.url}'))",
        (
            "SELECT (SELECT max(to_json(from_xml('<a><b>1</b></a>', 'b INT',"
            f" map('rowValidationXSDPath', '{c.url}')))) FROM canary) AS x FROM canary"
        ),
        (
            "SELECT n FROM canary WHERE EXISTS (SELECT 1 FROM canary WHERE s = to_json(from_xml("
            f"'<a><b>1</b></a>', 'b INT', map('rowValidationXSDPath', '{c.url}'))))"
        ),
        f"SELECT from_xml('<a/>', 'b INT', map('rowValidation' 'XSDPath', '{c.url}'))",
        f"SELECT from_xml('<a/>', 'b INT', map(concat('rowValidation', 'XSDPath'), '{c.url}'))",
        f"SELECT schema_of_xml('<a/>', map('rowValidationXSDPath', '{c.url}'))",
        *(f"SELECT from_json('{{}}', {one}).a" for one in _quoted_texts(default_of_schema(c))),
        *(f"SELECT from_json('{{}}', {one})" for one in _quoted_texts(type_of_schema(c))),
        f"SELECT from_csv('1', {_text(default_of_schema(c))})",
        f"SELECT from_xml('<a></a>', {_text(default_of_schema(c))}, map('rowTag', 'a'))",
        f"SELECT system.builtin.from_json('{{}}', {_text(default_of_schema(c))}) FROM canary",
        f"SELECT from_csv('1', {_text(type_of_schema(c))})",
        f"SELECT variant_get(parse_json('{{}}'), '$', {_text(default_of_schema(c))})",
        f"SELECT try_variant_get(parse_json('{{}}'), '$', {_text(type_of_schema(c))})",
        f"EXPLAIN SELECT from_json('{{}}', {_text(default_of_schema(c))}).a",
        f"DESCRIBE QUERY SELECT from_json('{{}}', {_text(type_of_schema(c))})",
        f"SELECT xpath_string('<!DOCTYPE a SYSTEM \"{c.url}\"><a>1</a>', 'a')",
        f"SELECT xpath('<!DOCTYPE a SYSTEM \"file:{c.file}\"><a>1</a>', 'a')",
        f"SELECT from_avro(unhex('00'), '\"int\"', map('avroSchemaUrl', '{c.url}'))",
        f"SELECT from_protobuf(unhex('00'), 'M', '{c.file}', map())",
        "SELECT input_file_name() FROM canary",
        "SELECT _metadata.file_path FROM canary",
        "SELECT _metadata FROM canary",
        "EXPLAIN EXTENDED SELECT * FROM canary",
        "EXPLAIN FORMATTED SELECT n FROM canary WHERE n > 1",
        "EXPLAIN COST SELECT count(*) FROM canary",
        "DESCRIBE EXTENDED canary",
        "DESCRIBE EXTENDED EXTENDED EXTENDED canary AS JSON",
        "DESCRIBE DATABASE EXTENDED default",
        "SHOW TABLE EXTENDED LIKE '*'",
        "SHOW CREATE TABLE canary",
        "SHOW TBLPROPERTIES canary",
        "SELECT * FROM python_worker_logs()",
        "SELECT * FROM range(3) AS r(n), canary",
        f"LOAD DATA LOCAL INPATH '{c.file}' INTO TABLE canary",
        f"COPY INTO canary FROM '{c.file}'",
        "CALL system.rollback()",
        "MERGE INTO canary USING canary ON true WHEN MATCHED THEN DELETE",
        "DELETE FROM canary",
        "TRUNCATE TABLE canary",
    ]
    schemas = (default_of_schema(c), type_of_schema(c))
    found += [("SELECT from_json('{}', ?)", (one,)) for one in schemas]
    found += [("SELECT from_json('{}', ?).a FROM canary", (one,)) for one in schemas]
    return found + [(one, ()) for one in plain]


def computed_schemas(canaries: Canaries) -> list[tuple[str, tuple[str, ...]]]:
    """Return attacks by schemas that Spark computes, which the check of plans does not see."""
    schema = default_of_schema(canaries)
    first, last = (_text(part) for part in schema.split("XISTS", 1))
    return [
        (f"SELECT from_json('{{}}', {one}).a", ())
        for one in (
            f"concat({first}, 'XISTS', {last})",
            f"{first} || 'XISTS' || {last}",
            f"CAST(X'{schema.encode().hex()}' AS STRING)",
        )
    ]


def default_of_schema(canaries: Canaries) -> str:
    """Return a schema as JSON, whose default value opens the URL."""
    options = f"map('rowValidationXSDPath', '{canaries.url}')"
    default = f"to_json(from_xml('<a><b>1</b></a>', 'b INT', {options}))"
    return _schema("string", {"EXISTS_DEFAULT": default})


def type_of_schema(canaries: Canaries) -> str:
    """Return a schema as JSON, whose type makes PySpark import the module."""
    python = {"pyClass": f"{canaries.module}.X", "serializedClass": "x", "sqlType": "string"}
    return _schema({"type": "udt", **python}, {})


def _schema(kind: object, metadata: object) -> str:
    field = {"name": "a", "type": kind, "nullable": True, "metadata": metadata}
    return json.dumps({"type": "struct", "fields": [field]}, separators=(",", ":"))


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def _quoted_texts(value: str) -> list[str]:
    """Return ways to write a text of SQL that begins with a brace."""
    text = _text(value)
    at = text.index("XISTS") if "XISTS" in text else text.index("udt")
    return [
        text,
        text.replace("''", "\\'"),
        f"{text[:at]}' '{text[at:]}",
        f"'\\u007b{text[2:]}",
        f"'\\173{text[2:]}",
        f"' {text[1:]}",
        f"{text[:at]}\\\\u{ord(text[at]):04x}{text[at + 1 :]}",
    ]


def statement(seed: int, canaries: Canaries) -> tuple[str, tuple[object, ...]]:
    """Return the statement of a number, and its parameters."""
    return _Writer(random.Random(seed), canaries).statement()


def ingestion(seed: int, canaries: Canaries) -> str:
    """Return the statement of a number that writes a datasource, as SQL tasks run it."""
    return _Writer(random.Random(seed), canaries).ingestion()


def flow_query(seed: int, canaries: Canaries) -> str:
    """Return the query of a number for SparkSQL in a flow."""
    return _Writer(random.Random(seed), canaries).unbound()


def expression(seed: int, canaries: Canaries) -> str:
    """Return the expression of a number, for a transform of a spec."""
    return _Writer(random.Random(seed), canaries).expression()


def ingestion_of(query: str) -> str:
    """Return the plainest statement that writes what a query reads."""
    return f"INSERT INTO t SELECT 0 AS __time, * FROM (\n{query}\n) PARTITIONED BY ALL"


class _Writer:
    def __init__(self, rng: random.Random, canaries: Canaries) -> None:
        self._rng = rng
        self._c = canaries
        self._attacks = attacks(canaries)
        self._parameters: list[object] = []

    def statement(self) -> tuple[str, tuple[object, ...]]:
        rng = self._rng
        if rng.random() < 0.3:
            text = self._query(3)
            if rng.random() < 0.15:
                text = f"{rng.choice(('EXPLAIN', 'EXPLAIN EXTENDED', 'DESCRIBE QUERY'))} {text}"
        else:
            text, given = rng.choice(self._attacks)
            self._parameters += given
        for _ in range(rng.choice((0, 0, 1, 1, 2, 3, 5))):
            text = rng.choice(self._mutations())(text)
        return text[:20_000], tuple(self._parameters)

    def unbound(self) -> str:
        """Return a statement whose parameters stand in it."""
        return self._filled(self.statement()[0])

    def ingestion(self) -> str:
        rng = self._rng
        query = self.unbound()
        form = rng.choice(
            (
                "{}", "SELECT 0 AS __time, * FROM ({})", "SELECT 0 AS __time, * FROM ({}) AS t", "WITH t AS ({}) SELECT 0 AS __time, * FROM t",
                "SELECT 0 AS __time UNION ALL {}", "SELECT 0 AS __time WHERE EXISTS ({})", "SELECT 0 AS __time, ({}) AS x",
                "(SELECT 0 AS __time) UNION ALL ({})", "FROM ({}) |> EXTEND 0 AS __time",
            )
        )  # fmt: skip
        start = rng.choice(
            (
                "INSERT INTO t",
                "REPLACE INTO t OVERWRITE ALL",
                'INSERT INTO "a b"',
                "INSERT INTO canary",
            )
        )
        end = rng.choice(("ALL", "DAY", "ALL CLUSTERED BY n", "TIME_FLOOR(__time, 'PT1H')"))
        text = f"{start} {form.replace('{}', query)} PARTITIONED BY {end}"
        if rng.random() < 0.2:
            text = rng.choice(self._mutations())(text)
        return self._filled(text)[:20_000]

    def expression(self) -> str:
        rng = self._rng
        if rng.random() < 0.5:
            text = self._value(3)
        else:
            text, given = rng.choice(self._attacks)
            self._parameters += given
            call = re.fullmatch(r"SELECT (\w+\(.*\)|['\"].*['\"])", text, re.DOTALL)
            text = call[1] if call else f"({text})"
        for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
            text = rng.choice(self._mutations())(text)
        return self._filled(text)[:20_000]

    def _filled(self, text: str) -> str:
        """Put the parameters into a text, as far as it has places for them."""
        for value in self._parameters:
            shown = "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)
            text = text.replace("?", "NULL" if value is None else shown, 1)
        self._parameters.clear()
        return text

    def _mutations(self) -> Sequence[Callable[[str], str]]:
        return (
            self._commented,
            self._cased,
            self._spaced,
            self._wrapped,
            self._spliced,
            self._dropped,
            self._doubled,
            self._bracketed,
            self._bound,
            self._substituted,
            self._escaped,
            self._quoted,
        )

    def _parts(self, text: str) -> list[str]:
        return re.findall(r"\s+|\w+|'[^']*'|.", text, re.DOTALL) or [""]

    def _commented(self, text: str) -> str:
        parts = self._parts(text)
        comment = self._rng.choice(
            (
                "/* */",
                "/*+ x */",
                "/* /* */ */",
                "--\n",
                "-- \\\n",
                "/**/",
                "/* /*+ */",
                "--\r\n",
                "/*'*/",
                "-- '\n",
            )
        )
        parts.insert(self._rng.randrange(len(parts) + 1), comment)
        return "".join(parts)

    def _cased(self, text: str) -> str:
        return (
            "".join(self._rng.choice((one.upper(), one.lower())) for one in text)
            if self._rng.random() < 0.3
            else text.swapcase()
        )

    def _spaced(self, text: str) -> str:
        space = self._rng.choice(("\t", "\n", "\r\n", "\f", "\v", "\u00a0", "\u2003", "\x00", "  "))
        return text.replace(" ", space) if self._rng.random() < 0.5 else text.replace(" ", space, 1)

    def _wrapped(self, text: str) -> str:
        form = self._rng.choice(
            (
                "({})", "SELECT * FROM ({})", "SELECT * FROM ({}) AS t", "WITH t AS ({}) SELECT * FROM t",
                "SELECT 1 UNION ALL {}", "({}) UNION ALL (SELECT 1)", "SELECT ({})", "SELECT EXISTS ({})",
                "EXPLAIN {}", "EXPLAIN EXTENDED {}", "DESCRIBE QUERY {}", "DESC {}", "SELECT 1; {}", "{};",
                "SELECT 1) {} (", "SELECT 1\n) ; {}", "BEGIN {}; END", "EXECUTE IMMEDIATE '{}'", "WITH x AS (SELECT 1) {}",
                "SELECT 1 WHERE 1 IN ({})", "SHOW TABLES {}", "SELECT '{}'", 'SELECT "{}"', "{} -- ", "/*+ {} */ SELECT 1",
                "SELECT /*+ {} */ 1", "VALUES ({})", "TABLE ({})", "SELECT * FROM canary JOIN ({}) USING (n)", "{} |> LIMIT 1",
                "SELECT * FROM range(0) WHERE EXISTS ({})", "SELECT ')' , ({}", "SELECT 1 AS `)` ) ({}",
            )
        )  # fmt: skip
        return form.replace("{}", text)

    def _spliced(self, text: str) -> str:
        other, given = self._rng.choice(self._attacks)
        self._parameters += given
        parts, others = self._parts(text), self._parts(other)
        return "".join(
            parts[: self._rng.randrange(len(parts) + 1)]
            + others[self._rng.randrange(len(others)) :]
        )

    def _dropped(self, text: str) -> str:
        parts = self._parts(text)
        del parts[self._rng.randrange(len(parts))]
        return "".join(parts)

    def _doubled(self, text: str) -> str:
        parts = self._parts(text)
        at = self._rng.randrange(len(parts))
        return "".join([*parts[: at + 1], *parts[at:]])

    def _bracketed(self, text: str) -> str:
        parts = self._parts(text)
        for mark in self._rng.choice(
            ("()", ")(", "(", ")", ";", "\\", "'", '"', "`", "$", "''", '""', "[", "{}", "?", ":")
        ):
            parts.insert(self._rng.randrange(len(parts) + 1), mark)
        return "".join(parts)

    def _bound(self, text: str) -> str:
        texts = list(re.finditer(r"'[^']*'", text))
        if not texts:
            return text
        found = self._rng.choice(texts)
        self._parameters.append(found.group()[1:-1])
        return text[: found.start()] + "?" + text[found.end() :]

    def _substituted(self, text: str) -> str:
        parts = self._parts(text)
        variable = self._rng.choice(
            (
                f"env:{self._c.variable}",
                "system:line.separator",
                "system:user.dir",
                "spark.app.name",
                "hivevar:x",
                f"env:{self._c.variable[:3]}${{x}}",
            )
        )
        form = self._rng.choice(
            ("${{{}}}", "$ {{{}}}", "${{{}", "$${{{}}}", "\\${{{}}}", "'${{{}}}'", "$\\{{{}}}")
        )
        parts.insert(self._rng.randrange(len(parts) + 1), form.format(variable))
        return "".join(parts)

    def _escaped(self, text: str) -> str:
        letters = [at for at, one in enumerate(text) if one.isalpha()]
        if not letters:
            return text
        at = self._rng.choice(letters)
        form = self._rng.choice((r"\u{:04x}", r"\{:03o}", "U&{:c}", "%{:02x}"))
        return text[:at] + form.format(ord(text[at])) + text[at + 1 :]

    def _quoted(self, text: str) -> str:
        words = list(re.finditer(r"\b[a-zA-Z_]+\b", text))
        if not words:
            return text
        found = self._rng.choice(words)
        mark = self._rng.choice("`\"'")
        return f"{text[: found.start()]}{mark}{found.group()}{mark}{text[found.end() :]}"

    # Spark's grammar of queries

    def _query(self, depth: int) -> str:
        rng = self._rng
        kind = rng.random()
        if depth <= 0 or kind < 0.5:
            return self._select(depth - 1)
        if kind < 0.6:
            mark = rng.choice(("UNION", "UNION ALL", "INTERSECT", "EXCEPT", "MINUS"))
            return f"{self._select(depth - 1)} {mark} {self._select(depth - 1)}"
        if kind < 0.7:
            words = rng.choice(("WITH", "WITH RECURSIVE"))
            return f"{words} t AS ({self._query(depth - 1)}) {self._select(depth - 1)}"
        if kind < 0.75:
            return f"VALUES ({self._value(depth)}), ({self._value(depth)})"
        if kind < 0.8:
            return rng.choice(("TABLE canary", "TABLE t", "FROM canary", "FROM canary SELECT n"))
        if kind < 0.9:
            steps = (
                "WHERE n > 1",
                "LIMIT 2",
                "EXTEND n + 1 AS m",
                "AGGREGATE count(*)",
                "ORDER BY n",
                "SET n = 1",
                "DROP s",
            )
            return f"FROM canary {' '.join('|> ' + one for one in rng.sample(steps, 2))}"
        return f"({self._query(depth - 1)})"

    def _select(self, depth: int) -> str:
        rng = self._rng
        items = ", ".join(
            rng.choice(("*", self._value(depth), f"{self._value(depth)} AS x"))
            for _ in range(rng.randint(1, 3))
        )
        text = f"SELECT {rng.choice(('', '', 'DISTINCT ', '/*+ REPARTITION(2) */ '))}{items}"
        if rng.random() < 0.8:
            text += f" FROM {self._relation(depth)}"
            if rng.random() < 0.2:
                text += " LATERAL VIEW OUTER explode(array(1, 2)) v AS w"
            if rng.random() < 0.4:
                text += f" WHERE {self._value(depth)} {rng.choice(('=', '<', 'LIKE', 'IS NOT NULL --', '<=>'))} {self._value(depth)}"
            if rng.random() < 0.2:
                text += f" GROUP BY {rng.choice(('n', 'ALL', 'ROLLUP (n)', 'GROUPING SETS ((n), ())', '1'))}"
        if rng.random() < 0.3:
            text += f" ORDER BY {rng.choice(('1', 'n DESC NULLS LAST', 'ALL'))}"
        if rng.random() < 0.3:
            text += f" LIMIT {rng.randint(0, 5)}"
        return text

    def _relation(self, depth: int) -> str:
        rng = self._rng
        simple = (
            "canary", "canary t", '"canary"', "`canary` AS t", "range(3)", "VALUES (1, 'a') AS t(n, s)", "explode(array(1, 2)) AS t(n)",
            f"text.`{self._c.file}`", "canary TABLESAMPLE (50 PERCENT)", "missing", "default.canary", "spark_catalog.default.canary",
            "IDENTIFIER('canary')", "STREAM canary", "canary VERSION AS OF 1", "TABLE(range(2))", "global_temp.canary", "sql_keywords()",
        )  # fmt: skip
        if depth <= 0 or rng.random() < 0.6:
            return rng.choice(simple)
        if rng.random() < 0.5:
            return f"({self._query(depth - 1)}) AS t"
        join = rng.choice(
            ("JOIN", "LEFT JOIN", "CROSS JOIN", "FULL OUTER JOIN", "LEFT SEMI JOIN", "NATURAL JOIN")
        )
        return f"{rng.choice(simple)} {join} {rng.choice(simple)} {rng.choice(('', 'USING (n)', 'ON true'))}"

    def _value(self, depth: int) -> str:
        rng = self._rng
        if depth <= 0 or rng.random() < 0.4:
            if rng.random() < 0.08:
                self._parameters.append(
                    rng.choice(("x", 1, None, 2.5, True, self._c.script, "a\n+- Foo"))
                )
                return "?"
            return rng.choice(
                (
                    *NAMES,
                    "1",
                    "'x'",
                    "NULL",
                    "1.5",
                    "TIMESTAMP '2013-01-01'",
                    "r'\\x'",
                    "X'00'",
                    "'a\n+- View'",
                    "current_date",
                )
            )
        kind = rng.random()
        if kind < 0.5:
            given = ", ".join(self._value(depth - 1) for _ in range(rng.randint(0, 3)))
            return f"{rng.choice(FUNCTIONS)}({given})"
        if kind < 0.6:
            return f"({self._value(depth - 1)} {rng.choice(('+', '-', '||', 'AND', '=', 'IN (1) OR'))} {self._value(depth - 1)})"
        if kind < 0.7:
            return f"CAST({self._value(depth - 1)} AS {rng.choice(TYPES)})"
        if kind < 0.8:
            return f"CASE WHEN {self._value(depth - 1)} THEN 1 ELSE {self._value(depth - 1)} END"
        if kind < 0.9:
            return f"({self._query(depth - 1)})"
        return f"sum(n) OVER (PARTITION BY {self._value(depth - 1)} ORDER BY n)"
