"""Who may see the page: only a browser with the token, at the address that was printed.

A plain ASGI layer around everything, pages, scripts and websockets alike:

- `Host` must be an address that the server was started with (a name that was made to point here is not one);
- `Origin` must be the page's own; a websocket, or a request that could change something, must have one;
- the token is in the address that was printed and is at once moved into a cookie, which scripts and other sites do not
  get. Without it, or with a wrong one: 403.
"""

import secrets
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

SAFE = ("GET", "HEAD")
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' {sockets}; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'none'"
)
"""Nothing may come from elsewhere or go there; Vue needs the two `unsafe` ones for what it compiles."""
HEADERS = (
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
REFUSED = b"403: open the address that firsthand printed when it started this page; it holds the token.\n"
ENTER = b'<!DOCTYPE html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=/"><title>firsthand</title>\n'
"""Leads on from our own page, so that the browser sends the strict cookie, and the token is gone from the address."""


class Guarded:
    """An application that only those with the token reach."""

    def __init__(self, app: Any, token: str, hosts: Iterable[str]) -> None:
        self.app, self.token, self.hosts = app, token, frozenset(host.lower() for host in hosts)
        self.origins = frozenset(f"http://{host}" for host in self.hosts)
        policy = POLICY.format(sockets=" ".join(f"ws://{host}" for host in sorted(self.hosts)))
        self.headers = (*HEADERS, (b"content-security-policy", policy.encode()))
        # Cookies do not know ports: two pages on one computer need names of their own.
        self.cookie = "firsthand_" + "_".join(sorted({host.rpartition(":")[2] for host in self.hosts}))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Let through, let in, or refuse."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if not self._known_place(scope):
            await refuse(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] == "/" and b"token=" in scope["query_string"]:
            await self._enter(scope, receive, send)
        elif self._has_cookie(scope):
            # There is no proxy in front of this: headers that claim one are not believed.
            honest = [(name, value) for name, value in scope["headers"] if not name.startswith(b"x-forwarded")]
            await self.app({**scope, "headers": honest}, receive, self._with_headers(send))
        else:
            await refuse(scope, receive, send)

    def _known_place(self, scope: Any) -> bool:
        hosts, origins = _values(scope, b"host"), _values(scope, b"origin")
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            return False
        if any(origin.lower() not in self.origins for origin in origins):
            return False
        return bool(origins) or (scope["type"] == "http" and scope["method"] in SAFE)

    def _has_cookie(self, scope: Any) -> bool:
        found = []
        for header in _values(scope, b"cookie"):
            jar = SimpleCookie()
            try:
                jar.load(header)
            except CookieError:
                continue
            found += [morsel.value for name, morsel in jar.items() if name == self.cookie]
        return any(self._is_token(value) for value in found)

    def _with_headers(self, send: Any) -> Any:
        async def wrapped(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *self.headers]}
            await send(message)

        return wrapped

    def _is_token(self, value: str) -> bool:
        return secrets.compare_digest(value.encode("utf-8", "replace"), self.token.encode())

    async def _enter(self, scope: Any, receive: Any, send: Any) -> None:
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        if scope["method"] not in SAFE or len(given) != 1 or not self._is_token(given[0]):
            await refuse(scope, receive, send)
            return
        cookie = f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
        await _answer(send, 200, b"text/html; charset=utf-8", ENTER, ((b"set-cookie", cookie.encode()),))


async def refuse(scope: Any, receive: Any, send: Any) -> None:
    """403; a websocket is closed before it is accepted, which is the same."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})
        return
    await _answer(send, 403, b"text/plain; charset=utf-8", REFUSED)


async def _answer(send: Any, status: int, kind: bytes, body: bytes, more: tuple = ()) -> None:
    length = str(len(body)).encode()
    headers = [(b"content-type", kind), (b"content-length", length), (b"cache-control", b"no-store"), *HEADERS, *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _values(scope: Any, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]
