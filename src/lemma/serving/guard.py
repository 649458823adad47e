"""Checks before any request is answered: host, origin and API key."""

import asyncio
import base64
import hmac
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

from lemma.serving.formats import error_response
from lemma.serving.metrics import ServerMetrics
from lemma.serving.requests import ApiError

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    b"content-security-policy": PAGE_POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
}
SECONDS_FOR_UNREAD = 5  # for the rest of a body that nobody reads
MAX_UNREAD_BYTES = 2**24


class RequestGuard:
    """Middleware that refuses requests for other hosts, from other sites, or without the key, and counts all answers.

    A page elsewhere in the person's browser can send requests to this machine. So a server answers to its own names
    only, another site's page gets the front page at most, and a body must be JSON (`read_body`), which no page may send
    to another site unasked. (No header ever allows another site to read an answer.) With a key, nothing is answered
    without it: programs send it as a bearer token, a browser asks the person for it as a password.
    """

    def __init__(
        self, app: Any, metrics: ServerMetrics, hosts: Iterable[str] | None = None, api_key: str | None = None
    ) -> None:
        self.app, self.metrics, self.api_key = app, metrics, api_key
        self.hosts = None if hosts is None else frozenset(hosts)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        has_more, bytes_left = True, MAX_UNREAD_BYTES

        async def count_bytes() -> Any:
            nonlocal has_more, bytes_left
            message = await receive()
            has_more, bytes_left = message.get("more_body", False), bytes_left - len(message.get("body", b""))
            return message

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                # a client that is still sending when the connection is closed would not read the answer
                with suppress(TimeoutError):
                    async with asyncio.timeout(SECONDS_FOR_UNREAD):
                        while has_more and bytes_left > 0 and message["status"] != 408:
                            await count_bytes()
                present = dict(message["headers"])
                defaults = ((name, value) for name, value in HEADERS.items() if name not in present)
                message["headers"] = [*message["headers"], *defaults]
                route = getattr(scope.get("route"), "path", "other")
                self.metrics.count("lemma_requests_total", route=route, status=str(message["status"]))
            await send(message)

        error = self._find_error(scope["path"], dict(scope["headers"]))
        if error is not None:
            await error_response(error)(scope, count_bytes, send_with_headers)
            return
        if scope["method"] == "HEAD":  # answered like GET; the server sends the headers alone
            scope = {**scope, "method": "GET"}
        await self.app(scope, count_bytes, send_with_headers)

    def _find_error(self, path: str, headers: dict[bytes, bytes]) -> ApiError | None:
        """Return the error of a request for a foreign host, from a foreign site or without the key; None if allowed."""
        host_header = headers.get(b"host", b"").decode("latin-1").lower()
        host = host_name(host_header)
        if self.hosts is not None and host not in self.hosts and not ("*" in self.hosts and _is_address(host)):
            names = ", ".join(sorted(self.hosts - {"*"}))
            return ApiError(403, f"this server answers to {names}, not to '{host[:80]}'. See --allow-host.")
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        if origin and origin.partition("://")[2] != host_header:
            return ApiError(403, f"a page of '{origin[:80]}' may not use this server.")
        if headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site") and path != "/":
            return ApiError(403, "another site's page may not use this server.")
        if self.api_key is not None and not _has_key(headers.get(b"authorization", b""), self.api_key):
            challenge = {"www-authenticate": 'Basic realm="Lemma", charset="UTF-8"'}
            message = "the API key is missing or wrong: send the header 'Authorization: Bearer KEY'."
            return ApiError(401, message, code="invalid_api_key", headers=challenge)
        return None


def _has_key(authorization: bytes, key: str) -> bool:
    """Return whether an Authorization header has the API key, as a bearer token or as the password of any user name."""
    scheme, _, value = authorization.strip().partition(b" ")
    if scheme.lower() == b"basic":
        try:
            value = base64.b64decode(value.strip(), validate=True).partition(b":")[2]
        except ValueError:
            return False
    elif scheme.lower() != b"bearer":
        return False
    return hmac.compare_digest(value.strip(), key.encode())


def _is_address(host: str) -> bool:
    """Return whether a host is an IP address, which no other site's page can have as its origin."""
    try:
        return bool(ip_address(host))
    except ValueError:
        return False


def host_name(host: str) -> str:
    """Return the host of a Host header, without its port.

    >>> host_name("localhost:8000"), host_name("[::1]:8000"), host_name("127.0.0.1")
    ('localhost', '::1', '127.0.0.1')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
