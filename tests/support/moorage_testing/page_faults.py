"""What is wrong with a block of code in a page, as far as can be told without running it."""

import ast
import builtins
import json
import re
import shlex
import subprocess
import symtable
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import typer
import yaml

from moorage.cli.app import app
from moorage.cli.cluster_jobs import plugin
from moorage_api import ManifestError
from moorage_api.crds import job_crd, snapshot_crd
from moorage_api.manifest import parse_manifest
from moorage_testing.crd import Judge
from moorage_testing.pages import Block
from moorage_testing.scripts import ROOT

__all__ = ["faults"]

# A fragment of a job's manifest is judged as part of this one.
JOB: dict[str, Any] = {
    "apiVersion": "moorage.dev/v1alpha1",
    "kind": "StatefulSparkJob",
    "metadata": {"name": "job", "namespace": "streams"},
    "spec": {
        "image": "job:1",
        "application": {"mainFile": "local:///app/job.py"},
        "scaling": {"parallelism": 2, "maxParallelism": 128},
        "state": {"checkpointDir": "s3://bucket/job", "savepointDir": "s3://bucket/savepoints"},
    },
}


NOT_RUN = {
    "asks a cluster": r"\b(kubectl|helm)\b|moorage uninstall",
    "builds images": r"\b(docker|cosign)\b",
    "takes minutes": r"\b(make|python -m benchmarks)\b",
    "shows a form": r"\bVERSION\b",
}
"""Why commands of a page are run by no test, and what in them bears it out."""


def faults(block: Block) -> Iterator[str]:
    """What is wrong with a block, as far as can be told without running it."""
    yield from _run_or_not(block)
    yield from JUDGES[block.language](block) if block.language in JUDGES else ()


def _run_or_not(block: Block) -> Iterator[str]:
    """Whether the test that runs it is there; of commands, why there is none."""
    test, why = block.options.get("run-by"), block.options.get("no-run")
    if test and not (ROOT / test).is_file():
        yield f"there is no such test: {test}"
    elif test and Path(block.page).name not in (ROOT / test).read_text():
        yield f"the test does not name the page: {test}"
    if block.language == "sh" and not test:
        if why is None:
            yield f"commands that nobody runs: say run-by, or no-run with one of {[*NOT_RUN]}"
        elif why not in NOT_RUN:
            yield f"no reason that is known: no-run={why} known={[*NOT_RUN]}"
        elif not re.search(NOT_RUN[why], block.code):
            yield f"nothing in it bears that out: no-run={why}"


def _python(block: Block) -> Iterator[str]:
    """Syntax; a job or a test has all its names, also those of functions that no test calls."""
    if block.code.startswith(">>>"):
        return
    ast.parse(block.code)
    if block.stands_alone and "no-run" not in block.options:
        top = symtable.symtable(block.code, block.page, "exec")
        bound = (one for one in top.get_symbols() if one.is_assigned() or one.is_imported())
        known = {one.get_name() for one in bound} | {*dir(builtins)}
        if missing := sorted({*_names_of_the_module(top)} - known):
            yield f"not there for who takes this block alone: {missing}; import it, or define it"


def _names_of_the_module(scope: symtable.SymbolTable) -> Iterator[str]:
    """Of all names that a scope and those in it ask for, the ones that are no function's own."""
    for one in scope.get_symbols():
        if one.is_referenced() and (scope.get_type() == "module" or one.is_global()):
            yield one.get_name()
    for inner in scope.get_children():
        yield from _names_of_the_module(inner)


def _json(block: Block) -> Iterator[str]:
    json.loads(block.code)
    return iter(())


def _yaml(block: Block) -> Iterator[str]:
    if block.options.get("as") == "values":
        yield from _values(yaml.safe_load(block.code))
        return
    for given in yaml.safe_load_all(block.code):
        if given.keys() <= {"metadata", "spec", "status"}:
            yield from _object(_joined(JOB, given))
        elif str(given.get("apiVersion", "")).startswith("moorage.dev/"):
            yield from _object(given)
        elif not {"apiVersion", "kind"} <= given.keys():
            yield f'no object and no part of a job; are these values, as="values"? {given}'


