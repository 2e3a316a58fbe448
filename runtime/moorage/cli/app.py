"""The commands of `moorage`: what they are called, what they take, what they print.

Progress, warnings and errors go to standard error, results to standard output.
"""

import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal, NoReturn

import typer
from typer.core import TyperGroup

import moorage
from moorage.cli.checks import checked_job, restore_url, undecided_options
from moorage.cli.completion import RestorePoint, restore_points
from moorage.cli.doctor import doctor
from moorage.cli.exit_codes import ExitCode, exit_code
from moorage.cli.history import history
from moorage.cli.init import init
from moorage.cli.output import (
    Output,
    SavepointFound,
    print_document,
    print_found,
    print_savepoint,
)
from moorage.cli.page import PAGE_PORT, Runner, redactor_of, report, ui, watched
from moorage.cli.preflight import preflight
from moorage.cli.progress import Display, open_display
from moorage.cli.render import render
from moorage.cli.restore import goes_back_to
from moorage.cli.savepoint import ordered, taken
from moorage.cli.snapshots import snapshots
from moorage.cli.state import state
from moorage.cli.status import status
from moorage.cli.store import store
from moorage.cli.uninstall import uninstall
from moorage.driver.types import JobProgress, RunOptions, RunOutcome, RunResult
from moorage.redaction import Redactor, redact
from moorage.texts import duration_text, size_text
from moorage_api import (
    ManifestError,
    StatefulSparkJob,
    load_manifest,
    local_run_report,
)
from moorage_state.errors import MoorageError

# SIGHUP: the terminal was closed; SIGTERM: a shutdown, `kill`, `docker stop`.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OUTPUTS = (1, 2)
_POLL_SECONDS = 0.2
_SAME_SECONDS = 1.0
"""Two signals so close are one: `timeout` signals us and then our group, a shell and the kernel
both tell of a closed terminal, and service managers send SIGTERM and SIGHUP together."""

_STOP = (
    "Ctrl-C in its terminal, or moorage savepoint JOB.yaml NAME --stop (on a cluster: kubectl "
    "moorage suspend JOB)"
)
_AGAIN = "the same command"
_SNAPSHOTS = "moorage history JOB.yaml (on a cluster: kubectl moorage history JOB)"
_OTHERWISE = {
    **dict.fromkeys(("checkpoints", "savepoints"), _SNAPSHOTS),
    **dict.fromkeys(("new", "create"), "moorage init DIR"),
    **dict.fromkeys(("restart", "resume", "start", "submit"), "moorage run JOB.yaml"),
    **dict.fromkeys(("jobs", "list", "ls", "ps"), "moorage status"),
    **dict.fromkeys(("cancel", "stop", "suspend"), _STOP),
    **dict.fromkeys(
        ("apply", "deploy"),
        "kubectl apply -f JOB.yaml (moorage validate JOB.yaml --for cluster says what it lacks)",
    ),
    "help": "moorage --help",
    **dict.fromkeys(("log", "logs"), "moorage run prints them (on a cluster: kubectl logs POD)"),
    "revisions": "on a cluster: kubectl moorage revisions JOB",
    "test": "python -m pytest, which needs no Spark: docs/testing.md",
}
"""Names that people bring along, and what does that here."""


class _Commands(TyperGroup):
    """The commands, and what to say of names that people bring along."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in _OTHERWISE:
            ctx.fail(f"No such command {args[0]!r}: {_OTHERWISE[args[0]]}")
        return super().resolve_command(ctx, args)


# Locals in a traceback could be credentials, so typer's own are switched off.
app = typer.Typer(
    name="moorage",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
JobFile = Annotated[
    Path,
    typer.Argument(metavar="JOB.yaml", help="A StatefulSparkJob manifest.", show_default=False),
]

Plain = Annotated[bool, typer.Option("--plain", help="Lines of progress, even on a terminal.")]
LocalDir = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where working databases go.", file_okay=False)
]
Cores = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="How many cores Spark may use.")
]
PagePort = Annotated[
    int,
    typer.Option(
        metavar="PORT", min=1, max=65535, help="Where the page is: http://localhost:PORT."
    ),
]
NoPage = Annotated[bool, typer.Option("--no-page", help="Serve no page.")]


def run_session(
    runner: Runner, job: StatefulSparkJob, job_dir: Path, options: RunOptions, display: Display
) -> RunResult:
    """Run `job` and return how it ended; must be called from the main thread.

    The first signal sets `options.stop`. A second one, a second or more later, raises
    KeyboardInterrupt here while the runner still works: the caller must end the process.
    """
    box: list[RunResult | BaseException] = []

    def work() -> None:
        try:
            box.append(runner(job, job_dir, options, display))
        except BaseException as error:  # noqa: BLE001 - carried to the main thread and raised there
            box.append(error)

    # So the main thread is free to take a signal at once, and Spark, which installs its own Ctrl-C
    # handler when it is started from the main thread, cannot.
    thread = threading.Thread(target=work, name="moorage-driver", daemon=True)
    with display, _signals_stop(options.stop, display):
        thread.start()
        while thread.is_alive():
            thread.join(_POLL_SECONDS)
    outcome = box[0]
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _let_go(terminals: list[int]) -> None:
    """Have what goes to a terminal that was closed go nowhere: it must not fail the job's end."""
    for number in terminals:
        if not os.isatty(number):
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, number)
            os.close(nowhere)


