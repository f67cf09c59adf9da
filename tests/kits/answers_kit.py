"""Checks answers of servers against the OpenAPI document, without its allowance for new fields."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from reference.openapi import document


class UndescribedAnswer(AssertionError):
    """An answer that does not have the form which the document describes."""


def check_answer(method: str, path: str, status: int, content_type: str, content: bytes) -> None:
    """Fail if a JSON answer does not have the form that the document describes.

    Answers of paths that the document does not have are errors, whose form is checked too.

    Raises:
        UndescribedAnswer: It has another form.
    """
    if not content_type.startswith("application/json") or not content:
        return
    validator = _validator(method, path.partition("?")[0].rstrip("/") or "/", status)
    if validator is None:
        return
    error = next(validator.iter_errors(json.loads(content)), None)
    if error is not None:
        raise UndescribedAnswer(
            f"{method} {path} answered {status}: {error.json_path} {error.message[:300]}; describe "
            "it in scripts/reference/data/http_answers.yaml, and run make reference"
        )


def _validator(method: str, path: str, status: int) -> Draft202012Validator | None:
    for pattern, template, item in _paths():
        if method.lower() in item and pattern.fullmatch(path):
            answers = item[method.lower()]["responses"]
            other = "default" if status >= 400 else "200"
            return _validator_of(method, template, str(status) if str(status) in answers else other)
    return None


def _document() -> dict[str, Any]:
    return document()


@cache
def _paths() -> list[tuple[re.Pattern[str], str, dict[str, Any]]]:
    # Of two paths that fit, the one without parameters is served.
    paths = sorted(_document()["paths"].items(), key=lambda one: one[0].count("{"))
    return [
        (re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path))), path, item)
        for path, item in paths
    ]


@cache
def _validator_of(method: str, path: str, answer: str) -> Draft202012Validator | None:
    content = _document()["paths"][path][method.lower()]["responses"][answer].get("content", {})
    if "application/json" not in content:
        return None
    components = {
        name: strict(schema) for name, schema in _document()["components"]["schemas"].items()
    }
    schema: Any = strict(content["application/json"]["schema"])
    return Draft202012Validator({**schema, "components": {"schemas": components}})


def strict(schema: object) -> object:
    """Return a schema that refuses fields which it does not name."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "properties" in schema:
        properties = {name: strict(one) for name, one in schema["properties"].items()}
        return {**schema, "properties": properties, "additionalProperties": False}
    return {name: strict(one) for name, one in schema.items()}
