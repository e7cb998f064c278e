"""What the operator can change between episodes: payload, an earlier policy, a checkpoint to keep."""

from nicegui import ui

from ...control.files import MAX_TAG_LENGTH
from ...units import TRACKING
from ..follower import RunFollower
from ..requests import Requests
from .elements import note, panel, row
from .header import accepts_requests

MAX_EPISODES = 200
"""Only the newest episodes are offered to go back to."""


class OperatorPanel:
    """Requests that wait for the end of an episode."""

    def __init__(self, requests: Requests) -> None:
        self.requests = requests
        self.offered: dict[str, str] = {}
        with panel("Operator"):
            with row():
                validation = {"too long": lambda value: len(value or "") <= MAX_TAG_LENGTH}
                self.payload = ui.input(label="payload tag, or kg", validation=validation).props("dense")
                self.payload.style("flex: 1; min-width: 8rem")
                payload_button = ui.button("Set payload", on_click=self.press_payload)
            with row().style("margin-top: 0.5rem"):
                self.earlier = ui.select({}, label="earlier policy or checkpoint").props("dense")
                self.earlier.style("flex: 1; min-width: 8rem")
                return_button = ui.button("Return to it", on_click=self.press_return)
            with row().style("margin-top: 0.5rem"):
                checkpoint_button = ui.button("Keep a checkpoint", on_click=self.press_checkpoint)
                self.note = note()
        self.buttons = (payload_button, return_button, checkpoint_button)
        for button in self.buttons:
            button.props("outline no-caps")

    def refresh(self, run: RunFollower) -> None:
        """Show whether a trainer takes requests, and which of them wait."""
        for button in self.buttons:
            button.set_enabled(accepts_requests(run))
        pending = run.status.pending if run.status is not None else ()
        waiting = f"waits for the end of the episode: {', '.join(pending)}" if pending else ""
        self.note.set_text(waiting or ("" if run.alive else "no trainer is running for this run"))

    def refresh_earlier(self, run: RunFollower) -> None:
        """Offer the policies and checkpoints that there are now."""
        options = earlier_policies(run)
        if options != self.offered:
            self.offered = options
            self.earlier.set_options(options, value=self.earlier.value if self.earlier.value in options else None)

    async def press_payload(self) -> None:
        """Mark the next episodes, or load a simulated robot."""
        await self.requests.send("payload", str(self.payload.value or ""))

    async def press_checkpoint(self) -> None:
        """Keep the newest checkpoint."""
        await self.requests.send("checkpoint")

    async def press_return(self) -> None:
        """Go back to what was chosen."""
        if self.earlier.value in self.offered:
            kind, _, episode = str(self.earlier.value).partition(" ")
            await self.requests.send(kind, int(episode))
        else:
            ui.notify("Choose an earlier policy first.", type="warning")


def earlier_policies(run: RunFollower) -> dict[str, str]:
    """Where the run can go back to, as `KIND EPISODE` of a request and a text for people, best first, then newest."""
    score = TRACKING if run.info is None else run.info.score
    unit = None if run.info is None else score.unit
    errors = dict(zip(run.metrics.columns["episode"], run.metrics.columns[score.key], strict=True))
    best = run.metrics.best_episode(score.key)
    options: dict[str, str] = {}
    if best is not None and unit is not None:
        options[f"return {best}"] = f"best: episode {best}, {unit.with_unit(errors[best])}"
    for episode in reversed(run.kept_checkpoints):
        options[f"restore {episode}"] = f"kept checkpoint after episode {episode}: model and policy"
    for episode in reversed([int(number) for number in errors][-MAX_EPISODES:]):
        if unit is not None and episode != best:
            options[f"return {episode}"] = f"episode {episode}, {unit.with_unit(errors[episode])}"
    return options
