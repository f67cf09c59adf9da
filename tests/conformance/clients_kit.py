"""Clients of others, each in a process of its own that does what a test says."""

from __future__ import annotations

import itertools
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
INSTALLED = ROOT / ".venv" / "conformance"
PYTHON = INSTALLED / "python" / "bin" / "python"
ENGINES = INSTALLED / "engines"
"""The packages of engines, which a Python prefers to those of its environment."""
CLIENTS = ("pynsq", "ansq", "gnsq", "asyncnsq", "nsqjs")
PATIENCE_S = 120.0


class Refused(Exception):
    """A client said that something did not work."""


class Got(NamedTuple):
    """A message that a consumer got."""

    id: str
    attempts: int
    body: str


def command(client: str) -> list[str]:
    """Return how a client's driver is started; skip or fail when it is not installed."""
    if client == "nsqjs":
        node = shutil.which("node")
        if node is not None and (INSTALLED / "node" / "node_modules" / "nsqjs").exists():
            return [node, str(HERE / "drive_nsqjs.js")]
        missing = "node is not installed: install nodejs and npm, then scripts/setup conformance"
    else:
        if PYTHON.exists():
            return [str(PYTHON), str(HERE / f"drive_{client}.py")]
        missing = "the clients are not installed: scripts/setup conformance"
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)


class Client:
    """A client's process; its producers and consumers go by names.

    Args:
        kind: The client.
        paths: Folders with packages of Python that it prefers to those of its environment.
        patience_s: Longest wait for an answer.
    """

    def __init__(self, kind: str, *paths: str, patience_s: float = PATIENCE_S) -> None:
        self.kind = kind
        self._patience_s = patience_s
        argv = command(kind)  # which skips the test if the client is not installed
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={
                "PATH": os.environ["PATH"],
                "NODE_PATH": str(INSTALLED / "node" / "node_modules"),
                "PYTHONPATH": os.pathsep.join([*paths, str(ROOT)]),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
        )
        self._numbers = itertools.count()
        self._answers: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._messages: defaultdict[str, queue.SimpleQueue[Got]] = defaultdict(queue.SimpleQueue)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process.stdout.close()
        self._errors.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            line = json.loads(raw)
            if "consumer" in line:
                got = Got(line["id"], line["attempts"], line["body"])
                self._messages[line["consumer"]].put(got)
            else:
                self._answers[line["number"]].put(line)

    def errors(self) -> str:
        """Return the end of what the client wrote on stderr."""
        self._errors.seek(0)
        return self._errors.read()[-4000:].decode(errors="replace")

    def begin(self, do: str, name: str, **more: object) -> int:
        """Ask for something; `end` waits for its answer."""
        number = next(self._numbers)
        self._answers[number] = queue.SimpleQueue()
        request = {"number": number, "do": do, "with": {"name": name, **more}}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        return number

    def end(self, number: int) -> Any:
        """Wait for an answer, and return its value.

        Raises:
            Refused: The client says that it did not work.
        """
        try:
            answer = self._answers[number].get(timeout=self._patience_s)
        except queue.Empty:
            raise AssertionError(f"{self.kind} does not answer:\n{self.errors()}") from None
        del self._answers[number]
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["value"]

    def ask(self, do: str, name: str, **more: object) -> Any:
        """Have something done, and return its value."""
        return self.end(self.begin(do, name, **more))

    def message(self, consumer: str) -> Got:
        """Wait for a consumer's next message."""
        try:
            return self._messages[consumer].get(timeout=self._patience_s)
        except queue.Empty:
            raise AssertionError(f"{self.kind} gets no message:\n{self.errors()}") from None

    def has_message(self, consumer: str) -> bool:
        """Say whether a consumer got something that was not asked for yet."""
        return not self._messages[consumer].empty()
