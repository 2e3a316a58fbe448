"""Writes crds/*.yaml and docs/crd.md from the models.

`python scripts/crds.py` writes them; `--check` says whether they are up to date.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from moorage_api.changes import KINDS, declared
from moorage_api.crds import job_crd, snapshot_crd

ROOT = Path(__file__).parent.parent
NOTE = "# Made from the models in operator/moorage_api by `make format`; do not edit.\n"

HEAD = """\
# The custom resources

Made from the models by `make format`; do not edit. What each field means is in
[manifest.md](manifest.md). The definitions are in [crds/](../crds); apply them with
`kubectl apply --server-side -f crds/`, and before an operator that is newer than they are.

| kind | short | `kubectl get` shows | more with `-o wide` | field selectors |
|---|---|---|---|---|
"""

RULES = """
## Rules across fields

The API server checks these when an object is written, beside types, ranges and forms. Rules with
`oldSelf` look at edits only. What it cannot see (the inside of pod templates, other objects, the
store) the operator checks: the condition `SpecValid` and the event `ValidationFailed` say what it
found. A job whose new spec is refused there goes on with the last good one.

| object | field | rule | message |
|---|---|---|---|
"""

CHANGES = """
## What editing a running job does

Of an edit of several fields the strongest kind decides. Values count and not how they are written:
`1Gi` is `1024Mi`, and a default written out is no edit.

"""

LIVE = """
`checkpoint.*` is an Upgrade: the driver reads its settings when it starts. What is Ignore or Live
is taken from the newest spec at every start, so it never needs a start of its own.

| field | change |
|---|---|
"""


class Dumper(yaml.SafeDumper):
    """Lists indented below their key, no anchors."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        """Never without indent."""
        return super().increase_indent(flow, indentless=False)

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """Write everything out."""
        return True


def files() -> dict[Path, str]:
    """Every generated file with its text."""
    crds = (job_crd(), snapshot_crd())
    texts = {ROOT / "crds" / f"{crd['metadata']['name']}.yaml": NOTE + dump(crd) for crd in crds}
    return {**texts, ROOT / "docs" / "crd.md": page(crds)}


def dump(crd: dict[str, Any]) -> str:
    """A definition as YAML."""
    text: str = yaml.dump(crd, Dumper=Dumper, sort_keys=False, width=100, allow_unicode=True)
    return text


def page(crds: tuple[dict[str, Any], ...]) -> str:
    """The reference page."""
    lines = [HEAD + "\n".join(kind_row(crd) for crd in crds), RULES.rstrip("\n")]
    lines += [row for crd in crds for row in rule_rows(crd)]
    lines.append(CHANGES.rstrip("\n"))
    lines.append("")
    lines += [f"- **{kind}**: {meaning}." for kind, meaning in KINDS.items()]
    lines.append(LIVE.rstrip("\n"))
    lines += [f"| `{path}` | {kind} |" for path, kind in declared()]
    return "\n".join(lines) + "\n"


def kind_row(crd: dict[str, Any]) -> str:
    """One kind."""
    names, version = crd["spec"]["names"], crd["spec"]["versions"][0]
    columns = version["additionalPrinterColumns"]
    shown = ", ".join(c["name"] for c in columns if "priority" not in c)
    wide = ", ".join(c["name"] for c in columns if "priority" in c)
    fields = ", ".join(f"`{f['jsonPath'][1:]}`" for f in version["selectableFields"])
    return f"| {names['kind']} | {', '.join(names['shortNames'])} | {shown} | {wide} | {fields} |"


def rule_rows(crd: dict[str, Any]) -> Iterator[str]:
    """One row for each rule that is about more than one value."""
    version = crd["spec"]["versions"][0]
    kind = crd["spec"]["names"]["kind"]
    for path, rule in rules(version["schema"]["openAPIV3Schema"], ""):
        if "duration(self)" in rule["rule"] or "(self) == int" in rule["rule"]:
            continue
        field = f"{path}{rule.get('fieldPath', '')}"
        text = rule["rule"] if len(rule["rule"]) < 400 else f"{rule['rule'][:120]}..."
        shown = text.replace("|", "\\|")
        yield f"| {kind} | `{field}` | `{shown}` | {rule['message']} |"


def rules(node: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every rule below a node of a schema, with the field that it sits on."""
    for rule in node.get("x-kubernetes-validations", []):
        yield path, rule
    for name, inner in node.get("properties", {}).items():
        yield from rules(inner, f"{path}.{name}".lstrip("."))
    if "items" in node:
        yield from rules(node["items"], f"{path}[]")


def main() -> int:
    """Write the files, or with `--check` compare; returns the exit status."""
    wanted = files()
    if "--check" not in sys.argv[1:]:
        for path, text in wanted.items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return 0
    stale = [p for p, text in wanted.items() if not p.exists() or p.read_text() != text]
    known = {p for p in wanted if p.parent.name == "crds"}
    stale += sorted(set((ROOT / "crds").glob("*.yaml")) - known)
    for path in stale:
        print(
            f"{path.relative_to(ROOT)} does not match the models; run: make format", file=sys.stderr
        )
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
