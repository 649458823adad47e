"""The server: its socket, its address, and its shutdown."""

import asyncio
import errno
import socket
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from lemma.errors import InputError
from lemma.runs.load import Run
from lemma.serving.app import application
from lemma.serving.guard import LOCAL_HOSTS
from lemma.serving.requests import Limits, check_api_key
from lemma.serving.runs import Precision, RunSource
from lemma.serving.service import Service

MAX_PORT_ATTEMPTS = 100
SECONDS_FOR_HEAD = 10  # for the head of a request
SECONDS_FOR_READER = 60  # for a client to read what was sent
SECONDS_FOR_END = 0.5  # for clients to read the end of their answers before connections are cut


@dataclass(frozen=True)
class Ready:
    """Address of a server that is ready to answer."""

    address: str
    models: tuple[str, ...]
    local: bool  # only this machine reaches it
    keyed: bool = False  # an API key is needed

    def __str__(self) -> str:
        lines = [f"Serving {', '.join(self.models)}"]
        lines += [f"  page  {self.address}", f"  API   {self.address}/v1 (see {self.address}/docs)"]
        if not self.local and not self.keyed:
            lines.append("Anyone who can reach this machine can use it: there is no password (--api-key).")
        return "\n".join([*lines, "Ctrl-C stops it."])


class Server(uvicorn.Server):
    """A server that calls `on_ready`, and lets requests under way finish when it is stopped."""

    def __init__(self, config: uvicorn.Config, service: Service, on_ready: Callable[[], object]) -> None:
        super().__init__(config)
        self._service, self._on_ready = service, on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, then call `on_ready`."""
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        self._on_ready()

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Stop at a signal: requests under way have some seconds to finish, unless a second signal comes."""
        service, is_second = self._service, self._service.stopping
        service.stopping = True
        grace = 0.0 if is_second else service.limits.grace
        self._loop.call_soon_threadsafe(self._loop.call_later, grace, self._fail_requests)
        if not is_second:  # uvicorn would kill tasks at a second one, each with a traceback
            super().handle_exit(sig, frame)

    def _fail_requests(self) -> None:
        """Fail the requests under way, and close their connections after `SECONDS_FOR_END`."""
        self._service.fail_requests()
        self._loop.call_later(SECONDS_FOR_END, self._close_connections)

    def _close_connections(self) -> None:
        """Close all connections at once."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()  # pyright: ignore[reportAttributeAccessIssue]


class TimeoutProtocol(H11Protocol):
    """HTTP with time limits for sending a request's head and for reading the response."""

    _timer: asyncio.TimerHandle | None = None
    _reader: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the time limit for the head of the first request."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(SECONDS_FOR_HEAD, self._close_if_waiting)

    def data_received(self, data: bytes) -> None:
        """Handle received bytes; the first byte of a request starts the time limit for its head."""
        super().data_received(data)
        if not self._is_waiting:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None
        elif self._timer is None:
            self._timer = self.loop.call_later(SECONDS_FOR_HEAD, self._close_if_waiting)

    @property
    def _is_waiting(self) -> bool:
        """True if the connection waits for a request's head, or for the rest of a body that is answered already."""
        return self.conn.their_state is h11.IDLE or self.conn.our_state is h11.DONE

    def _close_if_waiting(self) -> None:
        """Close the connection if it still waits at the end of the time limit for a head."""
        if self._is_waiting:
            self.transport.close()

    def pause_writing(self) -> None:
        """Start the time limit within which the client must read what was sent."""
        super().pause_writing()
        self._reader = self.loop.call_later(SECONDS_FOR_READER, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancel the time limit for reading, since the client has read."""
        super().resume_writing()
        if self._reader is not None:
            self._reader.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all time limits of the connection."""
        super().connection_lost(exc)
        for timer in (self._timer, self._reader):
            if timer is not None:
                timer.cancel()


def serve_runs(
    runs: Sequence[RunSource],
    load: Callable[[RunSource], Run],
    host: str,
    port: int,
    on_ready: Callable[[Ready], object],
    *,
    precision: Precision = "auto",
    api_key: str | None = None,
    allow_hosts: Sequence[str] = (),
    limits: Limits | None = None,
) -> None:
    """Serve runs on host and port until Ctrl-C; call `on_ready` with the address as soon as requests are answered."""
    limits = limits or Limits()
    check_api_key(api_key)
    for name, value in (("host", host), *(("allow_hosts", name) for name in allow_hosts)):
        if not isinstance(value, str) or not value.strip():
            raise InputError(f"{name} = {value!r}: the name or address of a machine is expected. Leave it out.")
    with closing(bind(host, port)) as bound, suppress(KeyboardInterrupt):
        address, port = bound.getsockname()[:2]
        is_local = ip_address(address.partition("%")[0]).is_loopback
        hosts = {*LOCAL_HOSTS, host.lower(), *(name.lower() for name in allow_hosts)}
        if not is_local:  # any address of this machine, but only its own names
            hosts |= {"*", socket.gethostname().lower(), socket.getfqdn().lower()}
        app = application(runs, load, precision, hosts, api_key, limits)
        service = app.state.service
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        ready = Ready(url, tuple(service.served), is_local, keyed=api_key is not None)
        config = uvicorn.Config(
            app,
            http=TimeoutProtocol,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(limits.grace) + 2,
        )
        Server(config, service, lambda: on_ready(ready)).run(sockets=[bound])


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; if the port is in use, raise an error that names the next free one."""
    if not 0 <= port < 2**16:
        raise InputError(f"port = {port}: give a number from 0 (any free port) to 65535.")
    try:
        return _open_socket(host, port)
    except socket.gaierror:
        raise InputError(
            f"host = '{host}' is not a name or address of this machine. The default is 127.0.0.1."
        ) from None
    except PermissionError:
        raise InputError(f"port {port} needs administrator rights. Use one from 1024 up: --port 8000") from None
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise InputError(f"host = '{host}' is not an address of this machine. The default is 127.0.0.1.") from None
        if error.errno != errno.EADDRINUSE:
            raise
        raise InputError(f"port {port} on {host} is in use.{_suggest_port(host, port)}") from None


def _open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens on host and port; raise OSError if it cannot."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen()
    except OSError:
        opened.close()
        raise
    return opened


def _suggest_port(host: str, port: int) -> str:
    """Return a sentence that names a free port near `port`, for an error message."""
    for other in range(port + 1, min(port + MAX_PORT_ATTEMPTS, 2**16)):
        try:
            _open_socket(host, other).close()
        except OSError:
            continue
        return f" The next free one: --port {other}"
    return " Use another, or 0 for any free port: --port 0"
