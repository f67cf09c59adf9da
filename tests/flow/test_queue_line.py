"""A line of FlowFiles against a sorted list, whatever order they come in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.flow.flowfile import FlowFile
from penstock.flow.queue.ordered_store import SortedEntries

# Runs of following keys, as batches of a source are, between single ones from anywhere.
PUTS = st.tuples(st.just("put"), st.integers(0, 400), st.integers(1, 40))
TAKES = st.tuples(st.just("take"), st.integers(1, 60), st.none() | st.integers(0, 400))
LASTS = st.tuples(st.just("last"), st.integers(1, 30), st.none())
REMOVALS = st.tuples(st.just("remove"), st.integers(0, 400), st.integers(1, 30))


@given(st.lists(st.one_of(PUTS, TAKES, LASTS, REMOVALS), max_size=30))
def test_gives_what_a_sorted_list_gives(steps: list[tuple[str, int, int | None]]) -> None:
    line, model = SortedEntries(), []
    numbers = iter(range(1_000_000))
    for what, number, other in steps:
        if what == "put" and other is not None:
            made = [
                ((number + one, next(numbers)), FlowFile(number + one, {})) for one in range(other)
            ]
            line.put(made[::-1])
            model = sorted([*model, *made], key=lambda entry: entry[0])
        elif what == "take":
            before = None if other is None else (other,)
            fit = [one for key, one in model if before is None or key < before][:number]
            found: list[FlowFile] = []
            line.take(found, number, before)
            assert found == fit
            del model[: len(fit)]
        elif what == "last":
            last = line.last(number)
            assert last == model[-number:]
            line.drop_last(len(last))
            del model[-number:]
        elif other is not None:
            ids = set(range(number, number + other))
            gone: list[FlowFile] = []
            line.remove(ids, gone)
            assert sorted(one.id for one in gone) == [one.id for _, one in model if one.id in ids]
            model = [entry for entry in model if entry[1].id not in ids]
        assert len(line) == len(model)
        assert line.head() == (model[0][0] if model else None)
        assert sorted(key for key, _ in line) == [key for key, _ in model]
