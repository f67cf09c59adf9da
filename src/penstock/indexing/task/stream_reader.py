"""The reading part of a streaming task: poll the broker, persist a batch, commit it.

One batch at a time. A poll precedes each batch, so the batch includes the messages that arrived
while the previous one was persisted. Another poll follows it: the batch counts only if the topic is
still the same. Log files are found by their names, and the files of a topic that was deleted and
created again may have replaced the intended ones meanwhile. Part of the task, on its mailbox.

If the topic was deleted, or no longer holds the messages to read, the task ends at its current
offsets and publishes what it has read, because no other task could read that again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.core.errors import NotFound, PenstockError
from penstock.indexing.engine import (
    DataFile,
    EngineFailure,
    PersistRequest,
    RowCounts,
)
from penstock.indexing.engine_json import counts_to_json
from penstock.indexing.read_plan import (
    AvailableRange,
    BatchLimits,
    ReadBatch,
    SeenTopic,
    next_batch,
)
from penstock.indexing.task.commit_file import BadFile, Persist
from penstock.indexing.task.dead_letters import in_reading_order
from penstock.indexing.task.meters import MovingAverages, ThroughputMeter
from penstock.indexing.task.parse_errors import ParseErrors, Sample, samples

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.indexing.sequences import Offsets
    from penstock.indexing.task.streaming_state import StreamTaskParts
    from penstock.storage.filesystem import FileSystem


_log = logging.getLogger(__name__)

_BACKLOG_MESSAGES: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Persisted:
    """A persist whose files are durable."""

    files: tuple[DataFile, ...]
    counts: RowCounts
    bad_files: tuple[BadFile, ...]
    samples: tuple[Sample, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """All files that were written."""
        return tuple(f.path for f in self.files) + tuple(f.path for f in self.bad_files)


class StreamReader:
    """Reads and persists batches.

    Args:
        context: The task.
    """

    def __init__(self, context: StreamTaskParts) -> None:
        self._context = context
        self._poll = context.background_call("asking the broker", "broker")
        self._persist = context.background_call("persisting", "persist")
        self._batch: ReadBatch | None = None
        self._end_reason = ""
        self._missing = ""
        self._is_waiting = False
        tuning = context.spec.tuning_config
        self.parse_errors = ParseErrors(tuning)
        # The samples of the batch that fails the task: the batch is dropped, but they are reported.
        self.refused = RowCounts()
        self.averages = MovingAverages(context.ports.clock.monotonic_s())
        self.throughput = ThroughputMeter(context.ports.clock.monotonic_s())
        self._limits = BatchLimits(tuning.max_rows_per_persist, tuning.max_bytes_per_persist)

    @property
    def planned(self) -> Offsets:
        """Start of the next batch: the end of the data that is read or being read."""
        return self._batch.end if self._batch is not None else self._context.state.commit.current

    @property
    def last_error(self) -> str:
        """The last error, or the reason why it waits; empty if none."""
        found = self._persist.last_error or self._poll.last_error
        return found or self._missing or self._end_reason

    def advance(self) -> None:
        """Start to poll for the next batch, unless everything is read."""
        state = self._context.state
        ended = all(s.is_read(self.planned) for s in state.sequences.items)
        if self._batch is None and not self._poll.busy and not ended and not self._is_waiting:
            self._start_poll(self._take_poll, self._context.options.poll_wait_ms)

    def _start_poll(self, heard: Callable[[SeenTopic | None], None], wait_ms: int = 0) -> None:
        """Poll the broker; then call `heard` with the topic, or None if it does not exist."""
        context, after = self._context, dict(self.planned)
        known = context.state.commit.topic_id

        def poll() -> SeenTopic | None:
            try:
                seen = context.source.available(after=after, wait_ms=wait_ms, stream_id=known)
            except NotFound:
                return None
            sized = {
                p: self._with_message_size(a, after.get(p, 0)) for p, a in seen.partitions.items()
            }
            return replace(seen, partitions=sized)

        self._poll.start(poll, heard, context.fail)

    def _with_message_size(self, found: AvailableRange, current: int) -> AvailableRange:
        """Determine the size of messages if there is a backlog that the limit may cut."""
        if found.message_bytes or found.latest - current < _BACKLOG_MESSAGES:
            return found
        size = mean_message_bytes(self._context.ports.fs, found.folder, found.latest)
        return replace(found, message_bytes=size)

    def _take_poll(self, seen: SeenTopic | None) -> None:
        context = self._context
        lost = self._lost_messages(seen)
        if lost and seen is not None and self._waits_for_messages(lost, seen):
            return
        if lost or seen is None:
            self._end_here(lost)
            return
        self._missing = ""
        state = context.state
        if seen.id and not state.commit.topic_id:
            state.change_commit(state.commit.of_topic(seen.id))
        if not context.paused:
            batch = next_batch(state.sequences, state.commit.current, seen.partitions, self._limits)
            if batch is not None:
                self._start_batch(batch, seen)
        context.wake()

    def _waits_for_messages(self, lost: str, seen: SeenTopic) -> bool:
        """Wait for missing messages, if the spec requests it and the topic is the same.

        It polls every `missing_wait_ms`, and continues as soon as the topic has those offsets, even
        with other messages.
        """
        context = self._context
        if not context.spec.tuning_config.waits_for_messages:
            return False
        if seen.is_another(context.state.commit.topic_id):
            return False
        self._missing = f"topic {context.spec.topic}: {lost}: waiting for it"
        delay_ms, self._is_waiting = context.options.missing_wait_ms, True
        context.processor.timers.schedule_after(delay_ms, self._poll_again, "look for messages")
        return True

    def _poll_again(self) -> None:
        self._is_waiting = False
        self._context.wake()

    def _end_here(self, why: str) -> None:
        """End the task at its current offsets; the supervisor decides how to continue."""
        context = self._context
        context.state.stream_lost()
        self._end_reason = f"topic {context.spec.topic}: {why}: the rows read before are published"
        _log.warning("task %s ends: %s", context.spec.id, self._end_reason)
        context.wake()

    def _lost_messages(self, seen: SeenTopic | None) -> str:
        """Return which messages that were read or must be read no longer exist, if any.

        A topic that ends before them was emptied, or lost its end: waiting until it is long enough
        would skip its first messages.
        """
        state = self._context.state
        if seen is None:
            return "it was deleted"
        if seen.is_another(state.commit.topic_id):
            return f"it was deleted and created again (id {state.commit.topic_id}, now {seen.id})"
        available = seen.partitions
        needed = dict(state.commit.current)
        for sequence in state.sequences.items:
            needed.update(sequence.end or {})
        for p, wanted in sorted(state.commit.current.items()):
            found = available.get(p)
            if found is None or needed[p] > found.latest:
                there = "missing" if found is None else f"stored only up to offset {found.latest}"
                return f"stream partition {p} is {there}, but {needed[p]} was reached before"
            if wanted < found.earliest:
                return (
                    f"stream partition {p} is no longer stored from offset {wanted} on, only from"
                    f" {found.earliest}"
                )
        return ""

    def _start_batch(self, batch: ReadBatch, seen: SeenTopic) -> None:
        self._batch = batch
        self.throughput.begin(self._context.ports.clock.monotonic_s())
        self._persist.start(
            lambda: self._run(batch, seen),
            lambda outcome: self._start_poll(
                lambda now: self._finish_batch(batch, outcome, seen, now)
            ),
            self._context.fail,
        )

    def _finish_batch(
        self,
        batch: ReadBatch,
        outcome: _Persisted | EngineFailure,
        seen: SeenTopic,
        now: SeenTopic | None,
    ) -> None:
        """Commit a batch if the stream is still the one to read, at the same place."""
        if (
            now is None
            or now.is_another(self._context.state.commit.topic_id)
            or _moved(batch, seen, now)
            # A source without cursors may delete the messages that are being read.
            or (isinstance(outcome, EngineFailure) and self._lost_messages(now))
        ):
            self._batch = None
            self.throughput.end(0, self._context.ports.clock.monotonic_s())
            if isinstance(outcome, _Persisted):
                self._context.drop(outcome.paths)
            self._take_poll(now)
        elif isinstance(outcome, EngineFailure):
            self._context.fail(outcome)
        else:
            self._commit(batch, outcome)

    def _run(self, batch: ReadBatch, seen: SeenTopic) -> _Persisted | EngineFailure:
        """Persist and make durable; on the lane. Each attempt has new folders.

        A failure is returned: the request did not cause it if the topic was deleted meanwhile.
        """
        context = self._context
        spec, folder = context.spec, context.folder
        times = spec.times_at(context.ports.clock.now_ms())
        request = PersistRequest(
            task_id=spec.id,
            topic=spec.topic,
            ranges=context.source.ranges(batch.start, batch.end, seen),
            schema=spec.data_schema,
            output_folder=folder.new_folder("persist"),
            bad_folder=folder.new_folder("bad"),
            min_time_ms=times.min_ms,
            max_time_ms=times.max_ms,
            delimited=spec.delimited,
            record_format=spec.record_format,
        )
        try:
            result = context.ports.engine.persist(request)
        except EngineFailure as error:
            return error
        bad = in_reading_order(context.ports.fs, result.bad_files)
        sizes = folder.sync([*(file.path for file in result.files), *bad])
        return _Persisted(
            files=tuple(replace(file, bytes=sizes[file.path]) for file in result.files),
            counts=result.counts,
            bad_files=tuple(BadFile(path, sizes[path]) for path in bad),
            samples=samples(context.ports.fs, bad, self.parse_errors.wanted),
        )

    def _commit(self, batch: ReadBatch, result: _Persisted) -> None:
        state = self._context.state
        unparseable = state.counts.unparseable + result.counts.unparseable
        self.parse_errors.keep(result.samples, result.counts.unparseable)
        refusal = self.parse_errors.refusal(unparseable, result.samples)
        if refusal is not None:
            self.refused = RowCounts(unparseable=result.counts.unparseable)
            self._context.fail(refusal)
            return
        state.persisted(
            Persist(
                number=state.commit.number + 1,
                sequence=batch.sequence,
                start=batch.start,
                end=batch.end,
                files=result.files,
                counts=result.counts,
                bad_files=result.bad_files,
            )
        )
        self._batch = None
        counted, now_s = counts_to_json(result.counts), self._context.ports.clock.monotonic_s()
        self.averages.add(counted, now_s)
        self.throughput.end(sum(batch.end[p] - batch.start[p] for p in batch.end), now_s)
        self._context.wake()


def _moved(batch: ReadBatch, seen: SeenTopic, now: SeenTopic) -> bool:
    """Return whether another file may have been read, because of a rename to the same name."""
    return any(
        now.partitions[p].folder != seen.partitions[p].folder if p in now.partitions else True
        for p in batch.start
        if batch.start[p] < batch.end[p]
    )


def mean_message_bytes(fs: FileSystem, folder: str, latest: int) -> int:
    """Return the mean size of the messages in a folder of log files; 0 if unknown.

    Log files are named by the offset of their first message.
    """
    try:
        names = [name for name in fs.listdir(folder) if name.endswith(".log")]
        size = sum(fs.stat(f"{folder}/{name}").size for name in names)
    except PenstockError:
        return 0
    offsets = [int(name[:-4]) for name in names if name[:-4].isdigit()]
    return size // max(1, latest - min(offsets)) if offsets else 0