@contextmanager
def _signals_stop(stop: threading.Event, display: Display) -> Iterator[None]:
    first: float | None = None
    terminals = [number for number in _OUTPUTS if os.isatty(number)]

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        if first is not None:
            if now - first < _SAME_SECONDS:
                return
            # The way out is short and tells how the job ended: nothing that comes on it helps.
            for each in before:
                signal.signal(each, signal.SIG_IGN)
            before.clear()
            raise KeyboardInterrupt
        first = now
        stop.set()
        _let_go(terminals)
        again = "press Ctrl-C again" if number == signal.SIGINT else "send a second signal"
        name = signal.Signals(number).name
        doing = "taking a last checkpoint"
        if display.progress.phase == "finished":
            doing = "the job has finished, and what it does not keep is being deleted"
        display.say(f"{name}: {doing}; {again} to quit without it")

    def later(number: int, _frame: FrameType | None) -> None:
        if first is None or time.monotonic() - first >= _SAME_SECONDS:
            signal.signal(number, before[signal.Signals(number)])
            signal.raise_signal(number)

    # One that was ignored already stays so: that is what `nohup` asks for.
    taken = [n for n in _SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in taken}
    try:
        yield
    finally:
        for number, handler in before.items():
            # A job may stop before the second of a pair comes, and has yet to tell how it did.
            signal.signal(number, handler if first is None else later)


app.add_typer(snapshots, name="snapshots")
app.add_typer(state, name="state")
app.add_typer(store, name="store")
app.command()(init)
app.command()(preflight)
app.command()(doctor)
app.command()(report)
app.command()(ui)
app.command()(status)
app.command()(history)
app.command()(render)
app.command()(uninstall)


def _show_version(asked: bool) -> None:  # noqa: FBT001 - typer calls it so
    if asked:
        typer.echo(f"moorage {moorage.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Runs stateful PySpark streaming jobs that come back with their state."""


@app.command()
def run(
    manifest: JobFile,
    *,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Go on although another run holds the directory.")
    ] = False,
    restore: RestorePoint = None,
    plain: Plain = False,
    local_dir: LocalDir = None,
    cores: Cores = None,
    page: PagePort = PAGE_PORT,
    no_page: NoPage = False,
    output: Output = "table",
) -> None:
    """Run a job on this machine, without Kubernetes; Ctrl-C takes a last checkpoint."""
    job = checked_job(manifest, "local")
    options = _options_of(take_over, restore_url(restore), local_dir, cores)
    _run(job, manifest, options, None if no_page else page, output, plain=plain)


@app.command()
def restore(
    manifest: JobFile,
    snapshot: Annotated[
        str,
        typer.Argument(
            metavar="chk-N|NAME|PATH",
            help="See moorage history JOB.yaml.",
            show_default=False,
            autocompletion=restore_points,
        ),
    ],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=1, help="How long another run of it has to end."),
    ] = 1800.0,
    plain: Plain = False,
    local_dir: LocalDir = None,
    cores: Cores = None,
    page: PagePort = PAGE_PORT,
    no_page: NoPage = False,
    output: Output = "table",
) -> None:
    """Go back to a checkpoint or savepoint, and run the job from there; another run of it ends."""
    job = checked_job(manifest, "local")
    chosen = goes_back_to(manifest, job, snapshot, ask=not yes, output=output, timeout=timeout)
    options = _options_of(take_over=False, restore=chosen, local_dir=local_dir, cores=cores)
    _run(job, manifest, options, None if no_page else page, output, plain=plain)


def _options_of(
    take_over: bool,  # noqa: FBT001 - as the command has it
    restore: str | None,
    local_dir: Path | None,
    cores: int | None,
) -> RunOptions:
    return RunOptions(
        take_over=take_over,
        restore=restore,
        local_dir=local_dir.absolute() if local_dir else None,
        cores=cores,
        control=True,
    )


