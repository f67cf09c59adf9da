"""Reference page of all processors of Penstock, from their declarations.

Owns its form. Does not own the facts (`flow.processor.documentation`). A test fails if the page in
the documentation differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from penstock.flow.processor.documentation import ProcessorFacts, describe, expression_functions
from penstock.flow.processor.processor_registry import ProcessorRegistry
from penstock.flow.processor.properties import PropertyFacts
from penstock.services.processors import PROCESSORS

_HEAD: Final = """# Processors

Penstock's processors, generated from their declarations by `penstock processor list --markdown`.
`penstock processor show NAME` prints one of them. For your own ones see
[Write a processor](guides/write-a-processor.md). Properties marked *expressions* may contain
`${attribute}`, see [the end](#expressions) of this page.
"""


def reference_page() -> str:
    """Return the page as Markdown."""
    registry = ProcessorRegistry(PROCESSORS)
    facts = [describe(registry.find(name)) for name in registry.names()]
    lines = [*_HEAD.splitlines(), "", *_contents(facts)]
    for one in facts:
        lines += _chapter(one)
    lines += ["", "## Expressions", ""]
    lines += [
        "`${name:function(argument):function()}`: an attribute, then functions. A function that",
        "stands first has no attribute, such as `${now()}`.",
        "",
        "| function | result |",
        "|---|---|",
    ]
    lines += [f"| `{name}` | {_cell(about)} |" for name, about in expression_functions().items()]
    return "\n".join(lines) + "\n"


def _contents(facts: list[ProcessorFacts]) -> Iterator[str]:
    yield from ("| processor | what it does |", "|---|---|")
    for one in facts:
        yield f"| [{one.name}](#{one.name.lower()}) | {_cell(one.about)} |"


def _chapter(facts: ProcessorFacts) -> Iterator[str]:
    yield from ("", f"## {facts.name}", "", facts.about)
    if facts.details:
        yield from ("", *facts.details.splitlines())
    if facts.properties or facts.dynamic:
        yield from ("", "| property | type | default | about |", "|---|---|---|---|")
        for one in facts.properties:
            yield _property(one)
        if facts.dynamic is not None:
            kind = facts.dynamic.type + (", *expressions*" if facts.dynamic.expressions else "")
            more = " Each adds a relationship." if facts.dynamic.relationships else ""
            yield f"| *any other name* | {kind} | | {_cell(facts.dynamic.about)}{more} |"
    yield from _table("relationship", "FlowFiles", facts.relationships)
    yield from _table("reads attribute", "for", facts.reads_attributes)
    yield from _table("writes attribute", "with", facts.writes_attributes)
    yield from ("", " ".join(_running(facts)))


def _property(facts: PropertyFacts) -> str:
    kind = ", ".join(f"`{choice}`" for choice in facts.choices) or facts.type
    notes = [kind]
    if facts.expressions:
        notes.append("*expressions*")
    if facts.sensitive:
        notes.append("*sensitive*")
    default = "*required*" if facts.required else ""
    if facts.default:
        default = f"`{facts.default}`"
    return (
        f"| `{facts.name}` | {_cell(', '.join(notes))} | {_cell(default)} | {_cell(facts.about)} |"
    )


def _table(name: str, about: str, rows: Mapping[str, str]) -> Iterator[str]:
    if rows:
        yield from ("", f"| {name} | {about} |", "|---|---|")
        for key, text in rows.items():
            yield f"| `{_cell(key)}` | {_cell(text)} |"


def _running(facts: ProcessorFacts) -> Iterator[str]:
    yield {
        "required": "It requires an input.",
        "allowed": "It may have an input.",
        "forbidden": "It is a source: it has no input.",
    }[facts.input.value]
    if facts.triggers_serially:
        yield "It runs on one thread at a time."
    if facts.state:
        yield f"Remembers: {facts.state}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
