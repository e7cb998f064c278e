"""`firsthand dashboard`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Dashboard:
    """Show the live page of one run, or of several over each other."""

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN...", help_behavior_hint="")]
    """Folders of runs, or a folder that holds runs. They may be going on in another process, or not have started."""
    port: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """Port of the page; by default 8765, or the next free one."""
    host: str = "127.0.0.1"
    """The one address of this computer at which the page is served; anything but loopback is not encrypted."""

    def run(self) -> int:
        """Serve until Ctrl-C."""
        from ..dashboard import check_installed
        from ..errors import UserError

        check_installed()
        from ..dashboard.run_list import RunList
        from ..dashboard.server import HOST, listen, serve

        if not self.runs:
            raise UserError("give the folder of a run: firsthand dashboard RUN.")
        runs, place = RunList(self.runs), listen(self.host, self.port)
        for follower in runs.followers.values():
            if follower.problem:
                print(follower.problem)
        if place.note:
            print(place.note)
        if place.host != HOST:
            print("This page is not encrypted: whoever can listen to the network can take its token. Prefer ssh -L.")
        print(f"Live page: {place.address}", flush=True)
        print("Whoever has this address may control the run. Ctrl-C ends the page, not the run.", flush=True)
        serve(runs, place)
        return 0
