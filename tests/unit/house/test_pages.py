"""Links of all pages lead somewhere, in the repository and so in the site, and no page is left out.

mkdocs holds the same in `make docs`; here it costs no environment of its own.
"""

import re

import pytest
import yaml
from moorage_testing.scripts import ROOT, script

SITE = script("site_pages")
PAGES = [
    str(path.relative_to(ROOT))
    for folder in ("", "docs", "docs/adr", "examples", "examples/*", "benchmarks", "charts/moorage")
    for path in sorted(ROOT.glob(f"{folder}/*.md" if folder else "*.md"))
]


def whole(path: str) -> str:
    return (ROOT / path).read_text()


def anchors(path: str) -> set[str]:
    """What the headings of a page can be linked as, by GitHub's rule (mkdocs' but for rarities)."""
    text = SITE.CODE_OR_LINK.sub(lambda found: found[0] * (not found["fence"]), whole(path))
    titles = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).replace("`", "") for title in titles]
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_to_what_is_there(page):
    broken = []
    for found in SITE.CODE_OR_LINK.finditer(whole(page)):
        if found["path"] is None:
            continue
        target = SITE.resolved(page, found["path"])
        anchor = (found["anchor"] or "")[1:]
        if not (ROOT / target).exists() or (anchor and anchor not in anchors(target)):
            broken.append(found[0])
    assert broken == []


@pytest.mark.parametrize("page", PAGES)
def test_a_list_is_the_same_in_the_repository_and_in_the_site(page):
    """The site's Markdown ends a list at a paragraph that has fewer than four spaces."""
    text = SITE.CODE_OR_LINK.sub(lambda found: found[0] * (not found["fence"]), whole(page))
    assert re.findall(r"\n\n {1,3}[^\s`].*", text) == []


def test_every_page_is_in_the_sites_navigation():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    named = set(re.findall(r"[\w./-]+\.md", str(nav)))
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert pages - named == set()
    assert {name for name in named if not name.startswith(("repository/", "adr/"))} - pages == set()


def test_a_link_to_a_file_of_the_repository_becomes_one_to_its_page_and_code_is_left_alone():
    class Page:
        class file:  # noqa: N801  as mkdocs names it
            src_uri = "adr/0001-x.md"

    text = (
        "[a](../../examples/ticker/job.py) [b](../jobs.md#inputs) `x[0](y)`\n"
        "```py no-run=x\nf[0](y)\n```\n"
    )
    assert SITE.on_page_markdown(text, page=Page) == (
        "[a](../repository/examples/ticker/job.py.md) [b](../jobs.md#inputs) `x[0](y)`\n"
        "```py\nf[0](y)\n```\n"
    )
