"""Looks at all that is for a browser in a real one: `make browser`.

Opens it with Chromium in light and dark, wide and as wide as a phone, lets axe-core judge each
view, and leaves screenshots; `--pictures` makes those of docs/images anew. Ends with status 1 where
axe-core finds anything, or something is wider than the window. Looked at are the pages of made-up
runs (one with everything, one that just began, one that fails, one that is very large), that of a
store, its report, and pages of the documentation's site that have all that one can have; or what is
served at the URL that is named.

Needs `chromium` (Debian: apt-get install chromium) and `npm`, which gets axe-core.
"""

import argparse
import asyncio
import base64
import itertools
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, redirect_stdout
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientWebSocketResponse
from PIL import Image  # matplotlib brings it
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from moorage.cli.job_tree import drawn
from moorage.cli.page import report
from moorage.cli.status import run_tree
from moorage.driver.lookups import StateLookups
from moorage.driver.run_status import run_status
from moorage.offline.description import Description, describe
from moorage.offline.listing import Listing, list_snapshots
from moorage.offline.lookup import directories_of, find
from moorage.page.history import RunHistory
from moorage.page.render import RUN_SECONDS, drawn_store, rendered
from moorage.page.server import Draw, PageServer
from moorage.page.views import page_of_run

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "support"))
AXE = "axe-core@4.14.1"
PICTURES: dict[tuple[str, str], tuple[str, int]] = {
    ("page-wide-light", "body"): ("page-light", 1700),
    ("page-wide-light", "#epochs .charts"): ("page-epochs-light", 520),
    ("page-phone-dark", "body"): ("page-phone-dark", 1500),
}
"""Of these views docs/images has a part: from where on, under which name, and how much of it."""
SITE = ROOT / "build" / "site"
SITE_PAGES = (
    "index",  # what people see first
    "quickstart",
    "concepts",  # drawings
    "cli",  # wide blocks, wide tables
    "page",  # pictures
    "reference-configuration",  # the longest table
    "reference-python",
    "404",
)
_SINCE = timedelta(minutes=3)
_START_SECONDS = 30.0
_VIEWS = tuple(itertools.product(("light", "dark"), (("wide", 1280), ("phone", 390))))
# What lies in something that scrolls, or is cut off there, does not widen the page.
_WIDER = """[...document.querySelectorAll("body *:not(.skip)")]
  .filter(one => one.getBoundingClientRect().right > WIDTH + 1)
  .filter(one => {
    for (let held = one.parentElement; held !== document.body; held = held.parentElement)
      if (getComputedStyle(held).overflowX !== "visible") return false;
    return true;
  })
  .map(one => one.tagName + "#" + one.id).slice(0, 5)"""
# A page is complete once it is loaded and two frames of it were drawn.
_DRAWN = """new Promise(done => {
  const drawn = () => requestAnimationFrame(() => requestAnimationFrame(done));
  document.readyState === "complete" ? drawn() : addEventListener("load", drawn);
})"""
_HOVER = "--blink-settings=primaryHoverType=2,availableHoverTypes=2"
"""A mouse: with one the theme of the documentation lets the keyboard reach blocks that scroll."""
_LEFT = {
    ("landmark-unique", ".md-code__nav"): "the theme's, for each button that copies; no WCAG rule",
    ("scrollable-region-focusable", ".md-typeset__scrollwrap"): (
        "the theme's, around each table; browsers let the keyboard reach what scrolls"
    ),
}
"""What axe-core finds and is left, by its rule and a part of its place, with the reason."""
_FORGET = "try { localStorage.clear() } catch { }"
# What comes in slowly has its colours by then.
_STILL = """document.head.append(Object.assign(document.createElement("style"),
  {textContent: "* { transition: none !important; animation: none !important }"}))"""
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
    """Addresses to look at, by name: the one that was given, or all that there is."""
    if url is not None:
        yield {"page": url}
        return
    with ExitStack() as stack:
        yield {**_runs(stack), **_store(stack), **_site(stack)}


def _runs(stack: ExitStack) -> dict[str, str]:
    from moorage_testing.page_samples import AT, failing_run, large_run, new_run, sample_run

    runs = {
        "page": sample_run(),
        "new": new_run(),
        "failing": failing_run(),
        "large": large_run(),
    }

    def draw(run: RunHistory, nonce: str) -> str:
        """As it is while the run goes on, and not some days later."""
        page = page_of_run(run.facts(), AT + _SINCE, str)
        return rendered(page, refresh_seconds=RUN_SECONDS, nonce=nonce)

    return {name: _drawn(stack, partial(draw, run)) for name, run in runs.items()}


