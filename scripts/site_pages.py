"""Hooks of mkdocs: what pages link to outside docs/ becomes part of the site.

Pages link as the repository lies: `../examples/ticker/job.py`, `../charts/moorage/README.md`. For
each such file the site gets a page below `repository/`: Markdown as it is, all else as a listing.
A folder is its README.md, or the list of what lies in it. A link to what is not there is a warning,
which `strict: true` makes an error. mkdocs calls the `on_` functions, by mkdocs.yml; without
mkdocs a test holds the links of all pages.
"""

import json
import logging
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
DOCS = "docs/"
SITE = "repository/"
# A block of code, a piece of code in a line, or a link to another file: only the last is led on.
CODE_OR_LINK = re.compile(
    r"^ *(?P<fence>`{3,})[^\n]*\n.*?^ *(?P=fence) *$|(?P<tick>`+)[^`\n]+(?P=tick)"
    r"|\]\((?![a-z]+:|#)(?P<path>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)",
    re.MULTILINE | re.DOTALL,
)
# What follows the language of a block is read by the tests (tests/unit/docs).
INFO = re.compile(r"^( *`{3,}[a-z]+) [^\n`]*$", re.MULTILINE)
# What a browser would fetch from elsewhere to show a page.
FETCHED = re.compile(r"<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)=\"?(https?:[^\s\">]+)")
EMPTY_HEADER = re.compile(r"<th([^>]*)></th>")
UNNAMED = 'class="md-search" data-md-component="search" role="dialog"'
LANGUAGES = {".py": "python", ".yaml": "yaml", ".lua": "lua", ".json": "json", ".sh": "sh"}
SHOWN = {*LANGUAGES, ".ipynb", ".md", ".txt"}  # of a folder
log = logging.getLogger("mkdocs.hooks.site_pages")


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add a page for every file of the repository that a page of the site leads to."""
    from mkdocs.structure.files import File, InclusionLevel

    waiting = [DOCS + file.src_uri for file in files.documentation_pages()]
    seen = set(waiting)
    while waiting:
        source = waiting.pop()
        if not source.endswith(".md") and not (ROOT / source).is_dir():
            continue
        for found in linked(source, listing(source)):
            if found in seen or found.startswith(DOCS) or not (ROOT / found).exists():
                continue
            seen.add(found)
            waiting.append(found)
            made = File.generated(config, site_name(found), content=listing(found))
            made.inclusion = InclusionLevel.NOT_IN_NAV
            files.append(made)
    return files


def on_page_markdown(markdown: str, *, page: "Page", **_: Any) -> str:
    """Let links lead to pages of the site, and take from code blocks what only tests read."""
    here = page.file.src_uri
    source = here.removeprefix(SITE) if here.startswith(SITE) else DOCS + here

    def led(found: re.Match[str]) -> str:
        if found["path"] is None:
            return found[0]
        target = resolved(source, found["path"])
        if not (ROOT / target).exists():
            log.warning("%s links to %s, which is not there", source, found["path"])
            return found[0]
        name = target.removeprefix(DOCS) if target.startswith(DOCS) else site_name(target)
        return (
            f"]({posixpath.relpath(name, posixpath.dirname(here) or '.')}{found['anchor'] or ''})"
        )

    return INFO.sub(r"\1", CODE_OR_LINK.sub(led, markdown))


def on_post_page(output: str, *, page: "Page", **_: Any) -> str:
    """Warn of what would be fetched from elsewhere: the site is whole in itself."""
    for found in FETCHED.finditer(output):
        if "canonical" not in found[0]:
            log.warning("%s would fetch %s", page.file.src_uri, found[1])
    return accessible(output)


def on_post_template(output_content: str, **_: Any) -> str:
    """A page that is no file of ours, such as what is said where there is none."""
    return accessible(output_content)


def accessible(page: str) -> str:
    """Give a name to the theme's dialog that has none; a header that says nothing is none."""
    page = page.replace(UNNAMED, f'{UNNAMED} aria-label="Search"')
    return EMPTY_HEADER.sub(r"<td\1></td>", page)


def linked(source: str, text: str) -> Iterator[str]:
    """The files that a page links to, from the root of the repository."""
    for found in CODE_OR_LINK.finditer(text):
        if found["path"] is not None:
            yield resolved(source, found["path"])


def resolved(source: str, link: str) -> str:
    """Where a link of this file leads, from the root; of a folder its README.md, if it has one."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    readme = posixpath.join(target, "README.md")
    return readme if (ROOT / readme).is_file() else target


def site_name(path: str) -> str:
    """The page of the site for a file of the repository."""
    return SITE + (path if path.endswith(".md") else path + ".md")


def listing(path: str) -> str:
    """The text of that page."""
    place = ROOT / path
    if path.endswith(".md"):
        return place.read_text()
    if place.is_dir():
        names = sorted(child.name for child in place.iterdir() if child.suffix in SHOWN)
        return f"# {path}\n\n" + "".join(f"- [{n}]({place.name}/{n})\n" for n in names)
    if place.suffix == ".ipynb":
        cells = json.loads(place.read_text())["cells"]
        return "\n\n".join(_cell("".join(one["source"]), one["cell_type"]) for one in cells)
    language = LANGUAGES.get(place.suffix, "text")
    return f"# {path}\n\n``````{language}\n{place.read_text().rstrip()}\n``````\n"


def _cell(text: str, kind: str) -> str:
    """One of a notebook's; its code as what it is."""
    return text if kind == "markdown" else f"``````python\n{text}\n``````"
