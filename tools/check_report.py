"""Opens a page of `ringside report` in headless Chromium, at desktop and phone widths, light and dark.

Fails on a script error, on a request for anything but the page, on a page wider than the screen, on a curve that the buttons above
the curves break, and when the worst sample of a step is not found by three clicks. The step is that of --step, or else one three
quarters into the first run; a page without samples has no such step. With --screenshots writes two pictures: a desktop in light,
a phone in dark. Run by hand; needs Debian's chromium and the standard library.

Usage: check_report.py PAGE.html [--step N] [--screenshots FOLDER] [--chromium PROGRAM]
"""

import argparse
import base64
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import time

VIEWS = {  # width, height, pixels per point, colours
    "desktop light": (1280, 800, 1, "light"), "desktop dark": (1280, 800, 1, "dark"),
    "phone light": (390, 844, 1.25, "light"), "phone dark": (390, 844, 1.25, "dark")}
DEADLINE_S = 60


class Browser:
    """Chromium's DevTools over a pipe: JSON messages that end with a zero byte."""

    def __init__(self, program: str, profile: str):
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()

        def place():
            # As descriptors 3 and 4, whatever numbers they had.
            spare = [os.dup2(fd, 100 + i) for i, fd in enumerate((to_browser, from_browser))]
            os.dup2(spare[0], 3)
            os.dup2(spare[1], 4)

        self._process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
             f"--user-data-dir={profile}", "about:blank"], preexec_fn=place, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self._next, self._buffer, self.events = 0, b"", []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = None
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    _session = None

    def _read(self) -> dict:
        deadline = time.monotonic() + DEADLINE_S
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], max(0, deadline - time.monotonic()))[0]:
                raise SystemExit(f"check_report: chromium did not answer within {DEADLINE_S} s")
            part = os.read(self._in, 1 << 20)
            if not part:
                raise SystemExit("check_report: chromium ended")
            self._buffer += part
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method: str, **parameters) -> dict:
        self._next += 1
        message = {"id": self._next, "method": method, "params": parameters} | ({"sessionId": self._session} if self._session else {})
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._next:
                if "error" in answer:
                    raise SystemExit(f"check_report: {method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def wait_for(self, method: str) -> None:
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._read())

    def value(self, expression: str):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise SystemExit(f"check_report: {expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def click(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="none" if kind == "mouseMoved" else "left", clickCount=1)

    def click_on(self, selector: str) -> None:
        box = self.value(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}}); "
                         "const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()")
        self.click(*box)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(DEADLINE_S)


def open_page(browser: Browser, page: pathlib.Path, view: str) -> list[str]:
    """Shows the page; returns what is wrong with it."""
    width, height, scale, colours = VIEWS[view]
    browser.events.clear()
    for domain in ("Page", "Runtime", "Log", "Network"):
        browser.call(f"{domain}.enable")
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=width < 600)
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": colours}])
    browser.call("Page.navigate", url=page.resolve().as_uri())
    browser.wait_for("Page.loadEventFired")
    browser.value("new Promise(done => setTimeout(done, 300))")
    wrong = []
    for event in browser.events:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            wrong.append("script error: " + json.dumps(parameters["exceptionDetails"])[:300])
        if method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            wrong.append("error in the log: " + parameters["entry"]["text"])
        if method == "Network.requestWillBeSent" and parameters["request"]["url"] != page.resolve().as_uri():
            wrong.append("request: " + parameters["request"]["url"])
    wide = browser.value("document.documentElement.scrollWidth")
    if wide > width:
        wrong.append(f"the page is {wide} wide, the screen {width}")
    if browser.value("document.querySelectorAll('#main-charts svg').length") < 3:
        wrong.append("fewer than three curves")
    background = browser.value("getComputedStyle(document.body).backgroundColor")
    brightness = sum(int(part) for part in background[4:-1].split(",")) / 3
    if (brightness > 128) != (colours == "light"):
        wrong.append(f"the background is {background}")
    return wrong


