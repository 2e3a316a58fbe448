"""What the page of a run does, tried in a browser as a person would: for scripts/browser.py.

A run that goes on when a check says so is served as `moorage run` serves its page. Checks say what
is wrong; what the page throws or the browser complains of, and the check did not provoke, is wrong
as well.
"""

import json
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from browser_tab import Tab
from moorage_testing.page_samples import AT, checkpoint, sample_run

from moorage.driver.lookup_requests import LookupRequest
from moorage.driver.lookups import StateLookups
from moorage.page.render import rendered
from moorage.page.server import PageServer
from moorage.page.views import page_of_run
from moorage_state.errors import UserError

_REFRESH_SECONDS = 1
_PHONE = {"width": 390, "height": 900, "deviceScaleFactor": 1, "mobile": True}
"""So narrow that tables scroll."""

_MOST_STOPS = 400
# A page that is not drawn anew takes its turns all the same: two of them, and one began after this.
_TURNS = f"""globalThis.turns = 0;
const later = setTimeout;
globalThis.setTimeout = (call, after, ...more) => {{
  if (after === {_REFRESH_SECONDS * 1000}) turns++;
  return later(call, after, ...more);
}};"""
_STOPS = "a[href], button, summary, input, select, [tabindex='0']"
# Whether a key has led to something new; it is remembered, and whether anybody sees that.
_STEP = """(one => {
  if (one === document.body || reached.has(one)) return false;
  reached.add(one);
  if (getComputedStyle(one).outlineStyle === "none") unseen.push(one.tagName + "#" + one.id);
  return true;
})(document.activeElement)"""
_FOUND = "document.getElementById('found').textContent"
_ACTIVE = "document.activeElement"


class _Answers(StateLookups):
    """Knows one key of one state."""

    def submit(self, request: LookupRequest) -> "Future[bytes]":
        if list(request.keys) != ["ann"]:
            raise UserError("this key has no value")
        done: Future[bytes] = Future()
        done.set_result(json.dumps({"queryable": request.name, "keys": ["ann"]}).encode())
        return done


class Live:
    """A run, and its page; served until it is closed."""

    def __init__(self) -> None:
        self._moment = 0
        self.serve(0)

    def serve(self, port: int) -> None:
        """Serve the page, at a free port or at this one."""
        self.server = PageServer(self._draw, port=port, lookups=_Answers())

    def go_on(self) -> None:
        """Every part of the page is another one from now on."""
        self._moment += 1

    def _draw(self, nonce: str) -> str:
        run = sample_run(40 + self._moment)
        progress = run.facts().progress
        begun = checkpoint(12 + self._moment, "InProgress")
        run(replace(progress, checkpoints=(begun, *progress.checkpoints[1:])))
        page = page_of_run(run.facts(), self._now, str)
        return rendered(page, refresh_seconds=_REFRESH_SECONDS, nonce=nonce)

    @property
    def _now(self) -> datetime:
        return AT + timedelta(minutes=3, seconds=self._moment)

    @property
    def shown(self) -> str:
        """Whether the page shows the run as it is, as a script."""
        return f"document.getElementById('status').textContent.includes('{self._now:%H:%M:%S}')"


def _require(fulfilled: object, what: str) -> None:
    if not fulfilled:
        raise AssertionError(what)


async def _stays(tab: Tab, live: Live, why: str) -> None:
    """The page is not drawn anew, though the run goes on and the page's turn comes."""
    live.go_on()
    turns = await tab.run("turns")
    await tab.until(f"turns >= {turns + 2}", "the page looks for something new")
    _require(not await tab.run(live.shown), f"{why}, and the page was drawn anew")


async def _refreshes(tab: Tab, live: Live) -> None:
    await tab.run("globalThis.loaded = 'once'")
    for _ in range(2):
        live.go_on()
        await tab.until(live.shown, "the page shows how the run goes on")
    _require(await tab.run("globalThis.loaded === 'once'"), "the page was loaded anew")


async def _keeps_what_a_reader_has_before_him(tab: Tab, live: Live) -> None:
    await tab.run("""globalThis.old = document.getElementById("s-checkpoint-9"); old.focus();
      document.getElementById("t-subtasks-1").scrollLeft = 60""")
    await tab.press("Enter")
    live.go_on()
    await tab.until(live.shown, "the page shows how the run goes on")
    redrawn = "document.getElementById('s-checkpoint-9') !== old"
    _require(await tab.run(redrawn), "the part was not drawn anew: the check says nothing")
    opened = "[...document.querySelectorAll('details[open]')].map(one => one.id).join()"
    for what, script, expected in (
        ("what was opened", opened, "checkpoint-9"),
        ("what has the focus", f"{_ACTIVE}.id", "s-checkpoint-9"),
        ("how far is scrolled", "document.getElementById('t-subtasks-1').scrollLeft", 60),
    ):
        found = await tab.run(script)
        _require(found == expected, f"{what} is not kept: {found!r}, not {expected!r}")
    await tab.run("document.querySelector('#look-up [name=key]').focus()")
    await tab.type("an")
    live.go_on()
    await tab.until(live.shown, "the page shows how the run goes on")
    _require(await tab.run(f"{_ACTIVE}.value") == "an", "what was typed is not kept")


