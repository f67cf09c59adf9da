"""The server of Flight SQL: each call becomes a request to the router's own HTTP API.

Owns the translation of calls and errors. Rights, quotas, time limits and records are those of the
HTTP API, because it answers every statement. The credential of a call is passed on. A call without
one is passed on only if the kernel reports that this process's own user made it, because the HTTP
API would take the request of this process for its owner's.

Calls run on threads of gRPC. The batches of an answer are passed on as Arrow read them.
"""

from __future__ import annotations

import functools
import io
import json
import logging
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

import pyarrow as pa
from pyarrow import flight

import penstock
from penstock.broker.security.tls import ServerTls, TlsOptions
from penstock.core.access.peer_user import own_user_id, peer_user_id
from penstock.core.access.principal import PrincipalKind
from penstock.core.errors import (
    Conflict,
    Forbidden,
    Full,
    InvalidRequest,
    PenstockError,
    Unauthenticated,
    Unavailable,
)
from penstock.core.http_errors import ClientRemedies, error_of_answer
from penstock.core.sql_sizes import check_text
from penstock.core.threads import OnDeath, OwnedThread
from penstock.services.api.sql_request import describe_query, parameter_count, undescribed
from penstock.services.api.sql_results import described_schema
from penstock.services.flight import messages
from penstock.services.flight.messages import FlightMessage, read_message
from penstock.services.flight.queries import (
    AskedStatement,
    bound_values,
    columns_of_tables,
    question,
    with_schemas,
    without_keys,
)
from penstock.services.json_client import ChunkedAnswer, JsonClient
from penstock.services.options.option_values import HostPort

SQL_PATH: Final = "/druid/v2/sql"
ME_PATH: Final = "/penstock/v1/me"
LOOK_EVERY_S: Final = 0.5
"""Interval at which queries of clients that have left are cancelled, in seconds."""
CALLS_MAX: Final = 64
"""Calls that run at once; rows are sent after a call."""
CALLS_OF_ONE_MAX: Final = 48
"""Those of one principal, except the owner: its slow calls leave places to others."""
BATCHES_MAX: Final = 1_000
"""Batches in which a client may send the parameters of one execution."""
PARAMETER_BYTES_MAX: Final = 1 << 20
_READ_TIMEOUT_S: Final = 3_600.0
_DRIVER: Final = ClientRemedies(
    'give the driver a user and a password, or a token as the header "authorization: Bearer …"',
    "check --http of the router",
)
"""Remedies for users of a driver."""
_QUESTIONS: Final = (messages.SQL_INFO, *messages.ABOUT_TABLES)
_COMMANDS: Final = (messages.STATEMENT, messages.PREPARED, *_QUESTIONS)
_CREDENTIAL: Final = "credential"
_CREATE: Final = "CreatePreparedStatement"
_CLOSE: Final = "ClosePreparedStatement"
# By the numbers of these facts in the definition.
_INFO: Final[Mapping[int, str | bool | int]] = {
    0: "Penstock",
    1: penstock.__version__,
    2: pa.__version__,
    3: True,  # read only
    4: True,  # SQL
    8: 0,  # no transactions
}
_INFO_TYPES: Final = {
    "string_value": pa.string(),
    "bool_value": pa.bool_(),
    "bigint_value": pa.int64(),
    "int32_bitmask": pa.int32(),
    "string_list": pa.list_(pa.string()),
    "int32_to_int32_list_map": pa.map_(pa.int32(), pa.list_(pa.int32())),
}

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


def _flight_error(error: PenstockError) -> flight.FlightError:
    """Return the error that a client gets for one of the HTTP API."""
    text = str(error)
    # pyarrow's own errors would send the client a traceback.
    match error:
        case Unauthenticated():
            return flight.FlightUnauthenticatedError(text)
        case Forbidden():
            return flight.FlightUnauthorizedError(text)
        case Unavailable() | Full():
            return flight.FlightUnavailableError(text)
    return flight.FlightServerError(text)