def step_to_find(sampled: list[int], asked: int | None) -> int | None:
    """The step whose worst sample is looked for, among those with samples: the nearest to the one that was asked for, or one three quarters into the run."""
    if not sampled:
        return None
    return min(sampled, key=lambda step: abs(step - asked)) if asked is not None else sorted(sampled)[len(sampled) * 3 // 4]


def share_of_width(step: int, first: int, last: int) -> float:
    """Where a step is on a curve, as a share of the picture's width. A run of one step has an axis of one step."""
    return (46 + (step - first) / max(1, last - first) * (320 - 46 - 14)) / 320


def steps_a_click(first: int, last: int, width: float) -> float:
    """Steps that two pixels of a curve stand for: a click cannot be more exact."""
    return 2 * (last - first) / (width * (320 - 46 - 14) / 320)


def clicks_to_worst(browser: Browser, step: int) -> int:
    """Clicks on the first curve at the step, then on "earlier" or "later" until the step's worst sample is shown, or that of a step that a
    click cannot tell from it."""
    first, last = browser.value("(() => { const s = JSON.parse(document.getElementById('data').textContent).runs[0].steps; return [s[0], s[s.length - 1]]; })()")
    box = browser.value("(() => { const r = document.querySelector('#main-charts svg').getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; })()")
    browser.click(box[0] + share_of_width(step, first, last) * box[2], box[1] + box[3] / 2)
    for clicks in range(1, 4):
        shown = browser.value("document.querySelector('#sample-cards h3').textContent")
        at = int(browser.value("document.getElementById('step').value"))
        if shown.startswith(f"worst of step {at}:") and (at == step or abs(at - step) <= steps_a_click(first, last, box[2])):
            return clicks
        browser.click_on("#later" if at < step else "#earlier")
    raise SystemExit(f"check_report: three clicks did not lead to the worst sample of step {step}, but to: {shown}")


def wrong_after(browser: Browser, selector: str) -> list[str]:
    """Clicks on a button of the curves twice; returns what is wrong while it is pressed."""
    browser.click_on(selector)
    pressed = browser.value(f"document.querySelector({json.dumps(selector)}).getAttribute('aria-pressed')")
    broken = browser.value("[...document.querySelectorAll('#main-charts svg path')].filter(path => /NaN|Infinity/.test(path.getAttribute('d'))).length")
    browser.click_on(selector)
    return ([f"{selector} is not pressed by a click"] if pressed != "true" else []) + ([f"{selector} breaks {broken} curves"] if broken else [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("--step", type=int, help="whose worst sample is looked for (default: a step three quarters into the run)")
    parser.add_argument("--screenshots", type=pathlib.Path)
    parser.add_argument("--chromium", default="chromium")
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(options.chromium, profile)
        try:
            for view in VIEWS:
                wrong = open_page(browser, options.page, view)
                for button in ("#log", "#outliers"):
                    wrong += wrong_after(browser, button)
                sampled = browser.value("Object.keys(JSON.parse(document.getElementById('data').textContent).runs[0].samples).map(Number)")
                step = step_to_find(sampled, options.step)
                found = "the run has no samples" if step is None else f"the worst sample of step {step} is {clicks_to_worst(browser, step)} clicks away"
                print(f"{view}: {'; '.join(wrong) or 'good'}; {found}")
                failed |= bool(wrong)
                if options.screenshots and view in ("desktop light", "phone dark"):
                    options.screenshots.mkdir(parents=True, exist_ok=True)
                    browser.value("window.scrollTo(0, 0)" if view == "desktop light"
                                  else "document.getElementById('sample-cards').scrollIntoView({block: 'end'})")
                    picture = base64.b64decode(browser.call("Page.captureScreenshot", format="png")["data"])
                    (options.screenshots / f"report_{view.split()[0]}.png").write_bytes(picture)
        finally:
            browser.close()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
