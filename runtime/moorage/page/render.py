"""The page as HTML: one text that holds its style and its script, and needs nothing else."""

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from moorage.page.views import Page


@cache
def _template() -> Template:
    loader = PackageLoader("moorage.page", "templates")
    # Names of jobs and texts of errors are other people's: all is escaped, nothing is marked safe.
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("page.html")


def rendered(page: Page, *, live: bool = False, nonce: str = "") -> str:
    """The whole document.

    Args:
        live: it asks for itself every few seconds; else it is a file that stands for itself.
        nonce: that the answer's content security policy allows.
    """
    return str(_template().render(page=page, live=live, nonce=nonce))
