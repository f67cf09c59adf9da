"""Has a thread of a process of Penstock die: what a test puts before the modules of Penstock.

When a file appears, the thread of a name gets a `MemoryError` at its next step. The environment
says which.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from pathlib import Path


def _kill(name: str, order: Path) -> None:
    while not order.exists():
        time.sleep(0.01)
    for thread in threading.enumerate():
        if thread.name == name and thread.ident is not None:
            error = ctypes.py_object(MemoryError)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), error)


if _given := os.environ.get("PENSTOCK_TEST_DIES"):
    _name, _, _order = _given.partition("=")
    threading.Thread(target=_kill, args=(_name, Path(_order)), daemon=True).start()
