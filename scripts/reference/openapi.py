"""The OpenAPI document of every HTTP route, from `data/http_routes.yaml` and the table of flows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, NoReturn

import penstock
from penstock.core.clock import SystemClock
from penstock.services.api.endpoints import Endpoint
from penstock.services.api.flow.flow_routes import FlowRoutes
from reference.answer_schemas import schema_of, schemas
from reference.markdown import data

_JSON: Final = "application/json"
_FLOW_ABOUT: Final = "The router forwards these requests to the process of flows."
_ABOUT: Final = """\
HTTP API of Penstock: SQL, tasks, supervisors, segments and rules as in Druid, topics as in NSQ, and
flows. Requests need a token or a user and password, except those of the server's own user on the same
host while nothing is configured.
"""


@dataclass(frozen=True)
class RouteParameter:
    """A parameter of a path or a query."""

    name: str
    type: str
    about: str
    required: bool = False
    in_path: bool = False


@dataclass(frozen=True)
class HttpRoute:
    """One method of one path.

    Attributes:
        method: `GET`, `POST`, `PUT` or `DELETE`.
        path: The path, with parameters in braces.
        about: Its effect, in one sentence.
        parameters: Those of the path, then those of the query.
        body: Description of the body; empty: there is none.
        media_type: Media type of the body.
        answer: Description of the answer.
        schema: Schema of a JSON answer, in the notation of `answer_schemas`; empty: it has none.
        errors: Codes of its own errors, by status.
        as_answer: Statuses of errors whose body has the form of an answer.
    """

    method: str
    path: str
    about: str
    parameters: Sequence[RouteParameter]
    body: str = ""
    media_type: str = _JSON
    answer: str = "JSON."
    schema: str = ""
    errors: Mapping[int, Sequence[str]] = field(default_factory=dict)
    as_answer: Sequence[int] = ()


@dataclass(frozen=True)
class RouteGroup:
    """Routes of one server about one subject.

    Attributes:
        title: The subject.
        server: The server.
        about: Rules of all of them.
        routes: The routes.
        error: Another schema that their errors may have.
    """

    title: str
    server: str
    about: str
    routes: Sequence[HttpRoute]
    error: str = ""


@cache
def servers() -> Mapping[str, Mapping[str, str]]:
    """Return the address, name and description of each server."""
    found: Mapping[str, Mapping[str, str]] = data("http_routes")["servers"]
    return found


@cache
def groups() -> Sequence[RouteGroup]:
    """Return all routes, in the order of the page."""
    found = [_group(one) for one in data("http_routes")["groups"]]
    return [*found, *_flow_groups()]


def _group(raw: Mapping[str, Any]) -> RouteGroup:
    routes = [_route(raw.get("prefix", ""), *one) for one in raw["routes"]]
    about, error = raw.get("about", ""), raw.get("error", "")
    return RouteGroup(raw["title"], raw["server"], about, routes, error)


def _route(
    prefix: str, request: str, about: str, details: Mapping[str, str] | None = None
) -> HttpRoute:
    given = details or {}
    method, _, rest = request.partition(" ")
    path = prefix + rest
    body, _, media_type = given.get("body", "").partition(" | ")
    parameters = [_parameter(name, in_path=True) for name in re.findall(r"{([a-z_]+)}", path)]
    parameters += [_parameter(name) for name in given.get("query", "").split()]
    return HttpRoute(
        *(method, path, about, parameters, body, media_type or _JSON),
        answer=given.get("answer", "JSON."),
        schema=given.get("schema", ""),
        errors=dict(_errors(given.get("errors", ""))),
        as_answer=[int(one) for one in given.get("as_answer", "").split()],
    )


def _parameter(name: str, *, in_path: bool = False) -> RouteParameter:
    required = in_path or name.endswith("!")
    name = name.removesuffix("!")
    kind, about = data("http_routes")["parameters"][name]
    return RouteParameter(name, kind, about, required, in_path)


def _errors(text: str) -> Iterator[tuple[int, list[str]]]:
    for one in filter(None, text.split(", ")):
        status, *codes = one.split()
        if status != "none":
            yield int(status), codes


def _flow_groups() -> Iterator[RouteGroup]:
    def unused() -> NoReturn:
        raise AssertionError

    endpoints = FlowRoutes(unused, SystemClock()).endpoints
    routes = [_flow_route(one) for one in endpoints]
    description = HttpRoute(
        "GET", "/flow/openapi.json", "Return the API of flows alone.", (), schema="object"
    )
    metrics = HttpRoute(
        "GET", "/flow/metrics", "Return the metrics of the process of flows.", (), answer="Text."
    )
    yield RouteGroup("Flows", "router", _FLOW_ABOUT, [*routes, description, metrics])


def _flow_route(endpoint: Endpoint) -> HttpRoute:
    parameters = [
        RouteParameter(one.name, one.type, _described(one.about, one.default), one.required)
        for one in endpoint.parameters
    ]
    codes = {404: ["notFound"], 503: ["unavailable"]}
    body = endpoint.body
    schema = data("http_answers")["flows"][f"{endpoint.method} {endpoint.path}"]
    return HttpRoute(
        *(endpoint.method, endpoint.path, endpoint.about, parameters),
        body=body.about if body else "",
        media_type=body.media_type if body else _JSON,
        answer="Bytes." if schema == "bytes" else "JSON.",
        schema="" if schema == "bytes" else schema,
        errors={status: codes[status] for status in endpoint.errors},
    )


def _described(about: str, default: str | None) -> str:
    text = about[:1].upper() + about[1:]
    return f"{text}; default: {default}." if default else f"{text}."


def document() -> dict[str, object]:
    """Return the OpenAPI document."""
    paths: dict[str, dict[str, _Operation]] = {}
    for group in groups():
        for route in group.routes:
            item = paths.setdefault(route.path, {})
            operation, method = _operation(group, route), route.method.lower()
            item[method] = _merged(item[method], operation) if method in item else operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock",
            "version": penstock.__version__,
            "description": " ".join(_ABOUT.split()),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [_ROUTER],
        "security": [{}, {"token": []}, {"password": []}],
        "tags": [
            {"name": one.title, **({"description": one.about} if one.about else {})}
            for one in groups()
        ],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "password": {"type": "http", "scheme": "basic"},
            },
            "schemas": {"Error": _ERROR, "BrokerError": _BROKER_ERROR, **schemas()},
        },
    }


_Operation = dict[str, Any]


def _merged(first: _Operation, second: _Operation) -> _Operation:
    """Return one operation for two servers that serve the same path, each in its own way."""
    responses = {**first["responses"], **second["responses"]}
    for status in first["responses"].keys() & second["responses"].keys():
        one, other = first["responses"][status], second["responses"][status]
        forms = [each["content"][_JSON]["schema"] for each in (one, other) if "content" in each]
        different = forms if forms[:1] != forms[1:] else forms[:1]
        content = {_JSON: {"schema": different[0] if len(different) == 1 else {"anyOf": different}}}
        responses[status] = {**one, **({"content": content} if forms else {})}
    parameters = [*first.get("parameters", []), *second.get("parameters", [])]
    both = ("servers", "tags")
    return {
        **first,
        **{name: [*first.get(name, [_ROUTER]), *second.get(name, [_ROUTER])] for name in both},
        "summary": f"{first['servers'][0]['description']}: {first['summary']} Others: "
        f"{second['summary']}",
        "responses": responses,
        **({"parameters": parameters} if parameters else {}),
    }


_ROUTER: Final = {"url": "/", "description": "Router"}
_ERROR: Final = {
    "type": "object",
    "required": ["error", "errorCode"],
    "properties": {
        "error": {"type": "string", "description": "What is wrong, where, and what to do."},
        "errorCode": {"type": "string"},
        "dependency": {"type": "string", "description": "The dependency that does not work."},
        "errorMessage": {"type": "string", "description": "The text, as in Druid."},
        "persona": {"type": "string", "description": "`USER` or `OPERATOR`, as in Druid."},
        "category": {"type": "string", "description": "Kind of the error, as in Druid."},
        "context": {"type": "object", "description": "Place of the error, as in Druid."},
        "problems": {"type": "array", "items": {"type": "object"}},
    },
}
_BROKER_ERROR: Final = {
    "type": "object",
    "required": ["message"],
    "properties": {
        "message": {"type": "string", "description": "The code of the error."},
        "https_port": {"type": "integer", "description": "The port that serves TLS."},
    },
}


def _operation(group: RouteGroup, route: HttpRoute) -> _Operation:
    schema = "BrokerError" if group.server == "broker" else "Error"
    usual = {"$ref": f"#/components/schemas/{schema}"}
    refusal = {"anyOf": [usual, schema_of(group.error)]} if group.error else usual
    refused = {_JSON: {"schema": refusal}}
    own = [schema_of(route.schema)] if route.schema else []
    either = {_JSON: {"schema": {"anyOf": [refused[_JSON]["schema"], *own]}}}
    errors = {
        str(status): {
            "description": ", ".join(codes) or "Not ready.",
            "content": either if status in route.as_answer else refused,
        }
        for status, codes in route.errors.items()
    }
    others = {"default": {"description": "An error.", "content": refused}}
    operation: _Operation = {
        "operationId": _operation_id(route),
        "tags": [group.title],
        "summary": route.about,
        "responses": {"200": _answer(route), **errors, **others},
    }
    if group.server not in {"router", "every"}:
        url = servers()[group.server]["url"]
        operation["servers"] = [{"url": url, "description": servers()[group.server]["name"]}]
    if route.parameters:
        operation["parameters"] = [
            {
                "name": one.name,
                "in": "path" if one.in_path else "query",
                "required": one.required,
                "description": one.about,
                "schema": {"type": one.type},
            }
            for one in route.parameters
        ]
    if route.body:
        operation["requestBody"] = {
            "description": route.body,
            "required": True,
            "content": {route.media_type: {"schema": {}}},
        }
    return operation


def _answer(route: HttpRoute) -> dict[str, object]:
    answer: dict[str, object] = {"description": route.answer}
    if route.schema:
        answer["content"] = {_JSON: {"schema": schema_of(route.schema)}}
    return answer


def _operation_id(route: HttpRoute) -> str:
    words = re.findall(r"[A-Za-z0-9]+", route.path)
    return route.method.lower() + "".join(one[:1].upper() + one[1:] for one in words)


def text() -> str:
    """Return the document as JSON text."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"
