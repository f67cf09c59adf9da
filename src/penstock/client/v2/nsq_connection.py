"""One TCP connection to a server: input and output, upgrades, heartbeats, its end.

Owns the transport, the execution of the handshake and the detection of a silent peer. Does not own
the meaning of frames for a producer or a consumer, which is behind `Listener`.

Invariant: `disconnected` of a listener is called exactly once if `open_connection` returned, and no
other callback follows; if it did not return, never.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol, cast

from penstock.client.addresses import Address
from penstock.client.v2 import handshake, v2_protocol
from penstock.core.errors import Closed, InvalidRequest, PenstockError, Unavailable
from penstock.core.loop_tasks import start_owned

if TYPE_CHECKING:
    import ssl

    from penstock.client.options import ConnectionOptions, Environment
    from penstock.client.v2.v2_protocol import Frame
    from penstock.core.compression import Codec

_DECOMPRESS_BYTES: Final = 1 << 20
_MS: Final = 1_000


class Listener(Protocol):
    """User of a connection."""

    def received(self, frames: list[Frame]) -> None:
        """Process frames other than heartbeats."""
        ...

    def disconnected(self, reason: PenstockError) -> None:
        """Handle the end of the connection."""
        ...


class NsqConnection(asyncio.Protocol):
    """One connection. Create it with `open_connection`.

    Attributes:
        address: Address of the server.
        features: Negotiated settings.
        heartbeat_count: Number of received heartbeats.
    """

    def __init__(self, address: str, options: ConnectionOptions, listener: Listener) -> None:
        self.address = address
        self.heartbeat_count = 0
        self._options = options
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = v2_protocol.FrameParser(options.max_frame_bytes)
        self._handshake: handshake.Handshake | None = handshake.Handshake(options, address)
        self.features = handshake.Features()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._codec: Codec | None = None
        self._output: list[bytes] = []
        self._output_scheduled = False
        self._reason: PenstockError | None = None
        self._opened = False
        self._heard = True
        self._upgrade: asyncio.Task[object] | None = None
        self._watch: asyncio.Task[object] | None = None

    # -- callbacks of the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        # uvloop's transports have asyncio's methods but not its base class.
        self._transport = cast("asyncio.Transport", transport)
        try:
            if self._handshake is not None:
                self._transport.write(self._handshake.begin())
        except Exception as error:  # noqa: BLE001 - the server waits for this command
            self._fail("handshake", error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the listener."""
        self._transport = None
        self._output.clear()
        for task in (self._watch, self._upgrade):
            if task is not None:
                task.cancel()
        if self._reason is None:
            why = f": {exc}" if exc else ""
            self._reason = Unavailable(f"{self.address} ended the connection{why}; try again")
        if self._opened:
            self._listener.disconnected(self._reason)
        elif not self._ready.done():
            self._ready.set_exception(self._reason)

    def data_received(self, data: bytes) -> None:
        """Process received bytes."""
        self._heard = True
        if self._reason is not None:
            return
        try:
            if self._codec is None:
                self._take(data)
            else:
                self._take_compressed(data)
        except PenstockError as error:
            self.abort(error)

    # -- for the listener

    def send(self, data: bytes) -> None:
        """Send bytes, together with other output of this iteration of the loop."""
        if not self._output_scheduled:
            # Schedule first: if it raises, the caller knows that nothing is sent.
            self._loop.call_soon(self._flush)
            self._output_scheduled = True
        self._output.append(data)

    def close(self) -> None:
        """Send pending output, and close the connection."""
        try:
            self._flush()
            self._end(Closed(f"the connection to {self.address} was closed here"))
        finally:
            if self._transport is not None:
                self._transport.close()

    def abort(self, reason: PenstockError) -> None:
        """Close the connection immediately."""
        try:
            self._end(reason)
        finally:
            if self._transport is not None:
                self._transport.abort()

    # -- the handshake

    async def open(self, environment: Environment) -> None:
        """Wait for the end of the handshake, then start watching the peer.

        Raises:
            InvalidRequest: The server refuses, or does not speak NSQ's protocol.
            Unavailable: The server refuses for now, or the connection broke.
        """
        await self._ready
        if self._transport is None:
            assert self._reason is not None
            raise self._reason
        self._opened = True
        self._heard = False
        watch = self._watch_peer(environment)
        self._watch = start_owned("heartbeat check", watch, self._fail)

    def _take(self, data: bytes) -> None:
        while self._handshake is not None:
            frames = self._parser.feed(data, 1)
            if not frames:
                return
            data = self._step(self._handshake.take(frames[0]))
        frames = self._parser.feed(data)
        if frames:
            frames = self._without_heartbeats(frames)
            self._listener.received(frames)

    def _take_compressed(self, data: bytes) -> None:
        assert self._codec is not None
        while piece := self._codec.decompress(data, _DECOMPRESS_BYTES):
            data = b""
            self._take(piece)

    def _step(self, step: handshake.Step) -> bytes:
        """Execute a step; return received bytes that must be parsed after it."""
        assert self._handshake is not None
        match step:
            case handshake.StartTls():
                assert self._options.tls is not None
                upgrade = self._start_tls(self._options.tls)
                self._upgrade = start_owned("TLS handshake", upgrade, self._fail)
            case handshake.StartCompression():
                self._codec = _codec(self._handshake.features)
                compressed = self._parser.take_rest()
                return self._codec.decompress(compressed, self._options.max_frame_bytes)
            case handshake.SendBytes(data):
                self.send(data)
            case handshake.HandshakeDone():
                self.features = self._handshake.features
                self._handshake = None
                if not self._ready.done():
                    self._ready.set_result(None)
        return b""

    async def _start_tls(self, context: ssl.SSLContext) -> None:
        assert self._transport is not None
        host = Address.parse(self.address).host
        name = host if host and context.check_hostname else None
        try:
            upgraded = await self._loop.start_tls(
                self._transport, self, context, server_hostname=name or host or ""
            )
        except OSError as error:  # includes `ssl.SSLError`
            text = f"{self.address}: no TLS: {error}; check the certificate and the address"
            self.abort(InvalidRequest(text))
            return
        if upgraded is None:
            self.abort(Unavailable(f"{self.address} ended the connection during TLS; try again"))
            return
        self._transport = upgraded

    def _without_heartbeats(self, frames: list[Frame]) -> list[Frame]:
        heartbeat = v2_protocol.ResponseFrame(v2_protocol.HEARTBEAT)
        if heartbeat not in frames:
            return frames
        self.heartbeat_count += 1
        self.send(v2_protocol.NOP)
        return [frame for frame in frames if frame != heartbeat]

    # -- the open connection

    def _flush(self) -> None:
        self._output_scheduled = False
        output, self._output = self._output, []
        if self._transport is None or not output:
            return
        try:
            if self._codec is None:
                self._transport.writelines(output)
            else:
                self._transport.write(self._codec.compress(b"".join(output)))
        except Exception as error:  # noqa: BLE001 - bytes are missing, so the connection must end
            self.abort(Unavailable(f"{self.address}: cannot send: {error!r}; try again"))

    def _end(self, reason: PenstockError) -> None:
        if self._reason is None:
            self._reason = reason

    async def _watch_peer(self, environment: Environment) -> None:
        """Close a connection without input, not even heartbeats."""
        silence_s = 2 * self._options.heartbeat_ms / _MS
        while True:
            await environment.sleep(silence_s)
            if not self._heard:
                break
            self._heard = False
        text = f"{self.address}: no heartbeat for {silence_s:g} s: check that the server runs"
        self.abort(Unavailable(text))

    def _fail(self, name: str, error: BaseException) -> None:
        self.abort(Unavailable(f"{self.address}: the {name} failed: {error!r}; try again"))


