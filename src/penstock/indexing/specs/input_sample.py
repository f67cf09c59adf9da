"""The request for a sample of an input: the parts of a batch spec that reading rows needs."""

from __future__ import annotations

from pydantic import Field, ValidationError, model_validator

from penstock.core.errors import InvalidRequest
from penstock.indexing.specs.data_schema import TimestampSpec
from penstock.indexing.specs.errors import spec_error
from penstock.indexing.specs.input_formats import InputFormat
from penstock.indexing.specs.inputs import DruidInput, InputSource, input_sources
from penstock.indexing.specs.rows.dimensions import COLUMNS_MAX, Dimension
from penstock.indexing.specs.sources.databases import DatabaseInput
from penstock.indexing.specs.spec_base import SpecModel, mistakes
from penstock.indexing.specs.spec_text import read_object


class InputSampleRequest(SpecModel):
    """An input to read the first rows of. Parts that are left out are guessed from the data.

    Attributes:
        stream: Whether the input is a sample of a stream, whose rows a supervisor will read.
    """

    input_source: InputSource
    input_format: InputFormat | None = None
    timestamp_spec: TimestampSpec | None = None
    dimensions: tuple[Dimension, ...] | None = Field(default=None, max_length=COLUMNS_MAX)
    stream: bool = False

    @model_validator(mode="after")
    def _check_source(self) -> InputSampleRequest:
        if any(isinstance(o, DruidInput | DatabaseInput) for o in input_sources(self.input_source)):
            text = "has types already: only files, uploads and inline text have a sample"
            raise mistakes("InputSampleRequest", [(("inputSource",), None, text)])
        return self


def parse_sample_request(text: bytes | str) -> InputSampleRequest:
    """Parse the JSON of a request.

    Raises:
        SpecError: An `InvalidRequest` that lists every mistake with its place.
        InvalidRequest: The text is not a JSON object.
    """
    value = read_object(text)
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object with an inputSource")
    try:
        return InputSampleRequest.model_validate(value, by_alias=True, by_name=False)
    except ValidationError as error:
        raise spec_error(error, InputSampleRequest) from None
