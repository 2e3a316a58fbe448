"""Looks at the page in a real browser: `make browser`.

Opens it with Chromium in light and dark, wide and as wide as a phone, lets axe-core judge each
view, and leaves screenshots; `--pictures` makes those of docs/images anew. Ends with status 1 where
axe-core finds anything. The pages are those of made-up runs (one with everything, one that just
began, one that is very large), or of what is served at the URL that is named.

Needs `chromium` (Debian: apt-get install chromium) and `npm`, which gets axe-core.
"""

import argparse
import asyncio
import base64
import itertools
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientWebSocketResponse
from PIL import Image  # matplotlib brings it

from moorage.driver.lookups import StateLookups
from moorage.page.render import drawn_run
from moorage.page.server import PageServer

ROOT = Path(__file__).parents[1]
AXE = "axe-core@4.14.1"
PICTURES: dict[tuple[str, str], tuple[str, int]] = {
    ("page-wide-light", "body"): ("page-light", 1700),
    ("page-wide-light", "#epochs .charts"): ("page-epochs-light", 520),
    ("page-phone-dark", "body"): ("page-phone-dark", 1500),
}
"""Of these views docs/images has a part: from where on, under which name, and how much of it."""
_START_SECONDS = 30.0
_VIEWS = tuple(itertools.product(("light", "dark"), (("wide", 1280), ("phone", 390))))
_WIDER = """[...document.querySelectorAll("body *:not(.wide *):not(.skip)")]
  .filter(one => one.getBoundingClientRect().right > WIDTH + 1)
  .map(one => one.tagName + "#" + one.id).slice(0, 5)"""
# A page is complete once it is loaded and two frames of it were drawn.
_DRAWN = """new Promise(done => {
  const drawn = () => requestAnimationFrame(() => requestAnimationFrame(done));
  document.readyState === "complete" ? drawn() : addEventListener("load", drawn);
})"""
_RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


class Tab:
    """A tab of the browser, spoken to by its debugging protocol."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)

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
        raise SystemExit("browser: it has ended")

    async def run(self, script: str) -> Any:
        """What a script yields."""
        found = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise SystemExit(f"browser: {found['exceptionDetails']}")
        return found["result"].get("value")


def axe_source() -> str:
    """The text of axe-core, from npm's cache or its registry."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", "--prefer-offline", AXE]
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        with tarfile.open(Path(folder) / done.stdout.strip().splitlines()[-1]) as package:
            found = package.extractfile("package/axe.min.js")
            if found is None:
                raise SystemExit(f"browser: no axe.min.js in {AXE}")
            return found.read().decode()


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
                    yield Tab(socket)
        finally:
            process.terminate()
            await process.wait()


def _wait_for(port: Path) -> None:
    until = time.monotonic() + _START_SECONDS
    while not (port.exists() and "\n" in port.read_text()):
        if time.monotonic() > until:
            raise SystemExit("browser: it does not start")
        time.sleep(0.1)


@contextmanager
def served(url: str | None) -> Iterator[dict[str, str]]:
    """Addresses to look at, by name: the one that was given, or those of made-up runs."""
    if url is not None:
        yield {"page": url}
        return
    sys.path.append(str(ROOT / "tests" / "support"))
    from moorage_testing.page_samples import large_run, new_run, sample_run

    with ExitStack() as servers:
        found = {}
        for name, run in (("page", sample_run()), ("new", new_run()), ("large", large_run())):
            server = PageServer(partial(drawn_run, run, str), port=0, lookups=StateLookups())
            servers.callback(server.close)
            found[name] = server.url
        yield found


async def shoot(tab: Tab, **how: Any) -> bytes:
    """A PNG of what the tab shows."""
    shot = await tab.call("Page.captureScreenshot", captureBeyondViewport=True, **how)
    return base64.b64decode(shot["data"])


async def look(urls: dict[str, str], out: Path, pictures: Path | None) -> int:
    """Every view of the pages; how many things axe-core found."""
    axe, count = axe_source(), 0
    async with browser() as tab:
        await tab.call("Page.enable")
        await tab.call("Emulation.setScrollbarsHidden", hidden=True)  # they cover the margin
        for (page, url), (theme, (name, width)) in itertools.product(urls.items(), _VIEWS):
            scheme = [{"name": "prefers-color-scheme", "value": theme}]
            await tab.call("Emulation.setEmulatedMedia", features=scheme)
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
            await tab.call("Emulation.setDeviceMetricsOverride", **size)
            await tab.call("Page.navigate", url="about:blank")  # else only its fragment is new
            await tab.call("Page.navigate", url=url)
            await tab.run(_DRAWN)
            view = f"{page}-{name}-{theme}"
            (out / f"{view}.png").write_bytes(await shoot(tab))
            for (of, begin), (picture, most) in PICTURES.items():
                if of != view or pictures is None:
                    continue
                place = f"document.querySelector({begin!r}).getBoundingClientRect()"
                y, high = await tab.run(f"(b => [b.y, b.height])({place})")
                clip = {"x": 0, "y": y, "width": width, "height": min(high, most), "scale": 1}
                with Image.open(BytesIO(await shoot(tab, clip=clip))) as shown:
                    shown.quantize(128).save(pictures / f"{picture}.png", optimize=True)
            await tab.run("document.querySelectorAll('details').forEach(d => d.open = true)")
            await tab.run(axe)
            told = await tab.run(f"axe.run(document, {json.dumps(_RULES)}).then(JSON.stringify)")
            wide = await tab.run(_WIDER.replace("WIDTH", str(width)))
            found = json.loads(told)["violations"]
            for one in found:
                places = ", ".join(str(node["target"]) for node in one["nodes"][:5])
                print(
                    f"{page} {theme} {name}: {one['id']} ({one['impact']}): {one['help']}: {places}"
                )
            if wide:
                print(f"{page} {theme} {name}: wider than the window: {wide}")
            count += len(found) + len(wide)
    return count


def main() -> int:
    """Look at all of it; 1 if something is wrong with it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("url", nargs="?", help="of a page that is served; else a made-up run")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "browser")
    parser.add_argument("--pictures", action="store_true", help="make those of docs/images anew")
    given = parser.parse_args()
    if given.pictures and given.url is not None:
        parser.error("pictures are those of a made-up run; leave the url out")
    given.out.mkdir(parents=True, exist_ok=True)
    pictures = ROOT / "docs" / "images" if given.pictures else None
    with served(given.url) as urls:
        count = asyncio.run(look(urls, given.out, pictures))
    print(f"{count} findings; screenshots in {given.out}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