def _codec(features: handshake.Features) -> Codec:
    # Importing Arrow's codecs takes long, and few connections are compressed.
    from penstock.core.compression import Deflate, Snappy  # noqa: PLC0415

    return Snappy() if features.compression == "snappy" else Deflate(features.deflate_level)


async def open_connection(
    address: str, options: ConnectionOptions, listener: Listener, environment: Environment
) -> NsqConnection:
    """Connect, and return the connection once commands may be sent.

    Raises:
        InvalidRequest: The address is invalid, or the server refuses permanently.
        Unavailable: The server cannot be reached, or refuses for now.
    """
    target = Address.parse(address)
    connection = NsqConnection(address, options, listener)
    loop = asyncio.get_running_loop()
    transport: asyncio.Transport | None = None
    try:
        async with asyncio.timeout(options.connect_timeout_s):
            if target.path:
                transport, _ = await loop.create_unix_connection(lambda: connection, target.path)
            else:
                transport, _ = await loop.create_connection(
                    lambda: connection, target.host, target.port
                )
            await connection.open(environment)
    except BaseException as error:
        reason: PenstockError = Closed(f"connecting to {address} was cancelled")
        if isinstance(error, TimeoutError):
            reason = Unavailable(f"{address} did not answer within {options.connect_timeout_s:g} s")
        elif isinstance(error, OSError):
            reason = Unavailable(f"{address} cannot be reached: {error}; is the server up?")
        connection.abort(reason)
        if transport is not None:
            transport.abort()  # the connection does not have it if `connection_made` raised
        if isinstance(error, OSError):
            raise reason from error
        raise
    return connection
