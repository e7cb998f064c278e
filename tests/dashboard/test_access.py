"""Who gets in: tokens, hosts, origins and ports, against the real server."""

import socket
import subprocess
import sys
from http.client import HTTPConnection, HTTPMessage
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from firsthand.dashboard.server import listen
from firsthand.errors import UserError

from .processes import address_of, started

BLOCK = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "nicegui":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
from firsthand.cli import main
main(sys.argv[1:])
"""


class Answer(NamedTuple):
    status: int
    headers: HTTPMessage
    text: str


def test_only_the_one_with_the_token_gets_in(compiled, tmp_path):
    with started(compiled / "processes", "dashboard", tmp_path / "run") as server:
        address = urlsplit(address_of(server))
        place, token = address.netloc, address.query.removeprefix("token=")
        assert len(token) >= 32

        def get(path: str, method: str = "GET", **headers: str) -> Answer:
            connection = HTTPConnection(address.hostname or "", address.port or 0, timeout=60)
            connection.request(method, path, headers={name.replace("_", "-"): v for name, v in headers.items()})
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read().decode())

        entered = get(f"/?token={token}")
        assert entered.status == 200
        cookie = entered.headers.get("Set-Cookie", "").split(";")[0]
        assert {"HttpOnly", "SameSite=Strict"} <= set(entered.headers.get("Set-Cookie", "").split("; "))
        assert token not in entered.text
        page = get("/", Cookie=cookie)
        assert page.status == 200
        assert page.headers.get("X-Frame-Options") == "DENY"
        assert "default-src 'self'" in page.headers.get("Content-Security-Policy", "")
        script = next(part for part in page.text.split('"') if part.startswith("/_nicegui/") and part.endswith(".js"))
        assert get(script, Cookie=cookie).status == 200
        assert "http://" not in page.text.replace("http://www.w3.org", "")

        wrong = cookie[:-1] + ("a" if cookie[-1] != "a" else "b")
        evil = {"Origin": "http://evil.example"}
        here = {"Origin": f"http://{place}"}
        refused = [
            get("/"),
            get("/?token="),
            get("/?token=wrong"),
            get(f"/?token={token}&token=x"),
            get(f"/?token={token}", "POST", **here),
            get(script),
            get("/", Cookie=wrong),
            get("/", Cookie=cookie, Host="evil.example"),
            get(f"/?token={token}", Host="evil.example"),
            get("/", Cookie=cookie, **evil),
            get("/", Cookie=cookie, Origin="null"),
            get("/", "POST", Cookie=cookie),  # a page elsewhere could send that
            get("/_nicegui_ws/socket.io/?EIO=4&transport=polling", "POST", Cookie=cookie, **evil),
        ]
        assert [answer.status for answer in refused] == [403] * len(refused)
        assert all(token not in answer.text for answer in refused)
        for path in ("/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/run/config.json", "/docs", "/openapi.json"):
            assert get(path, Cookie=cookie).status == 404

        def websocket(**headers: str) -> int:
            """The status of a handshake."""
            asked = {
                "Host": place,
                "Upgrade": "websocket",
                "Connection": "Upgrade",
                "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
                "Sec-WebSocket-Version": "13",
                **headers,
            }
            lines = "".join(f"{name}: {value}\r\n" for name, value in asked.items())
            with socket.create_connection((address.hostname, address.port), timeout=60) as link:
                link.sendall(f"GET /_nicegui_ws/socket.io/?EIO=4&transport=websocket HTTP/1.1\r\n{lines}\r\n".encode())
                return int(link.recv(4096).split()[1])

        assert websocket(Cookie=cookie, **here) == 101
        assert websocket(Cookie=cookie) == 403
        assert websocket(Cookie=cookie, **evil) == 403
        assert websocket(Cookie=wrong, **here) == 403
        assert websocket(**here) == 403
        assert websocket(Cookie=cookie, Host="evil.example", **here) == 403


def test_a_port_in_use_is_said_and_the_next_one_offered():
    first = listen()
    try:
        with pytest.raises(UserError, match=rf"port {first.port} is in use; (\d+) is free: --port \1"):
            listen(port=first.port)
        second = listen()
        assert second.port > first.port
        assert "is in use; taking" in second.note
        second.listening.close()
    finally:
        first.listening.close()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"host": "0.0.0.0"}, "every network"),
        ({"host": "robot"}, "must be an address"),
        ({"host": "192.0.2.7"}, "not an address of this computer"),
        ({"port": 0}, "between 1 and 65535"),
        ({"port": 70000}, "between 1 and 65535"),
    ],
)
def test_places_that_are_none(options, word):
    with pytest.raises(UserError, match=word):
        listen(**options)


def test_without_the_extra_it_is_named(tmp_path):
    command = [sys.executable, "-c", BLOCK, "dashboard", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 2
    assert "-e '.[dashboard]'" in done.stderr
