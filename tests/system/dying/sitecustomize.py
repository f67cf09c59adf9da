"""Has a thread of a process of Penstock die: what a test puts before the modules of Penstock.

At SIGUSR1 the thread whose name the environment gives gets a `MemoryError` at its next step.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading

DIES = os.environ.get("PENSTOCK_TEST_THREAD", "")


def _kill(_number: int, _frame: object) -> None:
    for thread in threading.enumerate():
        if thread.name == DIES and thread.ident is not None:
            error = ctypes.py_object(MemoryError)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), error)


if DIES:
    signal.signal(signal.SIGUSR1, _kill)
