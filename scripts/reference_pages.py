"""Writes the pages of docs/ that are made of the code: references, and the list of decisions.

`python scripts/reference_pages.py` writes them; `--check` says whether they are up to date.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
MADE = "Made by `make format` from {source}; do not edit."


def decisions() -> str:
    """The list of all records of decisions, newest last."""
    rows = []
    for path in sorted((DOCS / "adr").glob("[0-9]*.md")):
        number, _, title = path.read_text().splitlines()[0].removeprefix("# ").partition(". ")
        rows.append(f"| {number} | [{title}]({path.name}) |")
    head = (
        "# Decisions\n\n"
        "Why things are as they are. A decision that another one replaces stays, and says so.\n"
        f"{MADE.format(source='their first lines')}\n\n| | |\n|---|---|\n"
    )
    return head + "\n".join(rows) + "\n"


PAGES = {DOCS / "adr" / "README.md": decisions}


def main() -> int:
    """Write the pages, or with `--check` compare; returns the exit status."""
    wanted = {path: page() for path, page in PAGES.items()}
    if "--check" not in sys.argv[1:]:
        for path, text in wanted.items():
            path.write_text(text)
        return 0
    stale = [p for p, text in wanted.items() if not p.exists() or p.read_text() != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)} is not up to date; run: make format", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
