"""Reads the next window of a swap file before the current one is used up.

Owns when to read, and reading without the mutex. Does not own the windows (`swapped`). A job that
is late, or cannot read, changes nothing: then the poll reads itself.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.errors import PenstockError
from penstock.flow.queue.queue_state import Contents
from penstock.flow.queue.swapped.run import Plan, Run

Background = Callable[[Callable[[], None]], object]


class ReadAhead:
    """Reads ahead in the first swap file; one job per queue at a time.

    Args:
        contents: State of the queue.
        background: Runs a job soon, on another thread; None: nothing is read ahead.
    """

    def __init__(self, contents: Contents, background: Background | None) -> None:
        self._contents = contents
        self._background = background
        self._is_asked = False
        self.windows_read = 0

    def after_taking(self) -> None:
        """Request the next window if it is time. The mutex is not held."""
        if self._background is None or self._is_asked:
            return
        with self._contents.mutex:
            self._is_asked = self._next() is not None
            if not self._is_asked:
                return
        try:
            self._background(self._read)
        except BaseException:
            self._is_asked = False
            raise

    def _read(self) -> None:
        contents, main = self._contents, self._contents.main
        with contents.mutex:
            self._is_asked = False
            wanted = self._next()
            if wanted is None:
                return
            run, plan = wanted
            try:
                reader = run.open(contents.home)
            except PenstockError:
                return  # the poll that needs the file reports it
            run.is_read_ahead = True
        read = None
        try:
            found = reader.take(plan.rows)
            read = found, main.windows.keys(found.flowfiles)
        except PenstockError:
            pass  # the poll that needs the rows reports it
        finally:
            with contents.mutex:
                run.is_read_ahead = False
                contents.mutex.notify_all()  # they wait for the mutex
                if read is not None and main.windows.attach(run, plan, *read):
                    self.windows_read += 1
                    main.runs.changed(run)
                self._close_if_gone(run)

    def _next(self) -> tuple[Run, Plan] | None:
        """Return the first cursor and the rows to read of it; None if there is nothing to read."""
        main = self._contents.main
        ranked = main.runs.ranked()
        plan = main.windows.next_plan(ranked[0], ranked) if ranked else None
        return None if plan is None else (ranked[0], plan)

    @staticmethod
    def _close_if_gone(run: Run) -> None:
        if not run.left:
            run.close()