def _store(stack: ExitStack) -> dict[str, str]:
    """The page of `moorage ui`, and the file of `moorage report`."""
    from moorage_testing.lineages import build

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    build(folder / "dir", folder / "scratch")
    where = str(folder / "dir")

    def look(now: datetime) -> tuple[Listing, Description]:
        return list_snapshots(directories_of(where), now), describe(find(where))

    with redirect_stdout(StringIO()):
        report(where, out=folder / "report.html")
    return {
        "store": _drawn(stack, partial(drawn_store, look, str)),
        "report": (folder / "report.html").as_uri(),
    }


def _drawn(stack: ExitStack, draw: Draw) -> str:
    server = PageServer(draw, port=0, lookups=StateLookups())
    stack.callback(server.close)
    return server.url


def _site(stack: ExitStack) -> dict[str, str]:
    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_what: object) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(SITE)))
    stack.callback(server.server_close)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stack.callback(server.shutdown)
    address = f"http://127.0.0.1:{server.server_port}"
    return {f"docs-{name}": f"{address}/{name}.html" for name in SITE_PAGES}


def draw_terminal(file: Path) -> None:
    """What `moorage status` shows on a terminal, as a drawing."""
    from moorage_testing.page_samples import AT, sample_run

    run = run_status("clicks-per-session", "", sample_run().facts().progress, AT)
    run = replace(run, pid=4242, subtasks=run.subtasks[:4], null_keys=0)
    console = Console(record=True, file=StringIO(), width=112, force_terminal=True)
    console.print(drawn(run_tree(run, AT + _SINCE)))
    # The font of whoever looks: nothing is fetched from elsewhere.
    form = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    svg = console.export_svg(title="moorage status job.yaml", code_format=form, unique_id="status")
    file.write_text(re.sub(r" +$", "", svg, flags=re.MULTILINE) + "\n")


async def shoot(tab: Tab, **how: Any) -> bytes:
    """A PNG of what the tab shows."""
    shot = await tab.call("Page.captureScreenshot", captureBeyondViewport=True, **how)
    return base64.b64decode(shot["data"])


async def look(urls: dict[str, str], out: Path, pictures: Path | None) -> int:
    """Every view of the pages; how many things axe-core found."""
    axe, count = axe_source(), 0
    async with browser() as tab:
        await tab.call("Page.enable")
        # Else the site keeps the light of its first view.
        await tab.call("Page.addScriptToEvaluateOnNewDocument", source=_FORGET)
        await tab.call("Emulation.setScrollbarsHidden", hidden=True)  # they cover the margin
        for (page, url), (theme, (name, width)) in itertools.product(urls.items(), _VIEWS):
            scheme = [{"name": "prefers-color-scheme", "value": theme}]
            await tab.call("Emulation.setEmulatedMedia", features=scheme)
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
            await tab.call("Emulation.setDeviceMetricsOverride", **size)
            await tab.call("Page.navigate", url="about:blank")  # else only its fragment is new
            await tab.call("Page.navigate", url=url)
            await tab.run(_DRAWN)
            await tab.run(_STILL)
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
            found = list(_violations(json.loads(told)["violations"]))
            for text in found:
                print(f"{page} {theme} {name}: {text}")
            if wide:
                print(f"{page} {theme} {name}: wider than the window: {wide}")
            count += len(found) + len(wide)
    return count


def _violations(found: list[dict[str, Any]]) -> Iterator[str]:
    for one in found:
        known = [part for rule, part in _LEFT if rule == one["id"]]
        places = [str(node["target"]) for node in one["nodes"]]
        places = [place for place in places if not any(part in place for part in known)]
        if places:
            told = ", ".join(places[:5])
            yield f"{one['id']} ({one['impact']}): {one['help']}: {told}"


def main() -> int:
    """Look at all of it; 1 if something is wrong with it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("url", nargs="?", help="of a page that is served; else all that there is")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "browser")
    parser.add_argument("--pictures", action="store_true", help="make those of docs/images anew")
    given = parser.parse_args()
    if given.pictures and given.url is not None:
        parser.error("pictures are those of a made-up run; leave the url out")
    given.out.mkdir(parents=True, exist_ok=True)
    pictures = ROOT / "docs" / "images" if given.pictures else None
    if pictures is not None:
        draw_terminal(pictures / "status-terminal.svg")
    with served(given.url) as urls:
        count = asyncio.run(look(urls, given.out, pictures))
    print(f"{count} findings; screenshots in {given.out}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
