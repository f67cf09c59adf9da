"""A peon that does no work: it waits for the end of its input, as `roles.peon` does with a task.

With `--forks-fd` it is the fork server of such peons; with `--no-forks` that one ends at once,
and with `--hangs` it is never ready.
"""

from __future__ import annotations

import argparse
import signal
import sys

from penstock.services.host.fork_server import serve
from penstock.services.host.process import die_with_parent


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--words-fd", type=int, required=True)
    parser.add_argument("--forks-fd", type=int)
    parser.add_argument("--no-forks", action="store_true")
    parser.add_argument("--hangs", action="store_true")
    given, _ = parser.parse_known_args()
    die_with_parent(given.parent)
    if given.forks_fd is not None:
        if given.no_forks:
            sys.exit("this one does not serve")
        if given.hangs:
            sys.stdin.close()
            signal.pause()
        serve(given.forks_fd, given.words_fd)
        die_with_parent(given.parent)
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
