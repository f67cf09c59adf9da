"""A process with a running flow, for `test_controller_limits.py`: controller, scheduler, sessions.

    python controller_limits.py FOLDER

Its flow makes FlowFiles with content, passes them on, and counts and sums up their numbers where
they end. Its components start after a line of input, and make more than `FIRST` FlowFiles after a
second one. It prints the count whenever that grows, until it is killed. As in a process of
Penstock's own, a thread that dies ends it, and so does an exception of the main thread.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
from typing import Final

from penstock.core.threads import DEATHS
from penstock.flow.controller.controller import ControllerOptions
from penstock.flow.scheduling.dispatcher import SchedulerOptions
from penstock.services.host.restart_policy import RESTART_REQUESTED
from penstock.storage.disk import OsFileSystem
from tests.flow import controller_kit
from tests.flow.controller_kit import ControllerWorld, apply, number_in, state_of

TOTAL: Final = 400
FIRST: Final = 80
CONTENT_BYTES: Final = 20_000
FLOW: Final = f"""
name: line
processors:
  Make: {{type: Numbers, properties: {{total: {TOTAL}, batch: 4, with_content: true}}}}
  Pass: {{type: Pass, concurrent_tasks: 4}}
  End: {{type: Tally, properties: {{with_content: true}}}}
connections:
  - {{from: Make.success, to: Pass, back_pressure_count: 40}}
  - {{from: Pass.success, to: End, back_pressure_count: 40}}
"""
_LOOK_S: Final = 0.02


_may_go_on = threading.Event()


def content_of(number: int) -> bytes:
    """Return a content that starts with the number; from `FIRST` on, wait for the test."""
    if number >= FIRST:
        _may_go_on.wait()
    return b"%d " % number + b"x" * CONTENT_BYTES


def run(folder: str) -> None:
    """Run the flow, and print how much of it has ended."""
    controller_kit.content_of = content_of
    options = ControllerOptions(scheduler=SchedulerOptions(start_retry_ms=500))
    controller = ControllerWorld(OsFileSystem(), folder, options=options).open()
    if not controller.applied.flow.processors:
        apply(controller, FLOW)
    print(0, 0, flush=True)
    os.read(sys.stdin.fileno(), 1)
    controller.start()
    printed = -1
    while True:
        state = state_of(controller, "End")
        count, total = number_in(state, "count"), number_in(state, "sum")
        if count > printed:
            print(count, total, flush=True)
            printed = count
        # No other thread reads: under the limit, none could be started.
        if _may_go_on.is_set():
            threading.Event().wait(_LOOK_S)
        elif select.select([sys.stdin], [], [], _LOOK_S)[0] and os.read(sys.stdin.fileno(), 1):
            _may_go_on.set()


def main() -> None:
    """Run until the end of the process."""
    DEATHS.end_process_by(lambda _death: os._exit(RESTART_REQUESTED))
    logging.basicConfig(level=logging.WARNING)
    try:
        run(sys.argv[1])
    except BaseException:
        logging.getLogger("flow").exception("the flow ends")
    finally:
        os._exit(RESTART_REQUESTED)


if __name__ == "__main__":
    main()
