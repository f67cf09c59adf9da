"""Endpoints declared once: routes and their OpenAPI description are made from the same table.

Owns the declaration and both forms. Does not own what an endpoint does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.errors import InvalidRequest
from penstock.services.api.asgi import JsonResponse
from penstock.services.api.request_access import RequestAccess, access_of

_DIGITS_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class EndpointParameter:
    """A query parameter.

    Attributes:
        name: Its name.
        about: Its purpose.
        required: Whether it must be given.
        type: `string`, `integer` or `boolean`.
        default: Its value if it is not given.
    """

    name: str
    about: str
    required: bool = False
    type: str = "string"
    default: str | None = None


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a request.

    Attributes:
        about: Its description.
        media_type: Its documented media type; any type is accepted.
    """

    about: str
    media_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class EndpointCall:
    """One call of an endpoint: parameters checked against the declaration, body, and principal."""

    parameters: Mapping[str, str]
    body: bytes
    access: RequestAccess

    def get(self, name: str) -> str | None:
        """Return a parameter as text; None: it was not given."""
        return self.parameters.get(name)

    def text(self, name: str) -> str:
        """Return a parameter that is required or has a default."""
        return self.parameters[name]

    def number(self, name: str, low: int, high: int) -> int:
        """Return a whole number within bounds, of a parameter that was given.

        Raises:
            InvalidRequest: The value is not such a number.
        """
        text = self.parameters[name]
        # A text this long is out of bounds, except for leading zeros, and too long for `int`.
        is_number = text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
        if not is_number or not low <= int(text) <= high:
            raise InvalidRequest(f"{text!r} is not a whole number from {low} to {high}", place=name)
        return int(text)

    def flag(self, name: str) -> bool:
        """Return whether a flag is set.

        Raises:
            InvalidRequest: The value is neither true nor false.
        """
        text = self.parameters.get(name, "false")
        if text not in {"true", "false"}:
            raise InvalidRequest(f"{text!r} is neither true nor false", place=name)
        return text == "true"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path with one method.

    Attributes:
        method: `GET`, `PUT`, `POST` or `DELETE`.
        path: The path.
        about: One sentence.
        answer: Called on a thread; may raise `PenstockError`.
        parameters: Query parameters; others are refused.
        body: The body, if there is one.
        errors: Meaning of answers other than 200 and 400.
    """

    method: str
    path: str
    about: str
    answer: Callable[[EndpointCall], Response | object]
    parameters: Sequence[EndpointParameter] = ()
    body: Body | None = None
    errors: Mapping[int, str] = field(default_factory=dict)


def routes_of(endpoints: Sequence[Endpoint]) -> list[BaseRoute]:
    """Return the routes of a table."""
    return [
        Route(endpoint.path, _handler(endpoint), methods=[endpoint.method])
        for endpoint in endpoints
    ]


def open_api(title: str, version: str, endpoints: Sequence[Endpoint]) -> dict[str, object]:
    """Return the OpenAPI 3.1 description of a table."""
    paths: dict[str, dict[str, object]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": paths,
        "components": {
            "schemas": {
                "Error": {
                    "type": "object",
                    "required": ["error", "errorCode"],
                    "properties": {
                        "error": {"type": "string"},
                        "errorCode": {"type": "string"},
                        "problems": {"type": "array", "items": {"type": "object"}},
                    },
                }
            }
        },
    }


def _handler(endpoint: Endpoint) -> Callable[[Request], object]:
    async def handle(request: Request) -> Response:
        access = access_of(request)
        call = EndpointCall(_checked(request, endpoint), await request.body(), access)
        answer = await run_in_threadpool(endpoint.answer, call)
        return answer if isinstance(answer, Response) else JsonResponse(answer)

    return handle


def _checked(request: Request, endpoint: Endpoint) -> dict[str, str]:
    known = {parameter.name: parameter for parameter in endpoint.parameters}
    given = dict(request.query_params)
    for name in given:
        if name not in known:
            listed = ", ".join(known) or "none"
            raise InvalidRequest(f"unknown parameter {name!r}; use one of: {listed}")
    for parameter in endpoint.parameters:
        if parameter.required and not given.get(parameter.name):
            raise InvalidRequest(f"say {parameter.about}", place=parameter.name)
        if parameter.default is not None:
            given.setdefault(parameter.name, parameter.default)
    return given


def _operation(endpoint: Endpoint) -> dict[str, object]:
    error = {
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    operation: dict[str, object] = {
        "summary": endpoint.about,
        "parameters": [
            {
                "name": parameter.name,
                "in": "query",
                "required": parameter.required,
                "description": parameter.about,
                "schema": {"type": parameter.type}
                | ({} if parameter.default is None else {"default": parameter.default}),
            }
            for parameter in endpoint.parameters
        ],
        "responses": {
            "200": {
                "description": "Done.",
                "content": {"application/json": {"schema": {}}},
            },
            "400": {
                "description": "Refused; nothing was changed.",
                **error,
            },
            **{str(code): {"description": text, **error} for code, text in endpoint.errors.items()},
        },
    }
    if endpoint.body is not None:
        operation["requestBody"] = {
            "description": endpoint.body.about,
            "required": True,
            "content": {endpoint.body.media_type: {"schema": {}}},
        }
    return operation
