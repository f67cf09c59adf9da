"""Samples of inputs and rows of lookups, read in a process of their own, because of hostile files.

Owns the process: its limits of memory and time, and how a request and its answer pass. Does not own
what a sample is (`spark.batch.input.input_sample`), nor the rows of a lookup
(`spark.batch.input.lookup_rows`).

The request goes to its standard input, with the options and the secrets of this Penstock; the
answer comes from its standard output. Nothing of either is in its environment or arguments.

    tmp/inputs/     one folder of each router, with one of each of its processes; the next router
                    deletes what a killed one left

Invariant: a file that ends the process, by its memory, its time or a crash of a library, is an
error of that request alone.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.core.clock import SystemClock
from penstock.core.errors import CorruptData, InvalidRequest, PenstockError, Unavailable
from penstock.core.http_errors import error_body, error_from, status_and_code
from penstock.services.host.data_folder import DataFolder
from penstock.services.host.host_plan import child_environment
from penstock.services.host.process import die_with_parent
from penstock.services.host.process_guards import guard_process
from penstock.services.options import resolution
from penstock.services.options.table import PenstockOptions
from penstock.storage.metadata.tables.lookups import LookupContent
from penstock.storage.process_folder import ProcessFolder

if TYPE_CHECKING:
    from penstock.spark.batch.options import SparkBatchOptions

logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 30.0
MEMORY_BYTES_MAX: Final = 1 << 30
FILE_BYTES_MAX: Final = 128 << 20
"""Size limit of each file that the process writes: inline text, or what was fetched of a file."""
ANSWER_BYTES_MAX: Final = 8 << 20
# Queries and tasks go first.
_NICENESS: Final = 5
_SAMPLE: Final = "sample"
_LOOKUP: Final = "lookup"
_WHAT: Final = {
    _SAMPLE: "the first rows of the input",
    _LOOKUP: "the rows of the lookup",
}
_PROGRAM: Final = (sys.executable, "-P", "-m", "penstock.services.sampler_process")
_REMEDY: Final = "check that the file is what its name says, or load it with a task"


@dataclass(frozen=True, slots=True)
class SampleAnswer:
    """The answer to a request: its HTTP status, and its JSON."""

    status: int
    body: bytes


class SamplerProcesses:
    """Starts a process for each sample. Thread-safe.

    Args:
        options: The options of this Penstock, with references instead of secrets.
        variables: Environment variables with secrets.
        ports: Ports of Penstock on this host besides those of the options.
        timeout_s: Time limit of a sample.
    """

    def __init__(
        self,
        options: PenstockOptions,
        variables: Mapping[str, str] | None = None,
        ports: Sequence[int] = (),
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.options = options
        self._variables = dict(variables or {})
        self._ports = list(ports)
        self._timeout_s = timeout_s
        self._folder = ProcessFolder(DataFolder(options.data_dir.absolute()).tmp / "inputs")

    def start(self) -> None:
        """Delete what killed routers left. A failure is logged: each request tries again."""
        try:
            self._scratch_root()
        except Unavailable as error:
            logger.warning("%s", error)

    def stop(self) -> None:
        """Delete the files of requests that still run."""
        self._folder.close()

    def sample(self, request: bytes) -> SampleAnswer:
        """Return the answer to a request, which blocks until its process has ended.

        Raises:
            InvalidRequest: The process exceeded its limits, or crashed.
            Unavailable: The process cannot be started.
        """
        status, body = self._answer(request.decode(errors="replace"), _SAMPLE)
        return SampleAnswer(status, body)

    def lookup(self, spec: Mapping[str, object]) -> LookupContent:
        """Return the rows of a lookup, which blocks until its process has ended.

        Args:
            spec: Its spec, with an input.

        Raises:
            InvalidRequest: The rows cannot be read, or are not accepted; or the process exceeded
                its limits, or crashed.
            NotFound: A file does not exist.
            Unavailable: A store or a server does not answer, or the process cannot be started.
        """
        status, body = self._answer(json.dumps(spec), _LOOKUP)
        if status != 200:
            found = json.loads(body)
            raise error_from(status, found["errorCode"], found["error"], found.get("dependency"))
        numbers, _, data = body.partition(b"\n")
        rows, size = map(int, numbers.split())
        return LookupContent(data, rows, size)

    def _answer(self, request: str, kind: str) -> tuple[int, bytes]:
        """Return the status and the body of the answer to a request. Raises as `sample`."""
        try:
            scratch = tempfile.mkdtemp(prefix=f"{kind}-", dir=self._scratch_root())
        except OSError as error:
            raise self._unwritten(error) from None
        text = json.dumps(
            {
                "options": resolution.to_json(self.options),
                "variables": self._variables,
                "ports": self._ports,
                "scratch": scratch,
                "parent": os.getpid(),
                "request": request,
                "kind": kind,
            }
        )
        try:
            return self._run(text.encode(), _WHAT[kind])
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _scratch_root(self) -> Path:
        try:
            return self._folder.opened()
        except OSError as error:
            raise self._unwritten(error) from None

    def _unwritten(self, error: OSError) -> Unavailable:
        return Unavailable(
            f"{self._folder.root} cannot be written ({error.strerror}): free space on its disk, and"
            " restart Penstock if the folder was deleted"
        )

    def _run(self, text: bytes, what: str) -> tuple[int, bytes]:
        try:
            done = subprocess.run(
                _PROGRAM,
                input=text,
                capture_output=True,
                timeout=self._timeout_s,
                env=child_environment(os.environ, self._variables),
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise InvalidRequest(
                f"{what} were not read within {self._timeout_s:g} s: {_REMEDY}"
            ) from None
        except OSError as error:
            raise Unavailable(f"no process can be started: {error.strerror}") from None
        status, newline, body = done.stdout.partition(b"\n")
        if not newline or not status.isdigit():
            logger.warning(
                "the process that reads an input ended with code %d: %s",
                *(done.returncode, done.stderr[-2_000:].decode(errors="replace")),
            )
            raise InvalidRequest(
                f"{what} cannot be read: their reader ran out of its"
                f" {MEMORY_BYTES_MAX >> 20} MiB of memory, or crashed. {_REMEDY.capitalize()}"
            )
        return int(status), body


def _limit() -> None:
    # Imported here, because only the child needs it.
    from penstock.spark.connect.worker_memory import limit_this_process  # noqa: PLC0415

    limit_this_process(MEMORY_BYTES_MAX)
    os.nice(_NICENESS)
    for kind, value in (
        (resource.RLIMIT_CPU, int(TIMEOUT_S)),
        (resource.RLIMIT_FSIZE, FILE_BYTES_MAX),
        (resource.RLIMIT_CORE, 0),
    ):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (value, value))


def _sampled(request: str, options: SparkBatchOptions, scratch: Path) -> bytes:
    # Imported here and below, because the router imports this module.
    from penstock.indexing.specs.input_sample import parse_sample_request  # noqa: PLC0415
    from penstock.spark.batch.input.input_sample import InputSampler  # noqa: PLC0415

    found = InputSampler(parse_sample_request(request), options, scratch).sample()
    body = json.dumps(found).encode()
    # Here, because the process that gets the answer has no limit of memory for it.
    if len(body) > ANSWER_BYTES_MAX:
        raise InvalidRequest(
            f"the names of the columns are longer than {ANSWER_BYTES_MAX >> 20} MiB: {_REMEDY}"
        )
    return body


def _looked_up(request: str, options: SparkBatchOptions, scratch: Path) -> bytes:
    from penstock.indexing.specs.lookup_spec import checked_lookup  # noqa: PLC0415
    from penstock.spark.batch.input.lookup_rows import LookupReader  # noqa: PLC0415
    from penstock.storage.lookup_rows import written_rows  # noqa: PLC0415

    spec = checked_lookup(json.loads(request))
    content = written_rows(LookupReader(spec, options, scratch).read())
    return f"{content.rows} {content.bytes}\n".encode() + content.data


def main() -> None:
    """Read a request from standard input, and write its answer to standard output."""
    given = json.load(sys.stdin)
    die_with_parent(given["parent"])
    # Imported here, because the router imports this module.
    from penstock.spark.batch.options import SparkBatchOptions  # noqa: PLC0415
    from penstock.spark.connect.worker_memory import translate_memory_errors  # noqa: PLC0415
    from penstock.storage.secrets.secret_sources import SECRETS  # noqa: PLC0415
    from penstock.storage.uploads import UPLOADS_FOLDER  # noqa: PLC0415

    options = resolution.from_json(given["options"])
    try:
        options = guard_process(options, given["variables"], SystemClock(), given["ports"])
        _limit()
        reads = SparkBatchOptions(
            secrets=SECRETS.get(), uploads_folder=options.data_dir / UPLOADS_FOLDER
        )
        with translate_memory_errors(f"reading {_WHAT[given['kind']]}"):
            answered = _sampled if given["kind"] == _SAMPLE else _looked_up
            body = answered(given["request"], reads, Path(given["scratch"]))
        status = 200
    except PenstockError as failure:  # narrow: translates
        # Not Penstock's own files are damaged, but those of the client.
        error = InvalidRequest(str(failure)) if isinstance(failure, CorruptData) else failure
        status, _ = status_and_code(error)
        body = json.dumps(error_body(error)).encode()
    sys.stdout.buffer.write(f"{status}\n".encode() + body)


if __name__ == "__main__":
    main()
