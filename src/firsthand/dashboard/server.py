"""Serves the page: a socket on loopback, a token, and one task that reads the runs for all browsers."""

import asyncio
import contextlib
import ipaddress
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import UserError
from .access import Guarded
from .run_list import RunList

PORT = 8765
"""The first one that is tried."""
MAX_PORTS = 50
"""How many ports are tried, counting up from it."""
HOST = "127.0.0.1"
POLL_S = 1.0
"""How often the runs' folders are read."""


@dataclass(frozen=True)
class Place:
    """Where the page is, as a socket that is listened on already."""

    listening: socket.socket
    host: str
    token: str
    note: str = ""
    """What the user should know about the choice of the port."""

    @property
    def port(self) -> int:
        """Its number."""
        return self.listening.getsockname()[1]

    @property
    def hosts(self) -> list[str]:
        """What a browser may call this place."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        names = [shown, "localhost"] if ipaddress.ip_address(self.host).is_loopback else [shown]
        return [f"{name}:{self.port}" for name in names]

    @property
    def address(self) -> str:
        """The address to open in the browser. Anybody who has it may control the run."""
        return f"http://{self.hosts[0]}/?token={self.token}"


def listen(host: str = HOST, port: int | None = None) -> Place:
    """A port of the user's choice, or the first free one; `UserError` when that one is taken."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise UserError(f"host is {host!r}, but must be an address of this computer, such as {HOST}.") from None
    if address.is_unspecified:
        raise UserError(f"host is {host}, which means every network; name the one address that the page is for.")
    if port is not None and not 1 <= port <= 65535:
        raise UserError(f"port is {port}, but must lie between 1 and 65535.")
    token = secrets.token_urlsafe(24)
    if port is not None:
        found = _bind(host, port)
        if found is None:
            free = next((p for p in range(port + 1, min(port + MAX_PORTS, 65535)) if _free(host, p)), None)
            hint = f"; {free} is free: --port {free}" if free is not None else ""
            raise UserError(f"port {port} is in use{hint}.")
        return Place(found, host, token)
    for number in range(PORT, PORT + MAX_PORTS):
        found = _bind(host, number)
        if found is not None:
            note = "" if number == PORT else f"Port {PORT} is in use; taking {number}."
            return Place(found, host, token, note)
    raise UserError(f"the ports {PORT} to {PORT + MAX_PORTS - 1} are all in use; give another one with --port.")


def _bind(host: str, port: int) -> socket.socket | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)
    except PermissionError:
        listening.close()
        raise UserError(f"port {port} may not be used without special rights; give one above 1023.") from None
    except OSError as error:
        listening.close()
        if error.errno == 99:  # EADDRNOTAVAIL
            raise UserError(f"host is {host}, which is not an address of this computer.") from None
        return None
    return listening


def _free(host: str, port: int) -> bool:
    with contextlib.closing(_bind(host, port) or socket.socket()) as found:
        return found.getsockname()[1] == port


def serve(runs: RunList, place: Place, *, unwanted: Callable[[], bool] | None = None) -> None:
    """Serve until the process is interrupted, or until `unwanted()` while no browser is connected."""
    import uvicorn
    from fastapi import FastAPI
    from nicegui import Client, app, ui

    from .page import add_page

    add_page(runs)
    outer = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    ui.run_with(
        outer,
        title="firsthand",
        tailwind=False,
        show_welcome_message=False,
        reconnect_timeout=20.0,
        binding_refresh_interval=None,
        favicon=FAVICON,
        message_history_length=100,
    )
    guarded = Guarded(outer, place.token, place.hosts)
    config = uvicorn.Config(
        guarded,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)

    async def follow() -> None:
        alone = 0.0
        while True:
            runs.poll()  # not in a thread: a browser must never see half of what was read
            await asyncio.sleep(POLL_S)
            watched = any(client.has_socket_connection for client in Client.instances.values())
            alone = 0.0 if watched else alone + POLL_S
            if unwanted is not None and alone >= 3 * POLL_S and unwanted():
                server.should_exit = True
                return

    app.on_startup(lambda: _keep(asyncio.create_task(follow())))
    server.run(sockets=[place.listening])


_TASKS: set[asyncio.Task] = set()


def _keep(task: asyncio.Task) -> None:
    """Tasks, so that they are not garbage-collected while they run."""
    _TASKS.add(task)
    task.add_done_callback(_TASKS.discard)


FAVICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><path d="M4 28V18L14 6l10 8 4 10" fill="none" '
    'stroke="#0072B2" stroke-width="4" stroke-linejoin="round" stroke-linecap="round"/></svg>'
)
