"""Writes the pages of docs/ that are made of the code: references, and the list of decisions.

`python scripts/reference_pages.py` writes them; `--check` says whether they are up to date. What
code does not say (what a person does about an error or an event, where a setting of Flink stands)
is in the text file beside a page, and every line of it is held against the code.
"""

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
import yaml
from prometheus_client import CollectorRegistry

import moorage
import moorage.testing
from moorage.cli.app import app
from moorage.cli.cluster_jobs import plugin
from moorage.cluster.metrics import METRICS
from moorage_api import StatefulSparkJob
from moorage_operator.metrics import ApiMetrics, OperatorMetrics
from moorage_state.state_backends.configuration import OPTIONS
from moorage_state.tuning.names import ABSENT_KEYS, KNOWN_KEYS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
OPERATOR = ROOT / "operator" / "moorage_operator"
PRODUCT = ("backends", "operator", "runtime/moorage")
MADE = "Made by `make format` from {source}; do not edit."


class Stale(Exception):
    """A text file names what the code does not have, or lacks what it has."""


def page(title: str, source: str, *parts: str) -> str:
    """A page that says what it is made of."""
    return "\n\n".join([f"# {title}", MADE.format(source=source), *parts]) + "\n"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table; its cells may have any text."""
    titles = list(head)
    lines = [titles, ["---"] * len(titles), *rows]
    cells = ([" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join("| " + " | ".join(line) + " |" for line in cells).replace("|  |", "| |")


def said(name: str, columns: int) -> dict[str, list[str]]:
    """The lines of a text file by their first column."""
    found: dict[str, list[str]] = {}
    for line in (DOCS / name).read_text().splitlines():
        if line and line[0] != "#":
            first, *rest = (part.strip() for part in line.split(" | " if " | " in line else "|"))
            rest = [part.removesuffix("|").strip() for part in rest]
            found[first] = [*rest, *[""] * (columns - 1 - len(rest))]
    return found


def same(name: str, told: Iterable[str], there: Iterable[str]) -> None:
    """Hold what a text file tells against what there is."""
    missing, gone = set(there) - set(told), set(told) - set(there)
    if missing or gone:
        raise Stale(f"docs/{name}: add {sorted(missing)}, take out {sorted(gone)}")


def decisions() -> str:
    """The list of all records of decisions, newest last."""
    rows = []
    for path in sorted((DOCS / "adr").glob("[0-9]*.md")):
        number, _, title = path.read_text().splitlines()[0].removeprefix("# ").partition(". ")
        rows.append((number, f"[{title}]({path.name})"))
    text = "Why things are as they are. A decision that another one replaces stays, and says so."
    return page("Decisions", "their first lines", text, table(("", ""), rows))


def metrics() -> str:
    """What drivers and the operator measure."""
    driver = [(f"`{m.name}`", m.kind, ticked(m.labels), m.help) for m in METRICS]
    registry = CollectorRegistry()
    OperatorMetrics(registry=registry)
    ApiMetrics(registry)
    operator = []
    for family in registry.collect():
        name = family.name + "_total" * (family.type == "counter")
        operator.append(
            (f"`{name}`", family.type, ticked(labels_of(registry, family)), family.documentation)
        )
    head = ("metric", "kind", "labels", "meaning")
    return page(
        "Metrics",
        "what drivers and the operator measure",
        "How to have them scraped: [install.md](install.md#metrics). "
        "What to do when one is wrong: [runbook.md](runbook.md).",
        "## Of a driver\n\n"
        "All have the labels `job` and `namespace`. What is not known yet is left out.",
        table(head, driver),
        "## Of the operator\n\n"
        "Series of an object are made from its newest status at each scrape and go with the "
        "object. Only the leader has any.",
        table(head, sorted(operator)),
    )


def labels_of(registry: CollectorRegistry, family: Any) -> tuple[str, ...]:
    """The names of a family's labels, which it tells nobody while it has no samples."""
    kept = registry._names_to_collectors.get(family.name)  # noqa: SLF001  there is no other way
    return tuple(getattr(family, "_labelnames", ()) or getattr(kept, "_labelnames", ()))


def ticked(names: Iterable[str]) -> str:
    """Names as code, with commas."""
    return ", ".join(f"`{name}`" for name in names)


_ROLES = {
    "-facts": "operator",
    "-leader": "leader",
    "-driver": "driver",
    "-tokens": "tokens",
    "-uninstall": "uninstall",
    "-view": "people who view",
    "-edit": "people who edit",
}
_RELEASES = ("default", "full")


