"""Something done by another thread than the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable


def in_thread(action: Callable[[], object]) -> None:
    """Do it in another thread, to the end; what it raises is raised here."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