def _object(given: dict[str, Any]) -> Iterator[str]:
    """One of our kinds, as `moorage run` reads it; if it is for a cluster, as its server does."""
    spec = {key: value for key, value in given.items() if key != "status"}
    main = str(given["spec"].get("application", {}).get("mainFile", "local://"))
    if given["kind"] == "StatefulSparkJob":
        try:
            parse_manifest(yaml.safe_dump(spec).encode(), "page")
        except ManifestError as error:
            yield str(error)
    if main.startswith("local://"):
        judge = _judges()[given["kind"]]
        yield from judge.faults(given)
        yield from _lost(given, judge.stored(given), "")


def _lost(given: Any, stored: Any, path: str) -> Iterator[str]:
    """What the server would drop, since the definition does not know it."""
    for key in given if isinstance(given, dict) else ():
        if key not in stored:
            yield f"unknown field: {path}.{key}"
        else:
            yield from _lost(given[key], stored[key], f"{path}.{key}")


def _joined(base: Any, given: Any) -> Any:
    """The fragment within the whole; where both have a mapping, key by key."""
    if not (isinstance(base, dict) and isinstance(given, dict)):
        return given
    both = base.keys() & given.keys()
    return {**base, **given, **{key: _joined(base[key], given[key]) for key in both}}


def _values(given: Any) -> Iterator[str]:
    schema = json.loads((ROOT / "charts" / "moorage" / "values.schema.json").read_text())
    values = yaml.safe_load((ROOT / "charts" / "moorage" / "values.yaml").read_text())
    for error in jsonschema.Draft7Validator(schema).iter_errors(_joined(values, given)):
        yield error.message


@cache
def _judges() -> dict[str, Judge]:
    return {crd["spec"]["names"]["kind"]: Judge(crd) for crd in (job_crd(), snapshot_crd())}


def _shell(block: Block) -> Iterator[str]:
    """Syntax; commands, options, targets of make and files that are ours are there."""
    done = subprocess.run(
        ["bash", "-n"], input=block.code, text=True, capture_output=True, check=False
    )
    if done.returncode:
        yield done.stderr
        return
    for line in re.split(r"\n|\||;|&&|\$\(", block.code.replace("\\\n", " ")):
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # a text over several lines, which is no command of ours
            continue
        while words and (words[0] in {"do", "then", "exec"} or "=" in words[0]):
            words = words[1:]
        if "--" in words:  # kubectl exec ... -- moorage ...
            yield from _command(words[words.index("--") + 1 :])
            words = words[: words.index("--")]
        yield from _command(words)


def _command(words: list[str]) -> Iterator[str]:
    match [Path(words[0]).name, *words[1:]] if words else []:
        case ["moorage", *rest]:
            yield from _options("moorage", typer.main.get_command(app), rest)
        case ["kubectl", "moorage", *rest]:
            yield from _options("kubectl moorage", typer.main.get_command(plugin), rest)
        case ["make", *rest]:
            made = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            for target in (word for word in rest if "=" not in word and word[0] != "-"):
                if target not in made:
                    yield f"make has no target: {target}"
        case ["kubectl" | "docker" | "python" | "helm", *rest]:
            for word in rest:
                if (
                    word.startswith(("examples/", "charts/", "crds/"))
                    and not (ROOT / word).exists()
                ):
                    yield f"there is no such file: {word}"
        case _:
            return


def _options(told: str, command: Any, words: list[str]) -> Iterator[str]:
    """Words after a command: those of a group name another one, options must be known."""
    known = {"--help"}.union(*(one.opts + one.secondary_opts for one in command.params))
    while hasattr(command, "commands"):
        found = next((word for word in words if word in command.commands), None)
        if found is None:
            if any(not word.startswith("-") for word in words):
                yield f"{told} has no such command: {words}"
            break
        words = [word for word in words if word != found]
        command, told = command.commands[found], f"{told} {found}"
        known.update(*(one.opts + one.secondary_opts for one in command.params))
    for option in (word.partition("=")[0] for word in words):
        if option.startswith("--") and option not in known:
            yield f"{told} has no option: {option}"


def _text(block: Block) -> Iterator[str]:
    """What is no code; where it says how a command is called, its options are there."""
    for line in block.code.splitlines():
        for use in re.split(r" {2,}#?", line.removeprefix("$ ")):
            yield from _command(re.sub(r"[][|]", " ", use).split())


JUDGES = {"python": _python, "json": _json, "yaml": _yaml, "sh": _shell, "text": _text}