def rbac() -> str:
    """What the chart's roles allow, from the chart as it is rendered for two releases."""
    known = said_of_two("reference-rbac.txt")
    verbs: dict[tuple[str, str], set[str]] = {}
    for release in _RELEASES:
        for role in roles(ROOT / "tests" / "chart" / "golden" / f"{release}.yaml"):
            name = role["metadata"]["name"]
            who = next((_ROLES[end] for end in _ROLES if name.endswith(end)), "operator")
            for rule in role["rules"]:
                for resource in rule["resources"]:
                    verbs.setdefault((who, resource), set()).update(rule["verbs"])
    same("reference-rbac.txt", map(" | ".join, known), map(" | ".join, verbs))
    rows = [
        (who, f"`{what}`", ", ".join(sorted(verbs[who, what])), known[who, what])
        for who, what in known
    ]
    return page(
        "Rights",
        "the chart's roles and reference-rbac.txt",
        "All that the chart's roles allow, with the values that allow most. With `watchNamespaces` "
        "they are Roles of these namespaces and two small ClusterRoles, "
        "[none](install.md#what-is-installed) with `rbac.clusterScoped=false`. "
        "What follows from them for people: "
        "[threat-model.md](threat-model.md).",
        table(("who", "resource", "may", "for"), rows),
    )


def roles(path: Path) -> Iterator[dict[str, Any]]:
    """The roles in a rendered chart."""
    for found in yaml.safe_load_all(path.read_text()):
        if found and found["kind"] in {"Role", "ClusterRole"}:
            yield found


def said_of_two(name: str) -> dict[tuple[str, str], str]:
    """The lines of a text file by their first two columns."""
    lines = [line for line in (DOCS / name).read_text().splitlines() if line[:1] not in {"", "#"}]
    cells = [[part.strip() for part in line.split(" | ", 2)] for line in lines]
    return {(who, what): why for who, what, why in cells}


def errors() -> str:
    """Codes of errors, with what to do."""
    known = said("reference-errors.txt", 2)
    codes = dict(coded_classes())
    same("reference-errors.txt", known, codes)
    rows = [(f"`{code}`", codes[code], known[code][0]) for code in sorted(codes)]
    return page(
        "Errors",
        "classes that have a code, and reference-errors.txt",
        "A message says what failed, on what, and what to do. One of these codes stands beside it "
        "where it crosses a process: in a driver's last words, in what its endpoint answers, in "
        "JSON that a command prints. Exit statuses of `moorage`: [cli.md](cli.md#exit-status).",
        table(("code", "meaning", "what to do"), rows),
    )


