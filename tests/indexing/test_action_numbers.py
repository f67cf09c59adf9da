"""Numbers of any size in every place of every action of a task: each is done or refused."""

from __future__ import annotations

from contextlib import suppress

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import PenstockError
from penstock.core.http_errors import status_and_code
from penstock.indexing import actions
from penstock.indexing.actions import (
    AnnounceFiles,
    CheckPointDataSourceMetadata,
    LockTryAcquire,
    PublishSegments,
    SegmentListUnused,
)
from penstock.indexing.actions.locks import LockedSegment
from penstock.indexing.actions.segment_allocation import AllocatedSegment
from penstock.indexing.engine import DataFile
from tests.indexing.action_kit import DAY, NOTHING, Desk, batch, rows, stream
from tests.kits.json_numbers_kit import Place, places, with_number

VERSION = "2024-02-01T00:00:00.000Z"
FILE = DataFile("/x/0.parquet", DAY, 1, 2, DAY.start_ms, DAY.start_ms, (("page", "string"),))
SEGMENTS = rows([AllocatedSegment(DAY, VERSION, 0, 1)])
EXAMPLES = (
    AnnounceFiles("base-s_0", (FILE,), {0: 0}, {0: 5}),
    CheckPointDataSourceMetadata({0: 0}),
    LockTryAcquire((), segments=(LockedSegment(DAY, VERSION, 0),)),
    PublishSegments("base-s_0", SEGMENTS, {0: 0}, {0: 5}, NOTHING),
    PublishSegments("b", SEGMENTS, None, None, NOTHING, kind="append"),
    SegmentListUnused(DAY, None, 5, 7),
)
FORMS = [action.to_json() for action in EXAMPLES]
# No other action has a number in it.
WITHOUT = {
    *("datasourceList", "lockList", "lockRelease", "markSegmentsAsUnused", "segmentAllocate"),
    *("markSegmentsToUpgrade", "retrieveSegmentsById", "segmentDivision", "segmentListUsed"),
    *("segmentNuke", "segmentTransactionalReplace"),
}
EDGES = [
    sign * (1 << bits) + more
    for sign in (1, -1)
    for bits in (31, 32, 63, 64)
    for more in (-1, 0, 1)
]
Numbers = st.sampled_from(
    [*map(str, EDGES), "9" * 400, "9" * 4_400, "-" + "9" * 4_400]
) | st.integers().map(str)

PLACES = [(number, place) for number, form in enumerate(FORMS) for place in places(form)]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    made = Desk(tmp_path_factory.mktemp("numbers"))
    made.add(stream("s"))
    made.add(batch("b", useConcurrentLocks=True))
    return made


def test_every_action_with_a_number_is_here() -> None:
    found = {str(form["type"]) for form in FORMS}
    assert found | WITHOUT == set(actions._READERS)
    assert not found & WITHOUT


@settings(max_examples=300)
@given(st.sampled_from(PLACES), Numbers, st.booleans(), st.sampled_from(["s", "b"]))
def test_a_number_of_any_size_is_taken_or_refused(
    desk: Desk, place: tuple[int, Place], number: str, as_key: bool, task: str
) -> None:
    form = with_number(FORMS[place[0]], place[1], number, "key" if as_key else "number")
    refused: list[PenstockError] = []
    with suppress(orjson.JSONDecodeError):  # the body is refused
        try:
            desk.handler.perform(task, orjson.loads(form))
        except PenstockError as error:
            refused.append(error)
    for one in refused:
        assert status_and_code(one)[0] < 500, (one, form[:300])
        assert len(str(one)) < 1_000
