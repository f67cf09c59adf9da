"""Row filters and masks: their text, and how the roles of one principal combine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.access.access_control import AccessControl
from penstock.core.access.access_folder import AccessFolder
from penstock.core.access.policy import Policy
from penstock.core.access.policy_file import parse_policy
from penstock.core.access.principal import Principal, PrincipalKind
from penstock.core.access.row_rules import (
    ALL_ROWS,
    RowRules,
    absent_columns,
    check_condition,
    check_mask,
    combined,
    folded_column,
)
from penstock.core.access.rules import Action, Resource, ResourceKind, Rule
from penstock.core.errors import Forbidden, InvalidRequest
from penstock.core.sql_text import tokens
from penstock.testing.clock import VirtualClock

FILE = """
[roles.eu]
allow = ["read datasource:clicks*"]
row_filters."clicks*" = "region = 'eu'"
[roles.us]
row_filters.clicks = "region = 'us' OR n > 1"
masks.clicks.Email = "hash"
[roles.no-bots]
row_filters."*" = "bot = 0"
row_filters."cl*ks" = "n < 9"
masks."*".email = "hash"
masks."*".card = "concat('…', right(card, 4))"
[roles.no-mail]
masks.clicks.email = "null"
[roles.whole]
row_filters.clicks = "true"
[roles.denied]
deny = ["* datasource:clicks"]
"""
CLICKS = Resource(ResourceKind.DATASOURCE, "clicks")


def policy() -> Policy:
    return parse_policy(FILE, "access.toml")


def rows(
    *roles: str, name: str = "clicks", scope: tuple[Rule, ...] | None = None
) -> RowRules | None:
    principal = Principal(PrincipalKind.USER, "alice", roles, scope)
    resource = Resource(ResourceKind.DATASOURCE, name)
    return policy().decide(principal, Action.READ, resource).rows


CARD = ("card", "concat('…', right(card, 4))")
EMAIL = ("email", "hash")
BOTS = "(bot = 0) AND (n < 9)"


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        # Without a filter.
        (("analyst",), ALL_ROWS),
        (("admin",), ALL_ROWS),
        # A filter of the role that allows, and of another one.
        (("eu",), RowRules("(region = 'eu')")),
        (("analyst", "eu"), RowRules("(region = 'eu')")),
        (("admin", "eu"), RowRules("(region = 'eu')")),
        # All filters of a role; a role gives no right by its filter.
        (("analyst", "no-bots"), RowRules(BOTS, (CARD, EMAIL))),
        (("us",), None),
        (("no-mail",), None),
        # The rows of each role.
        (
            ("eu", "us"),
            RowRules("((region = 'eu')) OR ((region = 'us' OR n > 1))", (EMAIL,)),
        ),
        (("eu", "whole"), RowRules("((region = 'eu')) OR ((true))")),
        # Two roles that mask alike, and differently.
        (
            ("analyst", "us", "no-bots"),
            RowRules(f"((region = 'us' OR n > 1)) OR ({BOTS})", (CARD, EMAIL)),
        ),
        (("analyst", "us", "no-mail"), RowRules("(region = 'us' OR n > 1)", (("email", "null"),))),
        # A deny rule, and a role that does not exist, win.
        (("eu", "denied"), None),
        (("eu", "gone"), None),
    ],
)
def test_roles_combine(roles: tuple[str, ...], expected: RowRules | None) -> None:
    assert rows(*roles) == expected


def test_other_datasources_have_other_rules() -> None:
    assert rows("analyst", "eu", name="clicks-2") == RowRules("(region = 'eu')")
    assert rows("analyst", "eu", "us", name="payments") == ALL_ROWS
    assert rows("eu", name="payments") is None
    # Names of datasources distinguish case.
    assert rows("analyst", "eu", name="Clicks") == ALL_ROWS


def test_names_of_columns_are_compared_in_any_case_and_normal_form() -> None:
    file = '[roles.a.masks.clicks]\n"E\u0301t\u00e9" = \'left("\u00e9te\u0301", 1)\''
    found = parse_policy(file, "access.toml").own_roles["a"].masks
    assert combined([], [found], "clicks").masks == (("\u00e9t\u00e9", found[0].mask),)
    assert folded_column("\u00c9TE\u0301") == "\u00e9t\u00e9"


def test_the_order_of_roles_matters_only_in_the_text() -> None:
    one, other = rows("us", "eu", "no-mail"), rows("no-mail", "eu", "us")
    assert one is not None
    assert other is not None
    assert one.masks == other.masks
    assert set(one.condition.split(" OR ")) == set(other.condition.split(" OR "))


def test_a_scope_narrows_and_gives_nothing() -> None:
    assert rows("eu", scope=(Rule.parse("read datasource:clicks"),)) == RowRules("(region = 'eu')")
    assert rows("eu", scope=(Rule.parse("read datasource:other"),)) is None


@pytest.mark.parametrize("kind", [PrincipalKind.OWNER, PrincipalKind.PROCESS])
def test_the_owner_and_processes_see_everything(kind: PrincipalKind) -> None:
    decision = policy().decide(Principal(kind, "x", ("eu",)), Action.READ, CLICKS)
    assert decision.rows == ALL_ROWS


def test_everything_but_sql_is_refused_for_a_limited_datasource() -> None:
    principal = Principal(PrincipalKind.USER, "alice", ("analyst", "eu"))
    decision = policy().decide(principal, Action.READ, CLICKS)
    assert not decision.allowed
    assert decision.reason == "only with SQL: rows where (region = 'eu')"
    other = Resource(ResourceKind.DATASOURCE, "payments")
    assert policy().decide(principal, Action.READ, other).allowed
    # Writing is another right, and topics are other resources.
    writer = Principal(PrincipalKind.USER, "bob", ("operator", "eu"))
    assert policy().decide(writer, Action.WRITE, CLICKS).allowed
    topic = Resource(ResourceKind.TOPIC, "clicks")
    assert policy().decide(writer, Action.READ, topic).allowed


def test_lists_are_filtered_for_an_admin_with_a_limit() -> None:
    assert policy().allows_everything(Principal(PrincipalKind.USER, "a", ("admin",)))
    for role in ("eu", "no-mail"):
        assert not policy().allows_everything(Principal(PrincipalKind.USER, "a", ("admin", role)))


def test_a_control_refuses_without_the_filter_and_keeps_the_old_file(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = AccessFolder(tmp_path_factory.mktemp("access"))
    control = AccessControl(folder.path, VirtualClock())
    folder.rules.write_text(FILE)
    folder.rules.chmod(0o600)
    control.refresh()
    principal = Principal(PrincipalKind.USER, "alice", ("eu",))
    with pytest.raises(Forbidden, match="only by SQL queries, because a row filter") as refused:
        control.require(principal, Action.READ, CLICKS)
    assert "region" not in str(refused.value)
    assert control.decide(principal, Action.READ, CLICKS).rows == RowRules("(region = 'eu')")
    folder.rules.write_text(FILE.replace("region = 'eu'", "region = (SELECT 1)"))
    control.refresh()
    assert "SELECT is not allowed" in " ".join(control.problems) or "a query is not" in " ".join(
        control.problems
    )
    assert control.decide(principal, Action.READ, CLICKS).rows == RowRules("(region = 'eu')")
    # The key of hashes is the same in each process.
    assert control.key.mask_key() == AccessControl(folder.path, VirtualClock()).key.mask_key()
    assert len(bytes.fromhex(control.key.mask_key())) == 32


@pytest.mark.parametrize(
    "text",
    [
        "region = 'eu'",
        "region IN ('eu', 'uk') AND NOT (n BETWEEN 1 AND 5)",
        "\"odd name\" <=> 'it''s' OR `b``c` IS NULL",
        "lower(region) LIKE 'e%' ESCAPE '!' OR n % 2 = 0 OR -n * 1.5e3 < .5",
        "CAST(n AS DECIMAL(10, 2)) > 1",
        "__time >= TIMESTAMP '2024-01-01' AND d < DATE '2024-01-01'",
        "CASE WHEN n > 1 THEN true ELSE coalesce(region, 'x') = 'x' END",
        "region || '-- no comment /* */' = 'a'",
        "region = 'now' AND __time > '2024-01-01'",
        "region IN ('today', 'now') AND NOT (region > 'epoch')",
        "__time BETWEEN '2024-01-01' AND CAST('+2025-01-01' AS TIMESTAMP)",
        "date_trunc('DAY', __time) = to_date('2024-01-01') AND year('2024-01-01') = 2024",
        "if(__time > DATE '2024-01-01', 'now', region) = 'now'",
        "CASE WHEN year(__time) = 2024 THEN 'today' ELSE region END = 'x'",
        "CAST(day AS DATE) = to_date(concat(y, '-01-01')) OR CAST(5 AS TIMESTAMP) = __time",
        "__time > CAST(1.5 AS BIGINT) AND year(-5) = 1 AND __time < CAST(1 + 2 AS TIMESTAMP)",
        "coalesce(__time, NULL) = to_date(day, 'yyyy') OR __time LIKE 'now%'",
        "true",
    ],
)
def test_conditions_that_may_be_used(text: str) -> None:
    assert check_condition(text, place="p") == text


@pytest.mark.parametrize(
    ("text", "without"),
    [("a = 1 -- all", "a = 1"), ("a /* x */ = 1 ", "a         = 1"), ("/* ( */ a", "a")],
)
def test_comments_of_conditions_are_left_out(text: str, without: str) -> None:
    assert check_condition(text, place="p") == without


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must have 1 to"),
        ("   ", "must have 1 to"),
        ("a = 1\nOR b = 2", "on one line"),
        ("a = " + "1" * 4_000, "must have 1 to 4,000"),
        ("a = 'x", "not closed"),
        ("a = 1) OR (b = 2", r"\) is not expected, line 1, column 6"),
        ("a = 1)", r"\) is not expected"),
        ("(a = 1", r"column 7: expected \)"),
        ("a = 1 /* open", "a comment is not closed"),
        ("a /*+ BROADCAST(t) */ = 1", r"/\*\+ is not expected"),
        ("a = 1; b", "; is not expected"),
        ("a = ?", r"\? is not allowed"),
        ("a = :b", ": is not expected"),
        ("a[0] = 1", r"a\[0\] is not allowed"),
        ("struct(a AS b) = c", r"struct\(\) is not allowed"),
        ("(a AS b) = c", "a AS b is not allowed"),
        ("a = INTERVAL 1 DAY", "INTERVAL 1 DAY is not allowed"),
        ("a & 1 = 1", "a & 1 is not allowed"),
        ("a LIKE ANY ('x')", "not allowed"),
        ("lower(DISTINCT a) = 'x'", r"lower\(\) is not allowed"),
        ("lower(a) FILTER (WHERE b) = 'x'", r"lower\(\) is not allowed"),
        ("from = 1", 'written "from"'),
        ("(" * 158 + "a" + ")" * 158, "nested deeper"),
        ("a = (SELECT 1)", "a query is not allowed"),
        ("a IN (TABLE other)", "a query is not allowed|TABLE is not allowed"),
        ("a IN (FROM other)", "not expected"),
        ("a IN (WITH b AS (VALUES 1) TABLE b)", "not allowed"),
        ("EXISTS (VALUES 1)", "a query is not allowed"),
        ("a IN (VALUES 1)", "a query is not allowed"),
        ("rand() < 0.5", r"rand\(\) is not allowed"),
        ("a = uuid()", r"uuid\(\) is not allowed"),
        ("b < current_date", r"current_date\(\) is not allowed"),
        ("b < now()", r"now\(\) is not allowed"),
        ("a = current_user", r"current_user\(\) is not allowed"),
        ("a = user", r"user\(\) is not allowed"),
        ('"reflect"(a)', r"reflect\(\) is not allowed"),
        ("`java_method`('x', 'y') = a", "not allowed"),
        ("explode(a)", "not allowed"),
        ("sum(a) > 1", r"sum\(\) is not allowed"),
        ("sum(a) OVER () > 1", "not allowed"),
        ("raise_error(a)", r"raise_error\(\) is not allowed"),
        ("transform(a, x -> x)", r"transform\(\) is not allowed"),
        ("input_file_name() = 'x'", "not allowed"),
        ("système = 1", "write it in double quotes"),
        ("a = '${env:HOME}'", "not allowed"),
        ("lowr(a) = 'x'", r"did you mean 'lower'"),
        ("__time < TIMESTAMP 'now'", "'now' is not allowed, line 1, column 20: a text that"),
        ("d = DATE 'Today'", "'Today' is not allowed"),
        ("d = DATE ' today'", "must begin with a digit"),
        (r"d = DATE '\u006eow'", "must begin with a digit"),
        ("d = to_date('now')", "'now' is not allowed"),
        ("d = CAST('tomorrow' AS DATE)", "'tomorrow' is not allowed"),
        ("d = try_cast(('yesterday UTC') AS TIMESTAMP)", "'yesterday UTC'. is not allowed"),
        ("d = 'epoch'::TIMESTAMP_NTZ", "'epoch' is not allowed"),
        ("d = CAST('no' || 'w' AS DATE)", "'no' || 'w' is not allowed"),
        ("d = CAST(CAST('now' AS STRING) AS DATE)", "is not allowed"),
        ("d = to_date(lower('NOW'))", "must begin with a digit"),
        ("date_trunc('DAY', 'now') = d", "'now' is not allowed"),
        ("year('now') = y", "'now' is not allowed"),
        ("hour(CAST('now' AS TIMESTAMP)) = y", "'now' is not allowed"),
        ("__time > 'now'", "'now' is not allowed"),
        ("(__time) <=> ('today')", "'today'. is not allowed"),
        ("t.__TIME IN ('2024-01-01', 'now')", "'now' is not allowed"),
        ("__time BETWEEN '2024-01-01' AND 'now'", "'now' is not allowed"),
        ("CAST(a AS DATE) = 'today'", "'today' is not allowed"),
        ("coalesce(__time, 'now') = d", "'now' is not allowed"),
        ("CASE WHEN a THEN __time ELSE 'now' END = d", "'now' is not allowed"),
        ("if(a, __time, b) < 'now'", "'now' is not allowed"),
    ],
)
def test_conditions_that_may_not_be_used(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        check_condition(text, place="access.toml: roles.a.row_filters.b")
    assert str(refused.value).startswith("access.toml: roles.a.row_filters.b: ")


@pytest.mark.parametrize(
    "mask",
    [
        *(
            "hash",
            "null",
            "NULL",
            "'***'",
            "0",
            "left(Email, 2)",
            "concat(left(\"email\", 2), '*')",
        ),
        *(
            "if(email LIKE '%@x.org', email, null)",
            "CAST(email AS STRING)",
            "date_trunc('DAY', email)",
        ),
    ],
)
def test_masks_that_may_be_used(mask: str) -> None:
    assert check_mask(mask, "email", place="p") == mask


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ("phone", "phone is not the masked column"),
        ("concat(email, name)", "name is not the masked column"),
        ("email || t.name", "t is not the masked column"),
        ("uuid()", r"uuid\(\) is not allowed"),
        ("if(to_date(email) < 'today', email, NULL)", "'today' is not allowed"),
        ("(SELECT max(email) FROM t)", "a query is not allowed"),
        ("email) AS email, (phone", r"\) is not expected"),
    ],
)
def test_masks_that_may_not_be_used(mask: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        check_mask(mask, "email", place="p")


@given(st.text(alphabet="ab1 ()'\"`-/*+;?.,=<>|\\\n$", max_size=20))
def test_an_accepted_condition_stays_in_its_parentheses(text: str) -> None:
    try:
        text = check_condition(text, place="p")
    except InvalidRequest:
        return
    found = tokens(f"({text}) END_OF_IT")
    assert found[-1].text == "END_OF_IT"
    depth = 0
    for at, token in enumerate(found[:-1]):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        assert depth > 0 or at == len(found) - 2
    assert depth == 0


@pytest.mark.parametrize(
    ("condition", "columns"),
    [
        ("region = 'eu' AND NOT internal", ["internal", "region"]),
        ("true", []),
        ("lower(Region) IN ('eu', 'us')", ["region"]),
        ("n BETWEEN 1 AND 2.5e3 OR m IS NOT NULL", ["m", "n"]),
        ("cast(n AS bigint) > 1 AND try_cast(m AS DECIMAL(10, 2)) < 2", ["m", "n"]),
        ("CASE WHEN a THEN b ELSE c END LIKE 'x%' ESCAPE '!'", ["a", "b", "c"]),
        ("day > DATE '2026-01-01' AND at < TIMESTAMP '2026-01-01 00:00:00'", ["at", "day"]),
        ("place.country = 'de'", ["place"]),
        ('"END" = 1 AND "two words" = 2', ["end", "two words"]),
        ("if(a, b, NULL) = concat(c, 'd')", ["a", "b", "c"]),
    ],
)
def test_the_columns_of_a_filter_are_found(condition: str, columns: list[str]) -> None:
    check_condition(condition, place="p")
    assert list(absent_columns(RowRules(condition), []).filtered) == columns
    assert not absent_columns(RowRules(condition), [one.upper() for one in columns])


def test_absent_columns_are_explained() -> None:
    absent = absent_columns(
        RowRules("regoin = 'eu'", (("card", "null"), ("emial", "hash"))),
        ["region", "email", "Card"],
    )
    assert (absent.filtered, absent.masked) == (("regoin",), ("emial",))
    assert absent.text("clicks", ["region", "email", "Card"]) == (
        "a row filter for datasource 'clicks' names the column 'regoin', which does not exist (did"
        " you mean 'region'?), so no row is shown; a mask for datasource 'clicks' names the column"
        " 'emial', which does not exist (did you mean 'email'?), so it hides nothing: correct"
        " access.toml"
    )
