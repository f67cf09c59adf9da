"""Page of the processors, from their declarations. `processor_examples` has a flow for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from penstock.flow.processor.documentation import ProcessorFacts, describe, expression_functions
from penstock.flow.processor.processor_registry import ProcessorRegistry
from penstock.flow.processor.properties import PropertyFacts
from penstock.services.processors import PROCESSORS
from reference.markdown import fence, head, sentence, table
from reference.processor_examples import FLOWS

_ABOUT: Final = """\
Every processor that Penstock includes, with its properties, relationships and attributes, and an
example flow. `penstock processor show NAME` prints the same for one processor, also for your own.

The value of a property marked *expressions* may contain `${attribute}`; see
[expressions](#expressions). The value of a *sensitive* property is never shown.
"""
_EXPRESSIONS: Final = """\
`${attribute}` is the value of a FlowFile's attribute. Functions follow it after a colon:
`${filename:toUpper()}`. Some functions need no attribute: `${now()}`.
"""


def page() -> str:
    """Return docs/reference/processors.md."""
    registry = ProcessorRegistry(PROCESSORS)
    facts = [describe(registry.find(name)) for name in registry.names()]
    lines = [head("Processors", "the declarations of processors", _ABOUT), *_contents(facts)]
    for one in facts:
        lines += _chapter(one)
    lines += ["", "## Expressions", "", *_EXPRESSIONS.splitlines()]
    rows = [(f"`{name}`", sentence(about)) for name, about in expression_functions().items()]
    lines += table(("function", "result"), rows)
    return "\n".join(lines) + "\n"


def _contents(facts: list[ProcessorFacts]) -> Iterator[str]:
    rows = [(f"[{one.name}](#{one.name.lower()})", one.about) for one in facts]
    yield from table(("processor", "purpose"), rows)


def _chapter(facts: ProcessorFacts) -> Iterator[str]:
    yield from ("", f"## {facts.name}", "", facts.about)
    if facts.details:
        yield from ("", *facts.details.splitlines())
    yield from ("", " ".join(_running(facts)))
    rows = [_property(one) for one in facts.properties]
    if facts.dynamic is not None:
        kind = facts.dynamic.type + (", *expressions*" if facts.dynamic.expressions else "")
        more = " Each adds a relationship." if facts.dynamic.relationships else ""
        rows.append(("*any other name*", kind, "", sentence(facts.dynamic.about) + more))
    yield from table(("property", "type", "default", "meaning"), rows)
    yield from _texts("relationship", "FlowFiles", facts.relationships)
    yield from _texts("attribute that it reads", "use", facts.reads_attributes)
    yield from _texts("attribute that it writes", "value", facts.writes_attributes)
    yield from ("", "Example:")
    yield from fence("yaml", FLOWS[facts.name])


def _property(facts: PropertyFacts) -> tuple[str, ...]:
    kind = ", ".join(f"`{choice}`" for choice in facts.choices) or facts.type
    notes = [kind]
    if facts.expressions:
        notes.append("*expressions*")
    if facts.sensitive:
        notes.append("*sensitive*")
    default = "required" if facts.required else ""
    if facts.default:
        default = f"`{facts.default}`"
    return f"`{facts.name}`", ", ".join(notes), default, sentence(facts.about)


def _texts(name: str, about: str, texts: Mapping[str, str]) -> Iterator[str]:
    rows = [(f"`{key}`", sentence(text)) for key, text in texts.items()]
    yield from table((name, about), rows)


def _running(facts: ProcessorFacts) -> Iterator[str]:
    yield {
        "required": "Input: required.",
        "allowed": "Input: optional.",
        "forbidden": "Input: none; it is a source.",
    }[facts.input.value]
    if facts.triggers_serially:
        yield "It runs on one thread at a time."
    if facts.state:
        yield f"State that it keeps: {facts.state}"
