"""Page of the HTTP API: the OpenAPI document as tables for readers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Final

from penstock.broker.http.access_rules import ACCESS_RULES, CONFIG
from penstock.broker.topics.options import NAMES, TopicOptions
from penstock.services.api.access_rules import FORWARDED, ROUTE_RULES, Needs
from reference.markdown import head, sentence, table
from reference.openapi import HttpRoute, RouteGroup, RouteParameter, groups, servers

_ABOUT: Final = """\
Every HTTP route, with its parameters, body, answer and errors. Answers are JSON unless the page
describes another form. [Parameters](#parameters) explains the parameters. The router serves this
description as an OpenAPI 3.1 document at `/openapi.json`, which also has the JSON schema of each
answer; a copy is [openapi.json](openapi.json).

Send `Authorization: Bearer TOKEN`, or `Authorization: Basic` with a user and password. `/status/health`,
`/status/ready`, `/docs` and the broker's `/ping` need no credential. While nothing is configured, the user who runs
the server needs none on the same host. *right* is the right that a request needs: see [Access](../concepts/access.md).
A request without a valid credential is answered with 401, and one without the right with 403. [Errors](errors.md)
lists the codes.
"""
_HOSTS: Final = """\
Every server answers only requests whose `Host` is a loopback name or address, the configured address,
`--broadcast-address`, the address that the client connected to, or one of `--allowed-hosts`. It answers
others with 403, so that a web page cannot reach it through a host name of its own. Requests other than
GET, HEAD and OPTIONS are answered with 403 if a browser sends them from a page of another server, that
is, with another `Origin`, or with `Sec-Fetch-Site: cross-site` or `same-site`. Programs send neither.
"""


def page() -> str:
    """Return docs/reference/http-api.md."""
    lines = [head("HTTP API", "the OpenAPI document", _ABOUT), *_servers()]
    lines += ["", "## Hosts and origins", "", *_HOSTS.splitlines()]
    for group in groups():
        lines += _section(group)
        if group.title == "Topics":
            lines += _topic_options()
    return "\n".join((*lines, *_parameters())) + "\n"


def _servers() -> Iterator[str]:
    rows = [(one["name"], f"`{one['url']}`", one["about"]) for one in servers().values()]
    yield from table(("server", "example address", "purpose"), rows)


def _section(group: RouteGroup) -> Iterator[str]:
    yield from ("", f"## {group.title}", "")
    yield f"Server: {servers()[group.server]['name']}." + (f" {group.about}" if group.about else "")
    for route in group.routes:
        yield from ("", f"**`{route.method} {route.path}`** {sentence(route.about)}")
        details = [f"- {name}: {text}" for name, text in _details(route) if text]
        right = _right_at_broker(route) if group.server == "broker" else right_of(route)
        details.append(f"- right: {right}")
        yield from ("", *details) if details else ()


def right_of(route: HttpRoute) -> str:
    """Return the right that a route of another server than the broker needs."""
    rules = {(method, _plain(path)): rule for (method, path), rule in ROUTE_RULES.items()}
    path = _plain(route.path)
    rule = rules.get((route.method, path))
    if rule in {None, FORWARDED}:  # an older path of a route of the overlord
        rule = rules[route.method, path.replace("/coordinator/", "/indexer/", 1)]
    return f"`{rule}`" if isinstance(rule, Needs) else str(rule)


def _plain(path: str) -> str:
    return re.sub(r"{[^}]*}", "{}", path)


def _right_at_broker(route: HttpRoute) -> str:
    path = CONFIG if route.path.startswith("/config/") else route.path
    return str(ACCESS_RULES[path][route.method])


def _details(route: HttpRoute) -> Iterator[tuple[str, str]]:
    shown = [
        f"`{one.name}`" + (" (required)" if one.required else "")
        for one in route.parameters
        if not one.in_path
    ]
    yield "parameters", ", ".join(shown)
    yield "body", sentence(route.body)
    yield "answer", "" if route.answer == "JSON." else sentence(route.answer)
    errors = [
        " ".join((str(status), ", ".join(f"`{code}`" for code in codes))).strip()
        for status, codes in route.errors.items()
    ]
    yield "errors", "; ".join(errors)


def _topic_options() -> Iterator[str]:
    yield from ("", "### Options of a topic")
    text = " ".join(inspect.getdoc(TopicOptions).split())  # type: ignore[union-attr]  # it has one
    meanings = dict(
        re.findall(
            r"(\w+): (.*?)(?= (?:" + "|".join(NAMES) + r"): |$)", text.partition("Attributes: ")[2]
        )
    )
    rows = [(f"`{name}`", meanings[name]) for name in NAMES]
    yield from table(("option", "meaning"), rows)


def _parameters() -> Iterator[str]:
    found: dict[tuple[str, str], RouteParameter] = {}
    for group in groups():
        for route in group.routes:
            for one in route.parameters:
                found.setdefault((one.name, one.about), one)
    yield from ("", "## Parameters")
    rows = [
        (f"`{name}`", one.type, sentence(about)) for (name, about), one in sorted(found.items())
    ]
    yield from table(("parameter", "type", "meaning"), rows)
