"""What runs in Spark for one call, to be stopped from another thread.

Owns the tag of a call and the interrupt, which is repeated: Spark forgets an interrupt of what it
does not run yet.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from penstock.indexing.engine import EngineFailure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_INTERRUPT_EVERY_S: Final = 0.2


class Running:
    """A call on its way; `stop` may come from any thread."""

    def __init__(self) -> None:
        self.session: SparkSession | None = None
        self.stopped = ""
        self._tag = f"penstock-{uuid.uuid4().hex}"
        self._ended = threading.Event()

    def stop(self, reason: str) -> None:
        """Interrupt what runs; the caller tells the reason."""
        self.stopped = self.stopped or reason
        self._interrupt()

    def end(self) -> None:
        """Say that there is nothing to stop any more."""
        self._ended.set()

    def wait(self, seconds: float) -> None:
        """Return when there is nothing to stop any more, or after so long."""
        self._ended.wait(seconds)

    def check(self) -> None:
        """Return if the call may go on.

        Raises:
            EngineFailure: It was stopped.
        """
        if self.stopped:
            raise EngineFailure(self.stopped)

    @contextlib.contextmanager
    def limited(self, seconds: float, reason: str) -> Iterator[None]:
        """Stop what runs in the block when it takes longer."""
        timer = threading.Timer(max(seconds, 0.0), self.stop, [reason])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    @contextlib.contextmanager
    def tagged(self, spark: SparkSession) -> Iterator[None]:
        """Run the block so that `stop` finds it; tags belong to the thread.

        Raises:
            EngineFailure: It was stopped already.
        """
        self.check()
        self.session = spark
        spark.addTag(self._tag)
        try:
            yield
        finally:
            spark.removeTag(self._tag)

    def _interrupt(self) -> None:
        if self._ended.is_set():
            return
        session = self.session
        if session is not None:
            with contextlib.suppress(Exception):  # it may have ended, or Spark be gone
                session.interruptTag(self._tag)
        again = threading.Timer(_INTERRUPT_EVERY_S, self._interrupt)
        again.daemon = True
        again.start()