def _run(
    job: StatefulSparkJob,
    manifest: Path,
    options: RunOptions,
    page: int | None,
    output: Output,
    *,
    plain: bool,
) -> None:
    if ignored := local_run_report(job).ignored:
        _complain(f"ignored on this machine: {', '.join(ignored)}")
    clean = redactor_of(job)
    display = open_display(sys.stderr, clean, plain=plain)
    began = time.monotonic()
    try:
        with watched(_driver(), job, page, _complain) as runner:
            result = run_session(runner, job, manifest.absolute().parent, options, display)
    except KeyboardInterrupt:
        _quit_now(job, display.progress, time.monotonic() - began, output)
    except Exception as error:
        raise typer.Exit(_ended_by(error, clean)) from error
    # The same command would go back once more.
    again = _AGAIN if options.restore is None else f"moorage run {manifest}"
    _tell(job, result, output, again)


@app.command()
def savepoint(
    manifest: JobFile,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Its directory's name below state.savepointDir.")
    ],
    *,
    native: Annotated[
        bool, typer.Option("--native", help="The backend's own files; faster, not for reading.")
    ] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="End the job with it, after publishing all output.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait for it (the default), or order it alone.")
    ] = True,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="How long to wait for it.")
    ] = 1800.0,
    output: Output = "table",
) -> None:
    """Take a savepoint of a job that `moorage run` runs on this machine; prints its address."""
    from moorage.driver.control import control_path
    from moorage.driver.requests import SavepointRequest, check_name
    from moorage.driver.settings import JobSettings

    job = load_manifest(manifest)
    settings = JobSettings.of(job, manifest.absolute().parent)
    check_name(name)
    settings.savepoint_url(name)
    request = SavepointRequest(name, "native" if native else "canonical", stop)
    door = control_path(settings.checkpoint_dir)
    view = taken(door, request, timeout) if wait else ordered(door, request)
    if view is None:
        _complain(f"ordered: savepoint {name}; look for it: moorage status {manifest}")
        found = SavepointFound(job.name, done=False, name=name, url=settings.savepoint_url(name))
        print_savepoint(found, output)
        return
    found = SavepointFound(
        job.name,
        done=True,
        name=view.name,
        url=view.url,
        checkpoint_id=view.checkpoint_id,
        epoch=view.epoch,
        bytes_total=view.bytes_total,
        completed_at=view.completed_at,
    )
    print_savepoint(found, output)
    _complain(
        f"savepoint {view.name}: as of the end of epoch {view.epoch}, "
        f"{size_text(view.bytes_total)}, {duration_text(view.duration_seconds)}"
    )


@app.command()
def rescale(
    manifest: JobFile,
    parallelism: Annotated[
        int, typer.Argument(metavar="PARALLELISM", min=1, help="How many subtasks it is to have.")
    ],
    *,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="How long to wait for it.")
    ] = 1800.0,
    output: Output = "table",
) -> None:
    """Give a job that `moorage run` runs on this machine another number of subtasks; it runs on."""
    from moorage.driver.control import ask_to_rescale, control_path
    from moorage.driver.settings import JobSettings

    job = load_manifest(manifest)
    settings = JobSettings.of(job, manifest.absolute().parent)
    began = time.monotonic()
    ask_to_rescale(control_path(settings.checkpoint_dir), parallelism, timeout)
    seconds = round(time.monotonic() - began, 1)
    found = {"job": job.name, "parallelism": parallelism, "seconds": seconds}
    told = f"{job.name} has {parallelism} subtasks, after {seconds:.1f} s"
    print_found("rescale", found, output, lambda _: typer.echo(told))


@app.command()
def validate(
    manifest: JobFile,
    *,
    target: Annotated[
        Literal["local", "cluster"], typer.Option("--for", help="Where it is to run.")
    ] = "local",
    output: Output = "table",
) -> None:
    """Check a manifest and print every problem in it; starts and changes nothing.

    What `moorage run` refuses before it starts is refused here, in the same words.
    """
    try:
        job = checked_job(manifest, target)
    except ManifestError as error:
        if output == "table":
            raise
        print_document("validate", {"valid": False, "problems": error.problems}, output)
        raise typer.Exit(exit_code(error)) from None
    keys = undecided_options(job) if target == "cluster" else []
    if output != "table":
        found = {"valid": True, "problems": (), "job": job.name, "undecided_options": keys}
        print_document("validate", found, output)
        return
    scaling = job.spec.scaling
    typer.echo(
        f"{manifest} is valid: job {job.name}, parallelism {scaling.parallelism} "
        f"of {scaling.max_parallelism} key groups"
    )
    if keys:
        _complain(
            f"no backend of Moorage has these settings: keys={','.join(keys)}; the operator "
            f"refuses them unless the cluster's default (jobs.stateBackend) is a backend that "
            f"has: name it in spec.state.backend, or correct them"
        )