def _translated(
    call: Callable[Concatenate[FlightSqlServer, P], T],
) -> Callable[Concatenate[FlightSqlServer, P], T]:
    """Give a client the error of Flight for each error of Penstock."""

    @functools.wraps(call)
    def translating(server: FlightSqlServer, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with server.admitted(args[0]):
                return call(server, *args, **kwargs)
        except PenstockError as error:  # narrow: translates
            raise _flight_error(error) from None
        except flight.FlightError:
            raise
        # The outermost handler of a call: pyarrow would send the traceback to the client.
        except Exception:
            logger.exception("a call of Flight SQL failed")
            raise flight.FlightInternalError(
                "the call failed unexpectedly: the log of the router has the reason"
            ) from None

    return translating


def _passed_on(shown: str) -> dict[str, str]:
    """Return the headers with a client's credential.

    `Via` keeps the HTTP API from taking a wrong credential for that of this process's own user.
    """
    return {"Authorization": shown, "Via": "1.1 flight"}


class _Credential(flight.ServerMiddleware):  # type: ignore[misc]  # pyarrow has no types
    """The credential of one call; after a handshake it is the token of the client."""

    def __init__(self, shown: str, *, is_handshake: bool) -> None:
        self.shown = shown
        self._is_handshake = is_handshake

    def sending_headers(self) -> dict[str, str]:
        """Return the headers of the answer."""
        return {"authorization": self.shown} if self._is_handshake and self.shown else {}


class _Credentials(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """Reads the credential of each call, and checks that of a handshake."""

    def __init__(self, check: Callable[[str], object]) -> None:
        self._check = check

    def start_call(
        self, info: flight.CallInfo, headers: Mapping[str, Sequence[str]]
    ) -> _Credential:
        """Return the credential of a call."""
        shown = str(next(iter(headers.get("authorization", ())), ""))
        if shown.lower().startswith("basic "):
            shown += "=" * (-len(shown.rsplit(maxsplit=1)[-1]) % 4)  # Go's client leaves them out
        is_handshake = info.method == flight.FlightMethod.HANDSHAKE
        if is_handshake:
            try:
                self._check(shown)
            except PenstockError as error:  # narrow: translates
                raise _flight_error(error) from None
        return _Credential(shown, is_handshake=is_handshake)


class _NoTokens(flight.ServerAuthHandler):  # type: ignore[misc]  # pyarrow has no types
    """Accepts handshakes, whose credentials are in their headers."""

    def authenticate(self, outgoing: object, incoming: object) -> None:
        """Accept a handshake."""

    def is_valid(self, token: bytes) -> str:
        """Accept a call: the HTTP API checks its credential."""
        del token
        return ""


class _Chunks(io.RawIOBase):
    """The body of an answer as a file; its end closes the connection of the answer."""

    def __init__(self, chunks: Iterator[bytes], held: ExitStack) -> None:
        super().__init__()
        self._chunks = chunks
        self._held = held
        self._left = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes; none at the end."""
        parts: list[bytes] = []
        missing = size
        while missing != 0:
            if not self._left:
                self._left = next(self._chunks, b"")
                if not self._left:
                    break
            taken = self._left if missing < 0 else self._left[:missing]
            self._left = self._left[len(taken) :]
            parts.append(taken)
            missing -= len(taken)
        return b"".join(parts)

    def close(self) -> None:
        if not self.closed:
            self._held.close()
        super().close()


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A call that waits for the first byte of its query's answer."""

    context: flight.ServerCallContext
    headers: Mapping[str, str]


class FlightSqlServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Serves Flight SQL.

    The mutex guards the calls, and those whose queries run: gRPC's threads add and remove them, and
    a thread of this server looks for clients that have left.

    Args:
        address: Where it listens; port 0 picks a free one.
        api: URL of the router's HTTP API.
        certificate: Certificate chain and key, PEM, for TLS; None: plain.
    """

    def __init__(
        self, address: HostPort, api: str, certificate: tuple[bytes, bytes] | None = None
    ) -> None:
        self._api = JsonClient(api, timeout_s=_READ_TIMEOUT_S, role="router", remedies=_DRIVER)
        self._host = address.host
        self._own_user = own_user_id()
        self._mutex = threading.Condition()
        self._waiting: dict[str, _Waiting] = {}
        self._places = threading.BoundedSemaphore(CALLS_MAX)
        self._calls: Counter[str] = Counter()  # that run, of each principal
        self._watch = OwnedThread("flight", self._look_on, on_death=OnDeath.RESTART)
        scheme = "grpc" if certificate is None else "grpc+tls"
        super().__init__(
            f"{scheme}://{address}",
            auth_handler=_NoTokens(),
            tls_certificates=None if certificate is None else [certificate],
            middleware={_CREDENTIAL: _Credentials(self._check)},
        )

    def start(self) -> None:
        """Begin to look for clients that have left; calls are served already."""
        self._watch.start()

    def stop(self) -> None:
        """End all calls."""
        self._watch.end(self._mutex, LOOK_EVERY_S * 2)
        self.shutdown()

    @_translated
    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        """Return the ticket of a statement, or of a question about tables."""
        del context
        message = read_message(descriptor.command or b"", *_COMMANDS)
        ticket, schema = descriptor.command, None
        if message.kind == messages.STATEMENT:
            handle = AskedStatement(_checked(message.text("query"))).to_handle()
            ticket = messages.written_message(messages.TICKET, statement_handle=handle)
        elif message.kind == messages.PREPARED:
            handle = message.bytes("prepared_statement_handle")
            AskedStatement.of_handle(handle)
            ticket = messages.written_message(messages.TICKET, statement_handle=handle)
        elif message.kind == messages.SQL_INFO:
            schema = _info(()).schema
        else:
            schema = without_keys(message) or _question_columns(message)
        endpoint = flight.FlightEndpoint(flight.Ticket(ticket), [])
        return flight.FlightInfo(schema, descriptor, [endpoint])

    @_translated
    def do_get(
        self, context: flight.ServerCallContext, ticket: flight.Ticket
    ) -> flight.FlightDataStream:
        """Return the rows of a ticket."""
        message = read_message(ticket.ticket, messages.TICKET, *_QUESTIONS)
        if message.kind == messages.TICKET:
            asked = AskedStatement.of_handle(message.bytes("statement_handle"))
            answer = self._answer(context, asked)
            return flight.GeneratorStream(answer.schema, _batches(answer))
        if message.kind == messages.SQL_INFO:
            wanted = message.values["info"]
            assert isinstance(wanted, list)
            return flight.RecordBatchStream(_info([int(one) for one in wanted]))
        columns = without_keys(message)
        if columns is not None:
            return flight.RecordBatchStream(columns.empty_table())
        asked_for = question(message)
        found = self._answer(context, asked_for.statement).read_all().cast(asked_for.columns)
        if message.values.get("include_schema"):
            found = with_schemas(found, self._answer(context, columns_of_tables(found)).read_all())
        return flight.RecordBatchStream(found)

    @_translated
    def do_action(
        self, context: flight.ServerCallContext, action: flight.Action
    ) -> list[flight.Result]:
        """Prepare a statement; the handle of a closed one needs nothing."""
        if action.type == _CLOSE:
            return []
        if action.type != _CREATE:
            raise InvalidRequest(
                f"the action {action.type:.60} is not supported: this server only reads, without"
                " transactions"
            )
        sql = _checked(read_message(action.body.to_pybytes(), messages.CREATE).text("query"))
        count = parameter_count(sql)
        parameters = pa.schema([pa.field(f"?{one + 1}", pa.string()) for one in range(count)])
        created = messages.written_message(
            messages.CREATED,
            prepared_statement_handle=AskedStatement(sql).to_handle(),
            dataset_schema=self._columns(context, sql).serialize().to_pybytes(),
            parameter_schema=parameters.serialize().to_pybytes(),
        )
        return [flight.Result(pa.py_buffer(created))]

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        """Return the actions."""
        del context
        return [(_CREATE, "Prepare a statement."), (_CLOSE, "Close a prepared statement.")]

    @_translated
    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """Give a prepared statement the values of its parameters; answers with a new handle."""
        del context
        message = read_message(descriptor.command or b"", messages.PREPARED)
        asked = AskedStatement.of_handle(message.bytes("prepared_statement_handle"))
        row: pa.RecordBatch | None = None
        for number, chunk in enumerate(reader):
            batch = chunk.data
            if number >= BATCHES_MAX or (batch is not None and batch.nbytes > PARAMETER_BYTES_MAX):
                raise InvalidRequest(
                    f"parameters have more than {BATCHES_MAX:,} batches or {PARAMETER_BYTES_MAX:,}"
                    " bytes: give the values of one execution"
                )
            if batch is None or not batch.num_rows:
                continue
            if row is not None or batch.num_rows > 1:
                raise InvalidRequest("give the parameters of one execution: one row")
            row = batch
        values = [] if row is None else bound_values(row)
        handle = AskedStatement(asked.sql, values).to_handle()
        bound = messages.bare_message(messages.BOUND, prepared_statement_handle=handle)
        writer.write(pa.py_buffer(bound))

    @contextmanager
    def admitted(self, context: object) -> Iterator[None]:
        """Let a call with a valid credential run, before anything of it is read.

        Raises:
            Unauthenticated: It has none.
            Unavailable: Too many calls run, or too many of its principal.
        """
        assert isinstance(context, flight.ServerCallContext)
        if not self._places.acquire(blocking=False):
            raise Unavailable(f"{CALLS_MAX} calls run: try again in a moment")
        try:
            principal = self._check(context.get_middleware(_CREDENTIAL).shown)
            self._headers(context)
            with self._counted(principal):
                yield
        finally:
            self._places.release()

    def _check(self, shown: str) -> str:
        """Return the id of the principal of a credential; empty: the owner, or there is none.

        Raises:
            PenstockError: The credential is not valid.
        """
        if not shown:
            return ""
        found = self._api.request("GET", ME_PATH, headers=_passed_on(shown))
        assert isinstance(found, dict)
        return "" if found["kind"] == PrincipalKind.OWNER else str(found["principal"])

    @contextmanager
    def _counted(self, principal: str) -> Iterator[None]:
        """Count a call of a principal for a block; empty: the owner. Raises as `admitted`."""
        if not principal:
            yield
            return
        with self._mutex:
            if self._calls[principal] >= CALLS_OF_ONE_MAX:
                raise Unavailable(f"{CALLS_OF_ONE_MAX} calls of yours run: wait until one ends")
            self._calls[principal] += 1
        try:
            yield
        finally:
            with self._mutex:
                self._calls[principal] -= 1
                if not self._calls[principal]:
                    del self._calls[principal]

    def _headers(self, context: flight.ServerCallContext) -> dict[str, str]:
        """Return the headers with which a call is passed on.

        Raises:
            Unauthenticated: It has no credential, and another user may have made it.
        """
        shown = context.get_middleware(_CREDENTIAL).shown
        if shown:
            return _passed_on(shown)
        client, server = _peer(context.peer()), (self._host, self.port)
        user = None if client is None else peer_user_id(client, server)
        if user is None or user != self._own_user:
            raise Unauthenticated(f"this call has no credential: {_DRIVER.token}")
        return {}

    def _answer(
        self, context: flight.ServerCallContext, asked: AskedStatement
    ) -> pa.RecordBatchReader:
        """Return the rows of a statement, which arrive as they are read."""
        query_id = str(uuid.uuid4())
        body = {
            "query": asked.sql,
            "parameters": asked.parameters,
            "resultFormat": "arrow",
            "context": {"sqlQueryId": query_id},
        }
        headers = self._headers(context)
        with ExitStack() as stack:
            with self._mutex:
                self._waiting[query_id] = _Waiting(context, headers)
            try:
                opened = self._api.stream("POST", SQL_PATH, json.dumps(body).encode(), headers)
                answer = stack.enter_context(opened)
            finally:
                with self._mutex:
                    del self._waiting[query_id]
            if answer.status >= 300:
                raise _refused(answer)
            if answer.truncated:
                raise InvalidRequest(
                    "the answer has more rows than the limit of the router, which a client of"
                    " Flight SQL could not see: select less, or write LIMIT"
                )
            file = _Chunks(answer.chunks, stack.pop_all())
        try:
            return pa.ipc.open_stream(pa.PythonFile(file, mode="r"))
        except BaseException:
            file.close()
            raise

    def _columns(self, context: flight.ServerCallContext, sql: str) -> pa.Schema:
        nulls: list[object] = [None] * parameter_count(sql)
        try:
            described = self._answer(context, AskedStatement(describe_query(sql), nulls))
        except InvalidRequest as error:  # narrow: translates
            raise undescribed(error) from None
        return described_schema(described.read_all())

    def _look_on(self) -> None:
        while not self._watch.is_end_expected:
            with self._mutex:
                self._mutex.wait(LOOK_EVERY_S)
                left = {
                    query_id: one.headers
                    for query_id, one in self._waiting.items()
                    if one.context.is_cancelled()
                }
            for query_id, headers in left.items():
                with suppress(PenstockError):  # it has ended, or its time limit ends it
                    self._api.request("DELETE", f"{SQL_PATH}/{query_id}", headers=headers)


class FlightPort:
    """The port of Flight SQL of a process.

    Args:
        address: Where it listens.
        api: URL of the router's HTTP API.
        tls: TLS of the process; its certificate is read at the start.
    """

    def __init__(self, address: HostPort, api: str, tls: ServerTls | None) -> None:
        self._address = address
        self._api = api
        self._tls = tls
        self._server: FlightSqlServer | None = None

    def start(self) -> None:
        """Begin to serve.

        Raises:
            Unavailable: The certificate cannot be read.
            Conflict: The port is taken.
        """
        certificate = None if self._tls is None else _certificate(self._tls.options)
        try:
            self._server = FlightSqlServer(self._address, self._api, certificate)
        except (pa.ArrowException, flight.FlightError, OSError):
            raise Conflict(
                f"cannot listen on {self._address} for Flight SQL: another process has the port;"
                " choose another one with --flight"
            ) from None
        self._server.start()

    def stop(self) -> None:
        """End all calls, and close the port."""
        if self._server is not None:
            self._server.stop()


def _batches(answer: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield the batches of an answer.

    Raises:
        FlightError: The answer ended early. pyarrow would send another error with its traceback.
    """
    try:
        with answer:
            yield from answer
    except PenstockError as error:  # narrow: translates
        raise _flight_error(error) from None
    except pa.ArrowException:
        logger.exception("an answer of Flight SQL ended early")
        raise flight.FlightInternalError(
            "the answer ended early: the log of the router has the reason"
        ) from None


def _certificate(options: TlsOptions) -> tuple[bytes, bytes] | None:
    if options.certificate is None:
        return None
    try:
        chain = Path(options.certificate).read_bytes()
        return chain, Path(options.key or options.certificate).read_bytes()
    except OSError as error:
        raise Unavailable(f"cannot read the certificate for Flight SQL: {error}") from None


def _checked(sql: str) -> str:
    """Return a statement that is not too long. Raises as `check_text`."""
    check_text(sql)
    return sql


def _refused(answer: ChunkedAnswer) -> PenstockError:
    content = answer.read_all()
    return error_of_answer(answer.status, content, answer.request, remedies=_DRIVER)


def _question_columns(message: FlightMessage) -> pa.Schema:
    columns = question(message).columns
    if message.values.get("include_schema"):
        columns = columns.append(pa.field("table_schema", pa.binary(), nullable=False))
    return columns


def _peer(text: str) -> tuple[str, int] | None:
    """Return the address in gRPC's name of a peer, such as `ipv4:127.0.0.1:5000`."""
    kind, _, rest = text.partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in {"ipv4", "ipv6"} or not port.isdecimal():
        return None
    return host.replace("%5B", "").replace("%5D", "").strip("[]"), int(port)


def _info(wanted: Sequence[int]) -> pa.Table:
    """Return what clients may know about the server; nothing wanted means everything."""
    numbers = [one for one in _INFO if not wanted or one in wanted]
    kinds: list[int] = []
    offsets: list[int] = []
    children: list[list[object]] = [[] for _ in _INFO_TYPES]
    for number in numbers:
        value = _INFO[number]
        kind = 0 if isinstance(value, str) else 1 if isinstance(value, bool) else 3
        kinds.append(kind)
        offsets.append(len(children[kind]))
        children[kind].append(value)
    values = pa.UnionArray.from_dense(
        pa.array(kinds, pa.int8()),
        pa.array(offsets, pa.int32()),
        [pa.array(one, of) for one, of in zip(children, _INFO_TYPES.values(), strict=True)],
        list(_INFO_TYPES),
    )
    names = pa.array(numbers, pa.uint32())
    schema = pa.schema(
        [pa.field("info_name", pa.uint32(), nullable=False), pa.field("value", values.type)]
    )
    return pa.Table.from_arrays([names, values], schema=schema)
