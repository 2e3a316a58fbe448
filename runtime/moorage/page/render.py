"""The page as HTML: one text that holds its style and its script, and needs nothing else."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING

from moorage.page.advice import advice_for
from moorage.page.history import RunHistory
from moorage.page.parts import Clean, Page, Problem, moment_text
from moorage.page.store_views import page_of_store
from moorage.page.views import page_of_run
from moorage_state.errors import MoorageError

if TYPE_CHECKING:
    from jinja2 import Template

    from moorage.offline.description import Description
    from moorage.offline.listing import Listing

    Look = Callable[[datetime], tuple[Listing, Description | None]]

RUN_SECONDS = 2
"""Between two looks of a browser at a run."""
STORE_SECONDS = 15


@cache
def _template() -> "Template":
    # Here, and not above: a driver on a cluster runs without it, its page alone does not.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("moorage.page", "templates")
    # Names of jobs and texts of errors are other people's: all is escaped, nothing is marked safe.
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("page.html")


def rendered(page: Page, *, refresh_seconds: int = 0, nonce: str = "") -> str:
    """The whole document.

    Args:
        refresh_seconds: after which it asks for itself again, if it is no file.
        nonce: that the answer's content security policy allows; without one it is a file.
    """
    again = refresh_seconds if nonce else 0
    return str(_template().render(page=page, refresh_seconds=again, nonce=nonce))


def drawn_run(history: RunHistory, clean: Clean, nonce: str) -> str:
    """The page of a run, as it is at this moment."""
    page = page_of_run(history.facts(), datetime.now(UTC), clean)
    return rendered(page, refresh_seconds=RUN_SECONDS, nonce=nonce)


def drawn_store(look: "Look", clean: Clean, nonce: str) -> str:
    """The page of a store that is looked at anew; where that fails it says why."""
    now = datetime.now(UTC)
    try:
        page = page_of_store(*look(now), now, clean)
    except MoorageError as error:
        problem = Problem(moment_text(now), clean(str(error)), advice_for(error.code))
        page = Page("Moorage", "not readable", moment_text(now), [problem], [])
    return rendered(page, refresh_seconds=STORE_SECONDS, nonce=nonce)
