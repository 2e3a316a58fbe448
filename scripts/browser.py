"""Looks at all that is for a browser in a real one: `make browser`.

Opens it with Chromium in light and dark, wide and as wide as a phone, lets axe-core judge each
view, and leaves screenshots; `--pictures` makes those of docs/images anew. Looked at are the pages
of made-up runs (one with everything, one that just began, one that fails, one that is very large),
that of a store, its report, and pages of the documentation's site that have all that one can have,
the others of the site in one view; or what is served at the URL that is named. The page of a run
is used, too: scripts/browser_checks.py.

Ends with status 1 where axe-core finds anything, something is wider than the window, a page throws
or the browser complains of it, or the page of a run does not do what it is to.

Needs `chromium` (Debian: apt-get install chromium) and `npm`, which gets axe-core.
"""

import argparse
import asyncio
import base64
import itertools
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

from browser_tab import Tab, browser
from PIL import Image  # matplotlib brings it
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from browser_checks import wrong_behaviour

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
_WIDE = ("wide", 1280)
_VIEWS = tuple(itertools.product(("light", "dark"), (_WIDE, ("phone", 390))))
_ONE_VIEW = (("light", _WIDE),)
"""Of pages of the site that have nothing which no other has."""

# What lies in something that scrolls, or is cut off there, does not widen the page.
_WIDER = """[...document.querySelectorAll("body *:not(.skip)")]
  .filter(one => one.getBoundingClientRect().right > WIDTH + 1)
  .filter(one => {
    for (let held = one.parentElement; held !== document.body; held = held.parentElement)
      if (getComputedStyle(held).overflowX !== "visible") return false;
    return true;
  })
  .map(one => one.tagName + "#" + one.id).slice(0, 5)"""
_FORGET = "try { localStorage.clear() } catch { }"
# What comes in slowly has its colours by then. Such a style the pages' own policy allows.
_STILL = """(still => {
  still.replaceSync("* { transition: none !important; animation: none !important }");
  document.adoptedStyleSheets.push(still);
})(new CSSStyleSheet())"""
_RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


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
    names = [str(file.relative_to(SITE).with_suffix("")) for file in SITE.rglob("*.html")]
    others = sorted(set(names) - set(SITE_PAGES))
    return {f"docs-{name}": f"{address}/{name}.html" for name in (*SITE_PAGES, *others)}


def draw_terminal(file: Path) -> None:
    """What `moorage status` shows on a terminal, as a drawing."""
    from moorage_testing.page_samples import AT, sample_run

    run = run_status("clicks-per-session", "", sample_run().facts().progress, AT)
    # As on this machine, where state servers have sockets.
    sockets = Path("/run/user/1000/moorage-5be6/run-x1/sockets")
    there = [replace(one, place=f"{sockets / str(one.subtask % 2)}.sock") for one in run.subtasks]
    run = replace(run, pid=4242, subtasks=tuple(there))
    console = Console(record=True, file=StringIO(), width=112, force_terminal=True)
    console.print(drawn(run_tree(run, AT + _SINCE)))
    # The font of whoever looks: nothing is fetched from elsewhere.
    form = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    svg = console.export_svg(title="moorage status job.yaml", code_format=form, unique_id="status")
    file.write_text(re.sub(r" +$", "", svg, flags=re.MULTILINE) + "\n")


def draw_notebook(file: Path) -> None:
    """What the notebook of the examples plots, of the savepoint that it names."""
    examples = ROOT / "examples"
    cells = json.loads((examples / "savepoints" / "plot.ipynb").read_text())["cells"]
    code = ["".join(one["source"]) for one in cells if one["cell_type"] == "code"]
    code.append(
        f"figure.savefig({str(file)!r}, bbox_inches='tight', metadata={{'Software': None}})"
    )
    table = examples / "bootstrap" / "balances.csv"
    make = [table.with_name("bootstrap.py"), table, "../bootstrap/savepoints/initial"]
    with tempfile.TemporaryDirectory() as folder:
        for name in ("bootstrap", "savepoints"):
            (Path(folder) / name).mkdir()
        for arguments in (make, ["-c", "\n".join(code)]):
            subprocess.run(
                [sys.executable, *map(str, arguments)],
                cwd=Path(folder) / "savepoints",
                env={**os.environ, "MPLBACKEND": "agg"},
                check=True,
                stdout=subprocess.DEVNULL,
            )


