"""The generated pages: each is what its generator returns; their examples are valid and run."""

from __future__ import annotations

import shlex

import pytest

from penstock.flow.graph.declarations import ClassTypes
from penstock.flow.graph.validation import validate
from penstock.flow.graph.yaml_reader import read_flow
from penstock.flow.processor.processor_registry import ProcessorRegistry
from penstock.services.cli.entry import with_common_options_first
from penstock.services.processors import PROCESSORS
from penstock.testing.flow import ProcessorRunner
from reference.cli import Command, commands
from reference.cli_examples import EXAMPLES
from reference.pages import PAGES, ROOT
from reference.processor_examples import FLOWS, RUNS

REGISTRY = ProcessorRegistry(PROCESSORS)


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_up_to_date(path: str) -> None:
    file = ROOT / path
    current = file.read_text() if file.exists() else ""
    assert current == PAGES[path](), f"{path} is stale, run: make reference"


# The list of the pages, and the data sources, whose examples a Spark test runs.
WRITTEN_BY_HAND = {"docs/reference/index.md", "docs/reference/spark-data-sources.md"}


def test_every_page_of_the_reference_is_generated() -> None:
    written = {str(one.relative_to(ROOT)) for one in (ROOT / "docs/reference").glob("*.md")}
    assert written - PAGES.keys() == WRITTEN_BY_HAND


@pytest.mark.parametrize("command", commands(), ids=lambda one: one.words)
def test_the_example_of_a_command_can_be_parsed(command: Command) -> None:
    first, *words = shlex.split(EXAMPLES[command.words])
    assert first == "penstock"
    own = command.words.split()
    words = with_common_options_first(words)
    start = words.index(own[0])  # after the options that every command accepts
    assert words[start : start + len(own)] == own
    command.typer.make_context(command.words, words[start + len(own) :])


def test_every_example_is_of_a_command() -> None:
    assert EXAMPLES.keys() == {one.words for one in commands()}


@pytest.mark.parametrize("name", REGISTRY.names())
def test_the_flow_of_a_processor_is_valid(name: str) -> None:
    read = read_flow(FLOWS[name])
    assert any(one.type == name for one in read.flow.processors.values())
    types = ClassTypes({one: REGISTRY.find(one) for one in REGISTRY.names()})
    problems = validate(read.flow, types, places=read.places)
    # The function of this flow is the user's own, so its module must be in --flow-modules.
    listed = name == "SparkScript" and "--flow-modules" in problems.pop().message
    assert listed == (name == "SparkScript")
    assert problems == []


@pytest.mark.parametrize("name", RUNS)
def test_the_processor_of_a_flow_runs(name: str) -> None:
    trial = RUNS[name]
    (example,) = (
        one for one in read_flow(FLOWS[name]).flow.processors.values() if one.type == name
    )
    with ProcessorRunner(REGISTRY.find(name), example.properties) as runner:
        runner.enqueue(trial.content, trial.attributes)
        runner.run()
        assert runner.counts() == trial.sent
