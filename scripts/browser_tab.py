"""A tab of a headless Chromium, spoken to by its debugging protocol; for scripts/browser.py.

Whatever a page throws, writes as an error to the console or is refused by the browser is kept as
a fault, until it is asked for.
"""

import asyncio
import itertools
import json
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientWebSocketResponse

_START_SECONDS = 30.0
_WAIT_SECONDS = 20.0
"""For what a page does by itself, on a machine that does other things as well."""

_LOOK_SECONDS = 0.05
_HOVER = "--blink-settings=primaryHoverType=2,availableHoverTypes=2"
"""A mouse: with one the theme of the documentation lets the keyboard reach blocks that scroll."""

# A page is complete once it is loaded and two frames of it were drawn.
_DRAWN = """new Promise(done => {
  const drawn = () => requestAnimationFrame(() => requestAnimationFrame(done));
  document.readyState === "complete" ? drawn() : addEventListener("load", drawn);
})"""
KEYS = {
    "Tab": (9, ""),
    "Enter": (13, "\r"),
    "Space": (32, " "),
    "ArrowRight": (39, ""),
}
"""Keys by their code: the number that Windows has for them, and the text that they type."""


class Tab:
    """One tab."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._faults: list[str] = []

    async def call(self, method: str, **params: Any) -> Any:
        """One command, and its result."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async for message in self._socket:
            answer = json.loads(message.data)
            if answer.get("id") == number:
                if "error" in answer:
                    raise SystemExit(f"browser: {method}: {answer['error']['message']}")
                return answer["result"]
            self._faults += _faults_of(answer.get("method"), answer.get("params", {}))
        raise SystemExit("browser: it has ended")

    async def run(self, script: str) -> Any:
        """What a script yields."""
        found = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise SystemExit(f"browser: {found['exceptionDetails']}")
        return found["result"].get("value")

    async def open(self, url: str) -> None:
        """Load a page anew, also where only the fragment of its address is another one."""
        await self.call("Page.navigate", url="about:blank")
        await self.call("Page.navigate", url=url)
        await self.run(_DRAWN)

    async def until(self, script: str, what: str) -> None:
        """Wait for a script to yield something that is true.

        Raises:
            AssertionError: it never did; with `what` was waited for.
        """
        until = time.monotonic() + _WAIT_SECONDS
        while not await self.run(script):
            if time.monotonic() > until:
                raise AssertionError(f"{what}: not within {_WAIT_SECONDS:.0f} s")
            await asyncio.sleep(_LOOK_SECONDS)

    async def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            number, text = KEYS[key]
            named = {"key": text or key, "code": key, "windowsVirtualKeyCode": number}
            if key == "Enter":
                named["key"] = key
            down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
            await self.call("Input.dispatchKeyEvent", **down, **named)
            await self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    async def type(self, text: str) -> None:
        """Type into what has the focus."""
        await self.call("Input.insertText", text=text)

    async def faults(self) -> list[str]:
        """What went wrong in the page since this was asked last."""
        await self.run("0")  # what came before its answer is told before it
        found, self._faults = self._faults, []
        return found


def _faults_of(event: str | None, params: dict[str, Any]) -> list[str]:
    if event == "Runtime.exceptionThrown":
        thrown = params["exceptionDetails"]
        return [thrown.get("exception", {}).get("description") or thrown["text"]]
    if event == "Runtime.consoleAPICalled" and params["type"] in {"error", "assert"}:
        said = (one.get("value", one.get("description", "")) for one in params["args"])
        return [f"console: {' '.join(map(str, said))}"]
    if event == "Log.entryAdded" and params["entry"]["level"] == "error":
        entry = params["entry"]
        return [f"{entry['source']}: {entry['text']} {entry.get('url', '')}".strip()]
    return []


@asynccontextmanager
async def browser() -> AsyncIterator[Tab]:
    """A browser with one empty tab."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("browser: there is none; apt-get install chromium")
    # Its helpers may still write there for a moment when it has ended.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            program,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            _HOVER,
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            port = Path(profile) / "DevToolsActivePort"
            await asyncio.to_thread(_wait_for, port)
            address = f"http://127.0.0.1:{port.read_text().splitlines()[0]}/json/list"
            async with ClientSession() as session:
                async with session.get(address) as answer:
                    tabs = await answer.json()
                url = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
                async with session.ws_connect(url, max_msg_size=64 << 20) as socket:
                    tab = Tab(socket)
                    for domain in ("Page", "Runtime", "Log"):
                        await tab.call(f"{domain}.enable")
                    # As one that a person looks at: else no key comes to it.
                    await tab.call("Emulation.setFocusEmulationEnabled", enabled=True)
                    yield tab
        finally:
            process.terminate()
            await process.wait()


def _wait_for(port: Path) -> None:
    until = time.monotonic() + _START_SECONDS
    while not (port.exists() and "\n" in port.read_text()):
        if time.monotonic() > until:
            raise SystemExit("browser: it does not start")
        time.sleep(0.1)
