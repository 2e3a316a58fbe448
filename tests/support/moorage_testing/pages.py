"""Blocks of code in the pages of docs/: each runs, or is judged, or says why it cannot be.

Behind the language of a block stands what tests have to know; the site leaves it out:

    ```python                             run, after the page's blocks above it; if it has a job or
                                          a test without them, as people take it
    ```python no-run="asks a cluster"     only compiled, for this reason
    ```python run-by="tests/spark/x.py"   run by this test, which names the page
    ```yaml as="values"                   values of the chart, not an object
    ```sh run-by="tests/docs/x.py"        typed in by this test, which names the page
    ```sh no-run="asks a cluster"         only judged, for a reason of `page_faults.NOT_RUN`
"""

import doctest
import io
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from moorage.testing import run_job
from moorage.testing.environment import TestEnvironment
from moorage_testing.scripts import ROOT

__all__ = ["ROOT", "Block", "blocks", "pages", "run_python"]
BLOCK = re.compile(r"^( *)```([a-z]+)([^\n`]*)\n(.*?)^\1```[ ]*$", re.MULTILINE | re.DOTALL)
OPTION = re.compile(r'\s+([a-z-]+)="([^"]+)"')
STREAM = "user string, n long, day date, at timestamp"
OPTIONS = {"no-run", "run-by", "as"}
JOB_OR_TEST = re.compile(r"^(?:async )?def (?:build|test_\w+)\(", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a page; `line` is that of its first line."""

    page: str
    line: int
    language: str
    options: Mapping[str, str]
    code: str

    @property
    def stands_alone(self) -> bool:
        """Whether it is a file that somebody can take: it has a job, or tests."""
        return self.language == "python" and JOB_OR_TEST.search(self.code) is not None


def pages() -> list[str]:
    """All pages that have blocks, from the root of the repository."""
    places = ("*.md", "docs/**/*.md", "examples/**/*.md", "benchmarks/*.md", "charts/moorage/*.md")
    found = sorted({str(p.relative_to(ROOT)) for place in places for p in ROOT.glob(place)})
    return [page for page in found if blocks(page)]


def blocks(page: str, language: str | None = None) -> list[Block]:
    """The blocks of a page that name a language, or name this one, in their order.

    Raises:
        ValueError: what stands behind the language is none of the options.
    """
    text = (ROOT / page).read_text()
    found = []
    for match in BLOCK.finditer(text):
        indent, named, said, code = match.groups()
        options = dict(OPTION.findall(said))
        line = text.count("\n", 0, match.start()) + 2
        if OPTION.sub("", said).strip() or not options.keys() <= OPTIONS:
            raise ValueError(f"cannot read what a block says: page={page} line={line} said={said}")
        code = re.sub(f"^{indent}", "", code, flags=re.MULTILINE)
        found.append(Block(page, line, named, options, code))
    return [block for block in found if language in (None, block.language)]


def run_python(page: str, name: str = "page") -> ModuleType:
    """Run the Python blocks of a page, in their order, as one module of this name.

    A block with a job or a test is run alone, as a module of that name, and what it defines is
    there for those after it. A block finds `env`, as `build` is given one, and a `stream` of it.
    Tests that it defines are called; a job that it defines is built and run without input.
    """
    module = ModuleType(name)
    for block in blocks(page, "python"):
        if {"no-run", "run-by"} & block.options.keys():
            continue
        run = ModuleType(name) if block.stands_alone else module
        sys.modules[name] = run
        _run(block, run.__dict__)
        module.__dict__.update(run.__dict__)
    sys.modules[name] = module
    return module


def _run(block: Block, names: dict[str, Any]) -> None:
    names["env"] = env = TestEnvironment()
    names["stream"] = env.read_stream("stream", "json", schema=STREAM, path="in")
    if block.code.startswith(">>>"):
        _run_session(block, names)
        return
    code = "\n" * (block.line - 1) + block.code  # so that a failure names the page's line
    exec(compile(code, str(ROOT / block.page), "exec"), names)  # noqa: S102  our own pages
    if block.stands_alone:
        for test in [names[key] for key in names if key.startswith("test_")]:
            test()
        if "build" in names:
            run_job(names["build"], {})


def _run_session(block: Block, names: dict[str, Any]) -> None:
    test = doctest.DocTestParser().get_doctest(block.code, names, block.page, None, block.line)
    told = io.StringIO()
    if doctest.DocTestRunner(verbose=False).run(test, out=told.write).failed:
        raise AssertionError(told.getvalue())
