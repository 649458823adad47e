"""The server: its socket, its address, and how it ends."""

import errno
import socket
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

import uvicorn

from lemma.errors import InputError
from lemma.serving.app import LOCAL, application
from lemma.serving.runs import Verbs

FARTHEST = 100  # ports to try for a free one
GRACE = 3  # seconds to finish open requests at the end


@dataclass(frozen=True)
class Ready:
    """A server that is ready to answer."""

    address: str
    models: tuple[str, ...]
    local: bool
    """Whether only this machine reaches it."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"address": self.address, "models": list(self.models), "local": self.local}

    def __str__(self) -> str:
        open_to = "" if self.local else "\nAnyone who can reach this machine can use it: there is no password."
        places = f"  page  {self.address}\n  API   {self.address}/v1"
        return f"Serving {', '.join(self.models)}\n{places}{open_to}\nCtrl-C stops it."


class Server(uvicorn.Server):
    """A server that calls `on_ready` when it is, and stops generations when it is stopped."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], object]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and report it."""
        await super().startup(sockets)
        self._on_ready()

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Stop on a signal."""
        self.config.app.state.halt.set()  # pyright: ignore[reportAttributeAccessIssue, reportFunctionMemberAccess]
        super().handle_exit(sig, frame)


def serve_runs(runs: Sequence[Any], verbs: Verbs, host: str, port: int, on_ready: Callable[[Ready], object]) -> None:
    """Serve until Ctrl-C, which is the normal end of a server."""
    with closing(bind(host, port)) as bound, suppress(KeyboardInterrupt):
        address, port = bound.getsockname()[:2]
        local = ip_address(address.partition("%")[0]).is_loopback
        app = application(runs, verbs, hosts={*LOCAL, host.lower()} if local else None)
        ready = Ready(f"http://{f'[{host}]' if ':' in host else host}:{port}", tuple(app.state.served), local)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=GRACE
        )
        Server(config, lambda: on_ready(ready)).run(sockets=[bound])


def bind(host: str, port: int) -> socket.socket:
    """Bind the port before anything is loaded; one that is in use is refused with the next that is free."""
    if not 0 <= port < 2**16:
        raise InputError(f"port = {port}: give a number from 0 (any free port) to 65535.")
    try:
        return _bound(host, port)
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
        raise InputError(f"port {port} on {host} is in use.{_advice(host, port)}") from None


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(place)
        bound.listen()
    except OSError:
        bound.close()
        raise
    return bound


def _advice(host: str, port: int) -> str:
    for other in range(port + 1, min(port + FARTHEST, 2**16)):
        try:
            _bound(host, other).close()
        except OSError:
            continue
        return f" The next free one: --port {other}"
    return " Use another, or 0 for any free port: --port 0"
