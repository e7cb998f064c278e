"""A person at the live page, in a real browser, with a run in another process. The run's name tries to be a tag."""

import shutil

import pytest

from .processes import ROBOT, SMALL, address_of, episodes, started, status, wait_for

CHROMIUM = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
NAME = "<img src=x onerror=alert(1)>"
TAG = "`${alert(2)}` <b onmouseover=alert(3)>wet {a}</b>"
PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 900}

LAST_EPISODE = """() => {
  for (const element of document.querySelectorAll('.nicegui-echart')) {
    const option = getElement(Number(element.id.slice(1)))?.chart?.getOption();
    const data = option?.xAxis?.[0]?.name === 'episode' ? (option.series[0]?.data ?? []) : [];
    if (data.length) return data[data.length - 1][0];
  }
  return 0;
}"""
"""The last episode of the error's curve; long curves are thinned out, so the number of points need not grow."""


class Person:
    """One browser; remembers where it went and what it was shown that must not be."""

    def __init__(self, browser, address: str, size: dict[str, int]) -> None:
        self.page = browser.new_context(viewport=size).new_page()
        self.page.set_default_timeout(600_000)
        self.asked: list[str] = []
        self.wrong: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("websocket", lambda socket: self.asked.append(socket.url))
        self.page.on("dialog", lambda dialog: (self.wrong.append(dialog.message), dialog.dismiss()))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.goto(address)
        self.page.locator(".state").wait_for()

    def press(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).click()

    def sees(self, selector: str, text: str) -> None:
        self.page.locator(selector, has_text=text).first.wait_for()


@pytest.fixture
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium; scripts/install_browser.sh installs one")
    with playwright.sync_playwright() as p:
        opened = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


def test_a_person_watches_pauses_and_stops_a_run(browser, compiled, tmp_path):
    cache, run = compiled / "processes", tmp_path / "runs" / NAME
    run.parent.mkdir()
    out = ("--out", run, "--episodes", "5000", *SMALL)
    with started(cache, "train", ROBOT, *out) as trainer:
        with started(cache, "dashboard", run) as server:  # before the run's folder is there
            first = Person(browser, address_of(server), DESKTOP)
            wait_for(lambda: episodes(run) >= 2, "two episodes")
            wait_for(lambda: first.page.evaluate(LAST_EPISODE) >= 2, "a curve")
            before = first.page.evaluate(LAST_EPISODE)
            wait_for(lambda: first.page.evaluate(LAST_EPISODE) > before, "a curve that grows")
            assert first.page.locator(".motion-body circle").count() == 3  # base, elbow and tip

            first.press("Pause")
            first.sees(".state", "paused")
            assert status(run)["state"] == "paused"
            done = episodes(run)

            first.page.get_by_label("payload tag").fill(TAG)
            first.press("Set payload")
            first.sees(".happened", TAG)
            first.press("Keep a checkpoint")
            wait_for(lambda: (run / "kept" / f"{done:06d}.safetensors").exists(), "the kept checkpoint")
            assert episodes(run) == done

        # The page was killed; the run knows nothing of it. Another page, from a phone.
        with started(cache, "dashboard", run.parent) as server:
            second = Person(browser, address_of(server), PHONE)
            second.sees(".state", "paused")
            assert second.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
            assert second.page.locator(".run-name").inner_text() == NAME
            second.press("Resume")
            wait_for(lambda: episodes(run) > done, "the robot to move again")
            second.press("Stop")
            trainer.wait(timeout=600)
            second.sees(".state", "stopped")
    assert trainer.returncode == 130
    for person in (first, second):
        assert person.wrong == []
        assert all(url.split("/")[2].startswith("127.0.0.1:") for url in person.asked if not url.startswith("data:"))
        assert any(url.startswith("ws://") for url in person.asked)
