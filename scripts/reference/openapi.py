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
from reference.markdown import data

_JSON: Final = "application/json"
_FLOW_ABOUT: Final = "The router forwards these requests to the process of flows."
_ABOUT: Final = """\
HTTP API of Penstock: SQL, tasks, supervisors, segments and rules as in Druid, topics as in NSQ, and
flows. Requests need `Authorization: Bearer TOKEN` if a token is configured.
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
        errors: Codes of its own errors, by status.
    """

    method: str
    path: str
    about: str
    parameters: Sequence[RouteParameter]
    body: str = ""
    media_type: str = _JSON
    answer: str = "JSON."
    errors: Mapping[int, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class RouteGroup:
    """Routes of one server about one subject."""

    title: str
    server: str
    about: str
    routes: Sequence[HttpRoute]


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
    return RouteGroup(raw["title"], raw["server"], raw.get("about", ""), routes)


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
        errors=dict(_errors(given.get("errors", ""))),
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
    description = HttpRoute("GET", "/flow/openapi.json", "Return the API of flows alone.", ())
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
    return HttpRoute(
        *(endpoint.method, endpoint.path, endpoint.about, parameters),
        body=body.about if body else "",
        media_type=body.media_type if body else _JSON,
        errors={status: codes[status] for status in endpoint.errors},
    )


def _described(about: str, default: str | None) -> str:
    text = about[:1].upper() + about[1:]
    return f"{text}; default: {default}." if default else f"{text}."


def document() -> dict[str, object]:
    """Return the OpenAPI document."""
    paths: dict[str, dict[str, object]] = {}
    for group in groups():
        for route in group.routes:
            item = paths.setdefault(route.path, {})
            if group.server not in {"router", "every"}:
                url = servers()[group.server]["url"]
                item["servers"] = [{"url": url, "description": servers()[group.server]["name"]}]
            item[route.method.lower()] = _operation(group, route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock",
            "version": penstock.__version__,
            "description": " ".join(_ABOUT.split()),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "Router"}],
        "security": [{}, {"token": []}],
        "tags": [
            {"name": one.title, **({"description": one.about} if one.about else {})}
            for one in groups()
        ],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": _ERROR, "BrokerError": _BROKER_ERROR},
        },
    }


_ERROR: Final = {
    "type": "object",
    "required": ["error", "errorCode"],
    "properties": {
        "error": {"type": "string", "description": "What is wrong, where, and what to do."},
        "errorCode": {"type": "string"},
        "dependency": {"type": "string", "description": "The dependency that does not work."},
        "problems": {"type": "array", "items": {"type": "object"}},
    },
}
_BROKER_ERROR: Final = {
    "type": "object",
    "required": ["message"],
    "properties": {"message": {"type": "string", "description": "The code of the error."}},
}


def _operation(group: RouteGroup, route: HttpRoute) -> dict[str, object]:
    schema = "BrokerError" if group.server == "broker" else "Error"
    refused = {_JSON: {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    errors = {
        str(status): {"description": ", ".join(codes) or "Not ready.", "content": refused}
        for status, codes in route.errors.items()
    }
    others = {"default": {"description": "An error.", "content": refused}}
    operation: dict[str, object] = {
        "operationId": _operation_id(route),
        "tags": [group.title],
        "summary": route.about,
        "responses": {"200": _answer(route), **errors, **others},
    }
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
    if "JSON" in route.answer:
        answer["content"] = {_JSON: {"schema": {}}}
    return answer


def _operation_id(route: HttpRoute) -> str:
    words = re.findall(r"[A-Za-z0-9]+", route.path)
    return route.method.lower() + "".join(one[:1].upper() + one[1:] for one in words)


def text() -> str:
    """Return the document as JSON text."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"
