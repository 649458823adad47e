"""What is looked at before any request is answered: who asks, from where, in which form."""

from collections.abc import Iterable
from typing import Any

from lemma.web.answers import spell
from lemma.web.refusal import Refusal

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    b"content-security-policy": POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
}


class Guard:
    """Stands before the application.

    A page elsewhere in the person's browser can send requests to this machine. So a server that is meant for this
    machine answers to local names only, another site's page gets the front page at most, and a body must be JSON, which
    no page may send to another site unasked. (No header ever allows another site to read an answer.)
    """

    def __init__(self, app: Any, hosts: Iterable[str] | None = None) -> None:
        self.app, self.hosts = app, None if hosts is None else frozenset(hosts)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Let a request pass or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = dict(message["headers"])
                message["headers"] = [*message["headers"], *((k, v) for k, v in HEADERS.items() if k not in own)]
            await send(message)

        refusal = self._refusal(scope["method"], scope["path"], dict(scope["headers"]))
        if refusal is None:
            await self.app(scope, receive, send_with_headers)
        else:
            await _refuse(refusal, send_with_headers)

    def _refusal(self, method: str, path: str, headers: dict[bytes, bytes]) -> Refusal | None:
        host = _name(headers.get(b"host", b"").decode("latin-1"))
        if self.hosts is not None and host not in self.hosts:
            known = ", ".join(sorted(self.hosts))
            return Refusal(403, f"this server answers to {known}, not to '{host[:80]}'.")
        if headers.get(b"sec-fetch-site") == b"cross-site" and path != "/":
            return Refusal(403, "another site's page may not use this server.")
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if method == "POST" and kind != b"application/json":
            return Refusal(415, "the body must be JSON: send the header 'Content-Type: application/json'.")
        return None


def _name(host: str) -> str:
    """A host without its port.

    >>> _name("localhost:8000"), _name("[::1]:8000"), _name("127.0.0.1")
    ('localhost', '::1', '127.0.0.1')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


async def _refuse(refusal: Refusal, send: Any) -> None:
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": spell(refusal.to_dict())})
