"""GenerateFlowFile."""

from __future__ import annotations

import pytest

from penstock.flow.processor import InvalidConfiguration
from penstock.flow.processors.generate_flowfile import GenerateFlowFile
from penstock.testing.flow import ProcessorRunner


def test_flowfiles_of_one_trigger_share_their_content() -> None:
    with ProcessorRunner(GenerateFlowFile, {"file_size": "2 KB", "batch_size": 3}) as runner:
        runner.run(2)
        made = runner.sent("success")
        assert len(made) == 6
        assert {len(one.content) for one in made} == {2048}
        assert made[0].content == made[2].content != made[3].content
        assert made[0].content.decode("ascii").isprintable() is False  # it has lines
        assert len({one.attributes["filename"] for one in made}) == 6


def test_content_may_be_of_each_ones_own() -> None:
    properties = {"file_size": "3 MB", "batch_size": 2, "unique_content": True}
    with ProcessorRunner(GenerateFlowFile, {**properties, "data_format": "binary"}) as runner:
        runner.run()
        one, other = runner.sent("success")
        assert one.content != other.content
        assert len(one.content) == len(other.content) == 3 << 20


def test_text_and_attributes_are_given_with_expressions() -> None:
    properties = {"custom_text": "to ${who}", "who": "Ada", "mime_type": "text/plain"}
    with ProcessorRunner(GenerateFlowFile, properties) as runner:
        runner.run()
        [one] = runner.sent("success")
        assert one.content == b"to Ada"
        assert one.attributes["mime.type"] == "text/plain"


def test_nothing_at_all_is_no_content() -> None:
    with ProcessorRunner(GenerateFlowFile) as runner:
        runner.run()
        assert runner.sent("success")[0].content == b""


@pytest.mark.parametrize(
    ("name", "value"), [("batch_size", 0), ("file_size", "-1"), ("data_format", "xml")]
)
def test_what_will_not_do_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidConfiguration, match=name):
        GenerateFlowFile.configured({name: value})  # type: ignore[dict-item]
