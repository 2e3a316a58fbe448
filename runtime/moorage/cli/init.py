"""`moorage init`: the files of a new job, ready to run; what is there already is never touched."""

import re
import shlex
import string
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

import moorage
from moorage.api.misplaced import did_you_mean
from moorage.cli.output import Output, print_document, print_pairs
from moorage_state.errors import LocalDiskError, UserError

_SHORT_NAME = 40


@dataclass(frozen=True, slots=True)
class About:
    """What a template is for, the arguments of its job, and what its README says of trying it."""

    text: str
    args: str
    try_it: str
    tests: str = "Its tests run in milliseconds, without Spark and without Java:"


_OUTPUT = """Output appears with the first checkpoint: some ten seconds for Spark to start, and
five more, the `spec.checkpoint.interval` of `job.yaml`."""
_MORE = f"""It reads `in/1.json` and what comes into that folder later: write a file elsewhere,
and move it in when it is whole. {_OUTPUT}"""
_VISITS = """A visit is given when a click more than half an hour later has come, of any user: of
`in/1.json` two are, and the last one waits."""
_TWO = _MORE.replace("in/1.json", "{}/1.json` and `{}/1.json").replace(
    "that folder", "those folders"
)
_PAIRS = """The pairs of an hour come when both inputs have rows of after it, or the one that is
behind has brought none for ten seconds (`idle_after`): of what is there those of ten o'clock do,
and those of eleven wait. Bob has none, as his order is of another hour than his click."""
_UNPAID = """What is not paid goes to `out-unpaid`, once both inputs have rows of an hour later, or
the one that is behind has brought none for ten seconds (`idle_after`)."""
_KAFKA = f"""It needs `pip install 'moorage[kafka]'`, brokers and a topic: put them into
`spec.application.args` first. {_OUTPUT}"""

TEMPLATES: dict[str, About] = {
    "counting": About("Counts clicks of each user.", "in, out", _MORE),
    "sessions": About(
        "Joins clicks of each user into visits, by event time.", "in, out", f"{_MORE}\n{_VISITS}"
    ),
    "dedup": About("Lets the first of all events with one id pass.", "in, out", _MORE),
    "join": About(
        "Puts each user's clicks together with the orders of the same hour.",
        "clicks, orders, out",
        f"{_TWO.format('clicks', 'orders')}\n{_PAIRS}",
    ),
    "connect": About(
        "Puts orders together with their payments; says which are not paid in an hour.",
        "orders, payments, out",
        f"{_TWO.format('orders', 'payments')}\n{_UNPAID}",
    ),
    "kafka-to-parquet": About(
        "Writes a topic to Parquet files, each id once.",
        '"localhost:9092", events, out',
        _KAFKA,
        "Its tests need no brokers. That of the whole job starts Spark, in some five seconds:",
    ),
}


def _known(template: str) -> str:
    """Refuse a template that there is not, with the one that may be meant."""
    if template not in TEMPLATES:
        meant = did_you_mean(template, TEMPLATES)
        raise typer.BadParameter(
            f"no template {template!r}{meant}; there are {', '.join(TEMPLATES)}"
        )
    return template


def init(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where; it is made if it is not there.")
    ],
    *,
    template: Annotated[
        str,
        typer.Option(
            "--template",
            "-t",
            help="What to begin with.",
            metavar="|".join(TEMPLATES),
            callback=_known,
            autocompletion=lambda: list(TEMPLATES),
        ),
    ] = "counting",
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The job's name; DIR's if not given.")
    ] = None,
    output: Output = "table",
) -> None:
    """Write the files of a new job: code, manifest, README, Dockerfile, input to try it with."""
    chosen = name or job_name(directory)
    made = write(template, directory, chosen)
    if output != "table":
        fields = {"job": chosen, "template": template, "directory": str(directory)}
        print_document("init", {**fields, "files": list(map(str, made))}, output)
        return
    typer.echo(f"{TEMPLATES[template].text}\n")
    print_pairs({f"  {path.relative_to(directory)}": _WHAT.get(path.name, "") for path in made})
    typer.echo(f"\nnext: cd {shlex.quote(str(directory))} && moorage run job.yaml")


_WHAT = {
    "job.py": "what it does",
    "job.yaml": "how it runs, here and on a cluster",
    "test_job.py": "its tests",
    "README.md": "what to try",
    "Dockerfile": "its image",
}


def job_name(directory: Path) -> str:
    """A name for objects of Kubernetes, of a folder's.

    Raises UserError: none can be made of it.
    """
    name = re.sub(r"[^a-z0-9]+", "-", directory.absolute().name.lower()).strip("-")
    if not name or not name[0].isalpha():
        raise UserError(f"no name for a job can be made of this folder's: {directory}; use --name")
    return name[:_SHORT_NAME].rstrip("-")


def write(template: str, directory: Path, name: str) -> list[Path]:
    """Write a template's files, and return them.

    Raises:
        UserError: the name is none for a job, or one of the files is there already; then nothing
            was written.
        LocalDiskError: they cannot be written; none of them is left.
    """
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) or len(name) > _SHORT_NAME:
        raise UserError(
            f"not a name for a job: {name!r}; use lower-case letters, digits and dashes, a letter "
            f"first, {_SHORT_NAME} at most"
        )
    about = TEMPLATES[template]
    values = {
        "name": name,
        "about": about.text,
        "args": about.args,
        "try_it": about.try_it,
        "tests": about.tests,
        "version": moorage.__version__,
    }
    files: dict[Path, str] = {}
    root = resources.files("moorage.cli") / "templates"
    for path, source in _files_in(root / "common", directory):
        files[path] = string.Template(source.read_text(encoding="utf-8")).substitute(values)
    for path, source in _files_in(root / template, directory):
        files[path] = source.read_text(encoding="utf-8")
    with _disk_errors(directory):
        if there := [str(path) for path in files if path.exists()]:
            raise UserError(f"these are there already: {', '.join(there)}; name another folder")
        with _all_or_nothing(files):
            for path, text in files.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    return list(files)


@contextmanager
def _disk_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LocalDiskError(
            f"cannot write a new job: folder={directory} error={error.strerror or error}; nothing "
            f"of it is left; name a folder that can be made, or that is writable and has room"
        ) from error


@contextmanager
def _all_or_nothing(files: Collection[Path]) -> Iterator[None]:
    """Remove what was made of files, none of which was there, and of their folders."""
    above = {folder for path in files for folder in path.parents if not folder.exists()}
    try:
        yield
    except OSError:
        for path in files:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        for folder in sorted(above, reverse=True):  # what lies in another comes after it
            with suppress(OSError):
                folder.rmdir()
        raise


def _files_in(source: Traversable, target: Path) -> list[tuple[Path, Traversable]]:
    found = []
    for entry in sorted(source.iterdir(), key=lambda one: one.name):
        if entry.is_dir():
            found += _files_in(entry, target / entry.name)
        else:
            # So called that no tool takes them for files of ours.
            name = entry.name.removesuffix(".txt")
            found.append((target / (".gitignore" if name == "gitignore" else name), entry))
    return found
