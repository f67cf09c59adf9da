"""Which chunk summaries are hidden, against the rule applied instant by instant."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.intervals import Interval
from penstock.storage.metadata.chunk_summaries import ChunkSummary, not_hidden, visible_chunks

chunks = st.builds(
    lambda at, length, version, core: ChunkSummary.of(
        Interval(at, at + length), str(version), [0], core
    ),
    st.integers(0, 11),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 2),  # with 2, number 1 is missing
)


@given(
    st.lists(chunks, max_size=9, unique_by=lambda chunk: (chunk.interval, chunk.version)),
    st.integers(0, 13),
    st.integers(0, 8),
)
def test_a_chunk_is_hidden_if_newer_complete_ones_cover_every_instant(every, at, length) -> None:
    def shows(chunk: ChunkSummary, instant: int) -> bool:
        return chunk.interval.contains(instant) and not any(
            other.complete and other.version > chunk.version and other.interval.contains(instant)
            for other in every
        )

    shown = [chunk for chunk in every if any(shows(chunk, time) for time in range(at, at + length))]
    shown.sort(key=lambda chunk: chunk.version, reverse=True)
    asked = Interval(at, at + length)
    assert not_hidden(every, asked) == shown
    assert visible_chunks(every, asked) == [chunk for chunk in shown if chunk.complete]