async def shoot(tab: Tab, **how: Any) -> bytes:
    """A PNG of what the tab shows."""
    shot = await tab.call("Page.captureScreenshot", captureBeyondViewport=True, **how)
    return base64.b64decode(shot["data"])


async def look(urls: dict[str, str], out: Path, pictures: Path | None, *, used: bool) -> int:
    """Every view of the pages, then what the page of a run does, if it is to be used.

    Returns:
        how many findings there are, all of which are printed.
    """
    axe, count = axe_source(), 0
    async with browser() as tab:
        # Else the site keeps the light of its first view.
        await tab.call("Page.addScriptToEvaluateOnNewDocument", source=_FORGET)
        await tab.call("Emulation.setScrollbarsHidden", hidden=True)  # they cover the margin
        for page, url in urls.items():
            for theme, (name, width) in _views_of(page):
                await _show(tab, url, theme, width)
                view = f"{page}-{name}-{theme}"
                if _views_of(page) is _VIEWS:
                    (out / f"{view}.png").write_bytes(await shoot(tab))
                if pictures is not None:
                    await _keep_pictures(tab, view, width, pictures)
                for text in (found := await _wrong(tab, axe, width)):
                    print(f"{page} {theme} {name}: {text}")
                count += len(found)
        if used:
            for text in (found := await wrong_behaviour(tab)):
                print(f"page of a run, used: {text}")
            count += len(found)
    return count


def _views_of(page: str) -> tuple[tuple[str, tuple[str, int]], ...]:
    name = page.removeprefix("docs-")
    return _VIEWS if name in SITE_PAGES or name == page else _ONE_VIEW


async def _show(tab: Tab, url: str, theme: str, width: int) -> None:
    scheme = [{"name": "prefers-color-scheme", "value": theme}]
    await tab.call("Emulation.setEmulatedMedia", features=scheme)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    await tab.call("Emulation.setDeviceMetricsOverride", **size)
    await tab.open(url)
    await tab.run(_STILL)


async def _keep_pictures(tab: Tab, view: str, width: int, pictures: Path) -> None:
    """Of this view the parts that docs/images has."""
    for (of, begin), (picture, most) in PICTURES.items():
        if of != view:
            continue
        place = f"document.querySelector({begin!r}).getBoundingClientRect()"
        y, high = await tab.run(f"(b => [b.y, b.height])({place})")
        clip = {"x": 0, "y": y, "width": width, "height": min(high, most), "scale": 1}
        with Image.open(BytesIO(await shoot(tab, clip=clip))) as shown:
            shown.quantize(128).save(pictures / f"{picture}.png", optimize=True)


async def _wrong(tab: Tab, axe: str, width: int) -> list[str]:
    """What is wrong with what the tab shows, with all of it opened."""
    await tab.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    await tab.run(axe)
    told = await tab.run(f"axe.run(document, {json.dumps(_RULES)}).then(JSON.stringify)")
    found = list(_violations(json.loads(told)["violations"]))
    wide = await tab.run(_WIDER.replace("WIDTH", str(width)))
    found += [f"wider than the window: {one}" for one in wide]
    return [*found, *await tab.faults()]


def _violations(found: list[dict[str, Any]]) -> Iterator[str]:
    for one in found:
        places = ", ".join(str(node["target"]) for node in one["nodes"][:5])
        yield f"{one['id']} ({one['impact']}): {one['help']}: {places}"


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
        draw_notebook(pictures / "savepoint-plot.png")
    with served(given.url) as urls:
        count = asyncio.run(look(urls, given.out, pictures, used=given.url is None))
    print(f"{len(urls)} pages, {count} findings; screenshots in {given.out}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
