"""Merge of many small persists into one, so that queries open few files. Part of a task.

A task without a backlog persists a few hundred rows at a time. A number of them are folded into
one, and the same number of those again, as in a log-structured store; large ones are left for the
publish.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.indexing.engine import DataFile, MergeRequest

if TYPE_CHECKING:
    from penstock.core.intervals import Interval
    from penstock.indexing.task.commit_file import Persist
    from penstock.indexing.task.streaming_state import StreamTaskParts


class PersistMerge:
    """Merges small persists, on the lane of the merges.

    Args:
        context: The task.
    """

    def __init__(self, context: StreamTaskParts) -> None:
        self._context = context
        self._call = context.background_call("folding", "merge")
        self._name = ""
        # Set by the mailbox, read on the lane: an attempt that is repeated after the publish of its
        # sequence would find the files deleted. An earlier one ends first: they share the lane.
        self._moot = False

    def advance(self) -> None:
        """Start a merge if there are enough small persists."""
        context = self._context
        if self._call.busy:
            self._moot = self._moot or self._is_publishing(self._name)
            return
        options = context.options
        run = context.state.commit.to_fold(options.fold_fan_in, options.fold_max_rows)
        if run and not self._is_publishing(run[0].sequence):
            self._name, self._moot = run[0].sequence, False
            self._call.start(
                lambda: self._merge(run), lambda files: self._done(run, files), context.fail
            )

    def _is_publishing(self, name: str) -> bool:
        sequence = self._context.state.sequence(name)
        # A closed sequence is skipped, too: its publish will need the lane soon.
        return sequence is None or sequence.end is not None

    def _merge(self, run: tuple[Persist, ...]) -> tuple[DataFile, ...]:
        """Merge the files of each time chunk and make the new ones durable; on the lane.

        Returns nothing if the result is no longer needed.
        """
        if self._moot:
            return ()
        chunks: dict[Interval, list[DataFile]] = {}
        for persist in run:
            for file in persist.files:
                chunks.setdefault(file.interval, []).append(file)
        result = []
        for interval in sorted(chunks):
            files = chunks[interval]
            result.append(files[0] if len(files) == 1 else self._merged(interval, files))
        return tuple(result)

    def _merged(self, interval: Interval, files: list[DataFile]) -> DataFile:
        context = self._context
        file = context.ports.engine.merge(
            MergeRequest(
                task_id=context.spec.id,
                interval=interval,
                files=tuple(files),
                schema=context.spec.data_schema,
                output_folder=context.folder.new_folder("merge"),
            )
        )
        return replace(file, bytes=context.folder.sync([file.path])[file.path])

    def _done(self, run: tuple[Persist, ...], files: tuple[DataFile, ...]) -> None:
        if files:
            self._context.state.merged(run, files)
        self._context.wake()