def coded_classes() -> Iterator[tuple[str, str]]:
    """Codes that classes of the product set, with the first line of the class."""
    for path in sorted(path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                for code in filter(None, map(code_of, node.body)):
                    yield code, (ast.get_docstring(node) or "").partition("\n")[0]


def code_of(statement: ast.stmt) -> str | None:
    """The text of `code = "..."` in a class, with or without its type."""
    match statement:
        case ast.AnnAssign(target=ast.Name("code"), value=ast.Constant(str(code))):
            return code
        case ast.Assign(targets=[ast.Name("code")], value=ast.Constant(str(code))):
            return code
    return None


def events() -> str:
    """Events of jobs and snapshots."""
    known = said("reference-events.txt", 3)
    literal, texts = told_events()
    composed = {f"{kind}{what}" for kind in ("Savepoint", "Checkpoint") for what in COMPOSED}
    named = {reason for reason in known if reason in texts or reason in composed}
    same("reference-events.txt", known, named | literal.keys() | composed)
    rows = []
    for reason in sorted(known):
        unsaid = "Normal" if reason.endswith(COMPOSED[:2]) else "Warning"
        kind = literal.get(reason, unsaid)
        rows.append((f"`{reason}`", kind, *known[reason]))
    return page(
        "Events",
        "what the operator tells, and reference-events.txt",
        "`kubectl describe` shows them. Each is told once per transition. "
        "A driver's end is told under "
        "[its reason](operator-states.md#how-a-drivers-end-is-judged).",
        table(("reason", "kind", "when", "what to do"), rows),
    )


COMPOSED = ("Started", "Completed", "Failed")


def told_events() -> tuple[dict[str, str], set[str]]:
    """Reasons that stand in the operator's calls, with their kind; and all texts of its code."""
    literal: dict[str, str] = {}
    texts: set[str] = set()
    for path in sorted(OPERATOR.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
            if not isinstance(node, ast.Call) or len(node.args) < 2:
                continue
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            given = [one.value if isinstance(one, ast.Constant) else "" for one in node.args[:2]]
            if called in {"tell", "Event"} and all(given):
                literal[str(given[1])] = str(given[0])
    return literal, texts


def configuration() -> str:
    """Where Flink's settings stand here."""
    known = said("reference-configuration.txt", 3)
    fields = {name.removesuffix("[]") for name in manifest_fields(StatefulSparkJob)}
    same(
        "the fields in reference-configuration.txt",
        {n for n, _ in known.values()} - {"none"} - fields,
        (),
    )
    rows = [
        (f"`{key}`", f"`{where}`" if where != "none" else "", note)
        for key, (where, note) in known.items()
    ]
    same_name = "[the same name](state-options.md#settings)"
    rows += [(f"`{key}`", "`spec.state.options`", same_name) for key in KNOWN_KEYS]
    for key, why in ABSENT_KEYS.items():
        if key not in KNOWN_KEYS:
            rows.append((f"`{key}`", "", why))
    programs = [
        (
            f"`{one.key}`",
            ticked(one.fallback_keys),
            "" if one.default is None else f"`{plain(one.default)}`",
        )
        for one in OPTIONS
    ]
    return page(
        "Settings by Flink's names",
        "the code that reads them, and reference-configuration.txt",
        "Every field of a job's manifest: [manifest.md](manifest.md). "
        "Names of classes and methods: [flink-map.md](flink-map.md).",
        "## Of a job",
        table(("Flink", "here", ""), sorted(rows)),
        "## Of programs and tests\n\n"
        "What `moorage_state.state_backends` reads: "
        "[state-backends.md](state-backends.md#choosing).",
        table(("key", "older names", "default"), programs),
    )


def plain(value: Any) -> str:
    """A default as it is written."""
    text = getattr(value, "name", value)
    return str(text).lower() if isinstance(text, bool) else str(text)


def manifest_fields(model: Any, above: str = "") -> Iterator[str]:
    """Paths of all fields of a manifest, those that hold others as well."""
    for name, field in model.model_fields.items():
        path = f"{above}{field.alias or name}"
        yield path
        inner = [
            one
            for one in (field.annotation, *typing_args(field.annotation))
            if hasattr(one, "model_fields")
        ]
        for one in inner:
            yield from manifest_fields(one, f"{path}.")


def typing_args(annotation: Any) -> tuple[Any, ...]:
    """What an annotation is made of."""
    return getattr(annotation, "__args__", ())


def commands() -> str:
    """Every command with its arguments and options."""
    parts: list[str] = []
    for program, command in (("moorage", app), ("kubectl moorage", plugin)):
        parts += described(program, typer.main.get_command(command))
    return page(
        "Commands",
        "the parser",
        "How they are used, with examples: [cli.md](cli.md).",
        *parts,
    )


def described(program: str, command: Any) -> Iterator[str]:
    """A command, and those below it."""
    below = getattr(command, "commands", None)
    if below is not None:
        for name in sorted(below):
            yield from described(f"{program} {name}", below[name])
        return
    rows = []
    for one in (param for param in command.params if param.name != "help"):
        if one.param_type_name == "argument":
            needed = "" if one.required else "may be left out"
            rows.append((f"`{one.metavar or one.name.upper()}`", needed, one.help or ""))
            continue
        value = (
            "" if one.is_flag else " " + (one.metavar or kind_of(one.type_descriptor.annotation))
        )
        names = ", ".join(f"`{name}{value}`" for name in (*one.opts, *one.secondary_opts))
        shown = one.default not in (None, False, True, ()) and not callable(one.default)
        rows.append((names, f"`{one.default}`" if shown else "", one.help or ""))
    text = f"## {program}\n\n{(command.help or '').strip()}"
    yield text + ("\n\n" + table(("", "default", "meaning"), rows) if rows else "")


def kind_of(annotation: Any) -> str:
    """What a person writes for a value of this type."""
    choices = typing_args(annotation)
    if choices and all(isinstance(one, str) for one in choices):
        return "|".join(choices)
    return {int: "N", float: "NUMBER", Path: "PATH"}.get(annotation, "TEXT")


def python_names() -> str:
    """What a job's author imports from `moorage`, by the docstrings."""
    groups: dict[str, list[str]] = {}
    for name in moorage.__all__:
        groups.setdefault(moorage._HOME_OF.get(name, ""), []).append(name)  # noqa: SLF001  its own table
    parts = []
    for home, names in groups.items():
        if home:
            summary = (importlib.import_module(home).__doc__ or "").partition("\n")[0]
            parts.append(f"## {home.removeprefix('moorage.').removeprefix('api.')}\n\n{summary}")
            parts += [named(name) for name in names]
    parts.append(f"## testing\n\n{(moorage.testing.__doc__ or '').partition('; ')[0]}.")
    parts += [named(name, moorage.testing) for name in moorage.testing.__all__]
    return page(
        "Python names",
        "the docstrings",
        "Everything here is imported from `moorage`, what is under [testing](#testing) from "
        "`moorage.testing`. What it is for: [jobs.md](jobs.md), [testing.md](testing.md), "
        "[state.md](state.md), [time.md](time.md), [windows.md](windows.md), [sinks.md](sinks.md).",
        *parts,
    )


def named(name: str, home: ModuleType = moorage) -> str:
    """A class with its methods, a function or a value."""
    thing = getattr(home, name)
    if not callable(thing):
        return f"### {name}\n\n`{thing!r}`"
    text = f"### {name}\n\n" + documented(thing, name)
    if not inspect.isclass(thing):
        return text
    above = [one for one in thing.__mro__[1:] if one.__module__.startswith("moorage")]
    told_there = [one for one in above if getattr(home, one.__name__, None) is one]
    if told_there:
        links = ", ".join(f"[{one.__name__}](#{one.__name__.lower()})" for one in told_there)
        text += f"\n\nAlso has what is under {links}."
    members = dict(vars(thing))
    for one in above:
        members = members if one in told_there else vars(one) | members
    rows = []
    for member, value in sorted(members.items()):
        doc = inspect.getdoc(getattr(thing, member, None))
        told = callable(value) or isinstance(value, (property, classmethod, staticmethod))
        if member[0] == "_" or not doc or isinstance(value, type) or not told:
            continue
        shown = member + ("" if isinstance(value, property) else signature(getattr(thing, member)))
        rows.append((f"`{shown}`", doc.partition("\n\n")[0]))
    return text + ("\n\n" + table(("", ""), rows) if rows else "")


def documented(thing: Any, name: str) -> str:
    """Signature and docstring; sections such as Args as lists."""
    doc = inspect.getdoc(thing) or ""
    if doc.startswith(f"{name}("):  # a dataclass without words
        doc = ""
    lines = []
    for line in doc.splitlines():
        if re.fullmatch(r"(Args|Attributes|Raises|Returns|Yields):", line):
            lines.append(f"**{line[:-1]}**\n")
        elif found := re.match(r"    (\w+): (.*)", line):
            lines.append(f"- `{found[1]}`: {found[2]}")
        else:
            lines.append(line.strip() if line.startswith("        ") else line)
    return f"`{name}{signature(thing)}`\n\n" + "\n".join(lines).replace("``", "`")


def signature(thing: Any) -> str:
    """How it is called, without types."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    told: list[str] = []
    for one in found.parameters.values():
        if one.name in {"self", "cls"}:
            continue
        stars = "*" * (one.kind == one.VAR_POSITIONAL) + "**" * (one.kind == one.VAR_KEYWORD)
        if one.kind == one.KEYWORD_ONLY and "*" not in told and not any(x[0] == "*" for x in told):
            told.append("*")
        value = "" if one.default is one.empty else f"={shown_default(one.default)}"
        told.append(f"{stars}{one.name}{value}")
    return f"({', '.join(told)})"


def shown_default(value: Any) -> str:
    """A default that is the same in every process."""
    text = repr(value)
    return "..." if " at 0x" in text or "<" in text else text


PAGES: dict[Path, Callable[[], str]] = {
    DOCS / "adr" / "README.md": decisions,
    DOCS / "reference-commands.md": commands,
    DOCS / "reference-configuration.md": configuration,
    DOCS / "reference-errors.md": errors,
    DOCS / "reference-events.md": events,
    DOCS / "reference-metrics.md": metrics,
    DOCS / "reference-python.md": python_names,
    DOCS / "reference-rbac.md": rbac,
}


def main() -> int:
    """Write the pages, or with `--check` compare; returns the exit status."""
    try:
        wanted = {path: made() for path, made in PAGES.items()}
    except Stale as error:
        print(error, file=sys.stderr)
        return 1
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