@app.command()
def version(*, output: Output = "table") -> None:
    """Print the versions of moorage and of what it runs on."""
    versions = {
        "moorage": moorage.__version__,
        "python": platform.python_version(),
        **{package: _version(package) for package in ("pyspark", "rocksdict")},
    }
    if output != "table":
        print_document("version", versions, output)
        return
    for name, one in versions.items():
        typer.echo(f"{name} {one}")


def run_app() -> int:
    """Run the command line and return its exit status; every error has been printed."""
    try:
        app(standalone_mode=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else ExitCode.INTERNAL
    except Exception as error:  # noqa: BLE001 - the last place that can turn it into a status
        return _ended_by(error, Redactor(os.environ))
    return ExitCode.OK


def _ended_by(error: Exception, clean: Redactor) -> int:
    """Say what ended a command; its exit status."""
    text = str(error)
    if not isinstance(error, (ManifestError, MoorageError)):
        lines = "".join(traceback.format_exception(error)).rstrip()
        text = f"internal error; please report it with these lines\nmoorage: {lines}"
    typer.echo(clean(f"moorage: {text}"), err=True)
    return exit_code(error)


def _quit_now(job: StatefulSparkJob, at: JobProgress, seconds: float, output: Output) -> NoReturn:
    """End at once; of a job that has finished nothing is lost."""
    status = ExitCode.INTERRUPTED
    if at.phase == "finished":
        status, told = ExitCode.OK, "the job has finished, its next start deletes what is left to"
        finished = RunResult(
            RunOutcome.FINISHED, at.epoch, at.rows_total, seconds, at.last_checkpoint, odd=at.odd
        )
        _tell(job, finished, output)
    else:
        told = "no last checkpoint, the next run goes on from the one before"
    _complain(f"interrupted; {told}")
    sys.stdout.flush()
    # The driver's thread still works, and waiting for it is what was refused. The processes it
    # started (the JVM, state servers) end when they lose their parent.
    os._exit(status)


def _driver() -> Runner:
    try:
        # Here, and not above: all other commands answer at once, and without Spark and RocksDB.
        from moorage.driver import run_job
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("moorage"):
            raise
        _complain(f"{error.name} is not installed; run: pip install 'moorage[run]'")
        raise typer.Exit(ExitCode.INTERNAL) from error
    return run_job


def _tell(job: StatefulSparkJob, result: RunResult, output: Output, again: str = _AGAIN) -> None:
    """Print how a run ended; `again` is the command that goes on from there."""
    found = {"job": job.name, "run": result}
    print_found("run", found, output, lambda _: typer.echo(_summary(job, result, again)))


def _summary(job: StatefulSparkJob, result: RunResult, command: str = _AGAIN) -> str:
    checkpoint = result.last_checkpoint
    if result.already:
        again = "to run it again name another checkpointDir"
        done = f"{job.name} has finished already,"
        left = "nothing is left to do of what it was to read"
        if result.restored_from is None:
            return (
                f"{done} at epoch {result.epoch}, and none of its checkpoints is kept: {left}; "
                f"{again}"
            )
        return (
            f"{done} with {result.restored_from} at epoch {result.epoch}: {left}; take out "
            f"spec.bounded to go on with input that came since; {again}, or go back with "
            f"--restore chk-<id>"
        )
    rows = result.odd.beside(result.rows_total)
    where = f"checkpoint {checkpoint.checkpoint_id}" if checkpoint else "no checkpoint"
    spent = f"{result.seconds:.1f} s"
    # Its checkpoint has rows of runs before it as well.
    within = f"in {spent}" if result.restored_from is None else f"in the {spent} of this run"
    text = (
        f"{job.name} {result.outcome.value}: {rows} {within}, "
        f"epoch {result.epoch}, {where} in {job.spec.state.checkpoint_dir}"
    )
    if result.outcome is RunOutcome.STOPPED:
        begins = f"begins from {result.restored_from} again" if result.restored_from else ""
        begins = begins or "begins with the start"
        text += f"; {command} " + ("goes on from there" if checkpoint else begins)
    return text


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _complain(text: str) -> None:
    typer.echo(redact(f"moorage: {text}", os.environ), err=True)
