"""Writes what is generated in charts/moorage: README.md from values.yaml, files/crds from crds/.

`python scripts/chart_docs.py` writes them; `--check` says whether they are up to date.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
CHART = ROOT / "charts" / "moorage"
MARK = "# -- "

HEAD = """\
# The chart of Moorage's operator

Made from values.yaml by `make format`; do not edit. How to install, upgrade and uninstall is in
[docs/install.md](../../docs/install.md) and [docs/upgrade.md](../../docs/upgrade.md).

```sh no-run="asks a cluster"
helm install moorage charts/moorage --namespace moorage --create-namespace \\
  --set 'jobs.namespaces={streams}'
```

Values are checked by values.schema.json: a name that is not in this list is refused.

| value | default | meaning |
|---|---|---|
"""


def files() -> dict[Path, str]:
    """Every generated file with its text."""
    crds = sorted((ROOT / "crds").glob("*.yaml"))
    copies = {CHART / "files" / "crds" / path.name: path.read_text() for path in crds}
    return {**copies, CHART / "README.md": readme((CHART / "values.yaml").read_text())}


def readme(text: str) -> str:
    """The page for these values."""
    values = yaml.safe_load(text)
    rows = [
        f"| `{path}` | {default(value_at(values, path))} | {escaped(meaning)} |"
        for path, meaning in documented(text)
    ]
    return HEAD + "\n".join(rows) + "\n"


def documented(text: str) -> Iterator[tuple[str, str]]:
    """The path and the description of each value that has one, in the file's order."""
    keys: list[str] = []
    meaning = ""
    for line in text.splitlines():
        if line.strip().startswith(MARK):
            meaning = line.strip().removeprefix(MARK)
        elif found := re.match(r"^( *)([A-Za-z][A-Za-z0-9_]*):", line):
            keys[len(found[1]) // 2 :] = [found[2]]
            if meaning:
                yield ".".join(keys), meaning
            meaning = ""


def value_at(values: Any, path: str) -> Any:
    """The value of a dotted path."""
    for key in path.split("."):
        values = values[key]
    return values


def default(value: Any) -> str:
    """A value as a person writes it on one line."""
    return f"`{escaped(json.dumps(value))}`"


def escaped(text: str) -> str:
    """Fit for a cell of a table."""
    return text.replace("|", "\\|")


def main() -> int:
    """Write the files, or with `--check` compare; returns the exit status."""
    wanted = files()
    if "--check" not in sys.argv[1:]:
        for path, text in wanted.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return 0
    stale = [p for p, text in wanted.items() if not p.exists() or p.read_text() != text]
    stale += sorted(set((CHART / "files" / "crds").iterdir()) - set(wanted))
    for path in stale:
        print(f"{path.relative_to(ROOT)} is not up to date; run: make format", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