async def _pauses(tab: Tab, live: Live) -> None:
    pressed = "document.getElementById('pause').getAttribute('aria-pressed')"
    await tab.run("document.getElementById('pause').focus()")
    await tab.press("Space")
    _require(await tab.run(pressed) == "true", "the button does not say that it is pressed")
    await _stays(tab, live, "updates are paused")
    await tab.press("Space")
    _require(await tab.run(pressed) == "false", "the button says that it is still pressed")
    await tab.until(live.shown, "the page goes on after a pause")


async def _waits_for_who_selects(tab: Tab, live: Live) -> None:
    await tab.run("getSelection().selectAllChildren(document.getElementById('overview'))")
    await _stays(tab, live, "text is selected")
    await tab.run("getSelection().removeAllRanges()")
    await tab.until(live.shown, "the page goes on when nothing is selected")


async def _looks_up(tab: Tab, live: Live) -> None:
    plain, _, token = live.server.url.partition("#values=")
    _require(await tab.run("location.href") == plain, "the token is left in the address")
    _require(await tab.run(f"sessionStorage.values === '{token}'"), "the token is not kept")

    async def ask(key: str, found: str) -> None:
        await tab.run("document.querySelector('#look-up [name=key]').select()")
        await tab.run("document.querySelector('#look-up [name=key]').focus()")
        await tab.type(key)
        await tab.press("Enter")
        await tab.until(f"{_FOUND}.includes({json.dumps(found)})", f"a look-up says {found}")

    await ask("ann", '"ann"')
    await ask("nobody", "this key has no value")
    await tab.open(plain)
    await ask("ann", '"ann"')  # the tab still has the token
    await tab.run("sessionStorage.clear()")
    await ask("ann", "whole address")


async def _is_used_by_keyboard(tab: Tab, live: Live) -> None:
    await tab.press("Tab")
    _require(await tab.run(f"{_ACTIVE}.matches('.skip')"), "the first stop is not the way to facts")
    await tab.press("Enter")
    _require(await tab.run(f"{_ACTIVE}.id") == "main", "the way to facts does not lead there")
    await tab.open(live.server.url)
    await tab.run("globalThis.reached = new Set(); globalThis.unseen = []")
    for _ in range(_MOST_STOPS):
        await tab.press("Tab")
        if not await tab.run(_STEP):
            break
    unseen = await tab.run("unseen")
    _require(not unseen, f"nobody sees that these have the focus: {unseen}")
    left = await tab.run(f"""[...document.querySelectorAll("{_STOPS}")]
      .filter(one => one.checkVisibility() && !reached.has(one))
      .map(one => one.tagName + "#" + one.id)""")
    _require(not left, f"no key leads to these: {left}")
    await tab.run("document.getElementById('t-subtasks-1').focus()")
    await tab.press("ArrowRight")
    await tab.until(f"{_ACTIVE}.scrollLeft > 0", "a table is scrolled by keys")


async def _says_that_nobody_answers(tab: Tab, live: Live) -> None:
    heard = "document.getElementById('heard').textContent"
    live.server.close()
    await tab.until(f"{heard}.startsWith('No answer')", "the page says that nobody answers")
    _require(await tab.run(live.shown), "what was shown last is gone")
    live.go_on()
    live.serve(live.server.port)
    await tab.until(f"{live.shown} && {heard} === ''", "the page goes on when there is an answer")


@dataclass(frozen=True, slots=True)
class Check:
    """One behaviour; `provokes` is what the browser complains of by that."""

    does: Callable[[Tab, Live], Awaitable[None]]
    provokes: str = "nothing"


CHECKS = {
    "refresh": Check(_refreshes),
    "what a reader has before him": Check(_keeps_what_a_reader_has_before_him),
    "pause": Check(_pauses),
    "selected text": Check(_waits_for_who_selects),
    "values": Check(_looks_up, r"status of 40[01]"),
    "keyboard": Check(_is_used_by_keyboard),
    "nobody answers": Check(_says_that_nobody_answers, r"ERR_CONNECTION_(REFUSED|RESET)|ERR_EMPTY"),
}


async def wrong_behaviour(tab: Tab) -> list[str]:
    """Go through all checks; what is wrong."""
    await tab.call("Emulation.setDeviceMetricsOverride", **_PHONE)
    counting = await tab.call("Page.addScriptToEvaluateOnNewDocument", source=_TURNS)
    found = []
    for name, check in CHECKS.items():
        live = Live()
        try:
            await tab.open(live.server.url)
            await check.does(tab, live)
        except AssertionError as wrong:
            found.append(f"{name}: {wrong}")
        # Left before it is gone: else the page finds nobody there.
        await tab.open("about:blank")
        live.server.close()
        faults = await tab.faults()
        found += [f"{name}: {one}" for one in faults if not re.search(check.provokes, one)]
    await tab.call("Page.removeScriptToEvaluateOnNewDocument", **counting)
    return found
