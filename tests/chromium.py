"""A headless Chromium to look at a page with: its own debugging protocol over two pipes, no further package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE_S = 60.0


def find_chromium() -> str | None:
    """The path of a Chromium on this machine, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One tab. `complaints` are the errors and warnings that pages put on the console.

    Example:
        with Browser("/usr/bin/chromium", tmp_path) as browser:
            browser.open("file:///tmp/page.html", width=400)
            browser.ask("document.title")
    """

    def __init__(self, program: str, scratch: Path) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []  # every address that was asked for
        self._session: str | None = None
        self._number = 0
        self._rest = b""
        from_us, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
                   "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update",
                   f"--user-data-dir={scratch}", "--remote-debugging-pipe", "about:blank"]  # fmt: skip
        # The protocol's pipes are file descriptors 3 and 4 of the browser; dash knows none above 9.
        shell = ["bash", "-c", f'exec "$@" 3<&{from_us} 4>&{from_browser}', "bash", *command]
        self._process = subprocess.Popen(
            shell, pass_fds=(from_us, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(from_us)
        os.close(from_browser)
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(self, address: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Show a page and wait until it has loaded and drawn."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self.resize(width, height)
        self._call("Page.navigate", url="about:blank")  # an address that differs in its # alone is not loaded anew
        self._call("Page.navigate", url=address)
        self.wait("location.href !== 'about:blank' && document.readyState === 'complete'")
        self.frame()

    def resize(self, width: int, height: int) -> None:
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression; of a promise what it comes to."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        """Return once the expression is true."""
        end = time.monotonic() + PATIENCE_S
        while not self.ask(f"!!({expression})"):
            assert time.monotonic() < end, f"still not true: {expression}"
            time.sleep(0.05)

    def frame(self) -> None:
        """Return once what was asked for has been drawn."""
        self.ask("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0))))")

    def picture(self, path: Path, whole: bool = False) -> None:
        """A PNG of what is to be seen, or of the whole page."""
        answer = self._call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._write)
        os.close(self._read)
        self._process.kill()
        self._process.wait()

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            answer = self._receive(method)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._hear(answer)

    def _hear(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    def _receive(self, waiting_for: str) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"Chromium does not answer {waiting_for}"
            data = os.read(self._read, 1 << 20)
            assert data, f"Chromium has ended, waiting for {waiting_for}"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)
