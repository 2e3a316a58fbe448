"""`make demo`: a stateful job on real data is killed in mid-stream, and its answer is right.

The steps: lay out the departures of 2013 as a stream; run the job; kill its process group with
SIGKILL about half way; run it again, which goes on from the latest checkpoint; compare everything
it has published with what pandas computes from the whole year at once. The exit status is 0 when
nothing differs, 1 when something does or went wrong, 130 after Ctrl-C.
"""

import argparse
import contextlib
import math
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import oracle
import pandas as pd
import prepare
import report
from process import END_SIGNALS, JobFailed, JobProcess, Line, last_checkpoint, uninterrupted
from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
_MAX_WAIT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Workplace:
    """A copy of the job in a directory of its own, where its relative paths lead.

    Attributes:
        root: the directory; everything that the demo writes is in it.
        manifest: the job's manifest.
        departures: the stream.
        entries: the job's output.
        checkpoints: the job's checkpoint directory.
        scratch: temporary files of the job.
    """

    root: Path
    manifest: Path
    departures: Path
    entries: Path
    checkpoints: Path
    scratch: Path

    @classmethod
    def set_up(cls, root: Path) -> "Workplace":
        """Copy the job to `root`."""
        for name in ("job.py", "job.yaml"):
            shutil.copy(HERE / name, root)
        (root / "scratch").mkdir()
        names = ("job.yaml", "departures", "entries", "checkpoints", "scratch")
        return cls(root, *(root / name for name in names))


@contextlib.contextmanager
def workplace(*, keep: bool) -> Iterator[Workplace]:
    """Set up a workplace, and remove it in the end unless it is to be kept."""
    root = Path(tempfile.mkdtemp(prefix="moorage-demo-"))
    try:
        yield Workplace.set_up(root)
    finally:
        if not keep:
            with uninterrupted():
                shutil.rmtree(root)


class Demo:
    """The steps of the demo, in the order in which they are called.

    Args:
        fraction: how much of the stream is done, at least, when the job is killed.
        seed: decides how long after that the kill may come, at most a second.
    """

    def __init__(self, place: Workplace, console: Console, fraction: float, seed: int) -> None:
        self._place = place
        self._console = console
        self._fraction = fraction
        self._wait = random.Random(seed).uniform(0, _MAX_WAIT_SECONDS)  # noqa: S311 - no secret

    def lay_out_the_stream(self) -> tuple[pd.DataFrame, report.Step]:
        """Write the departures; returns them as a table, too."""
        self._console.rule("1. Real flights, laid out as a stream", align="left")
        started = time.monotonic()
        table = prepare.departures(prepare.load_flights())
        rows = prepare.write_days(table, self._place.departures)
        self._console.print(
            f"{sum(rows):,} departures of {table.tailnum.nunique():,} aircraft out of New York in "
            f"2013, in {len(rows)} files, one for each day"
        )
        return table, report.Step("stream laid out", sum(rows), time.monotonic() - started)

    def run_and_kill(self) -> report.Step:
        """Run the job, and kill it when the stream is far enough and work would be lost."""
        self._console.rule("2. moorage run job.yaml, and kill -9 in mid-stream", align="left")
        watch = _Watch()
        not_before = math.inf
        with JobProcess(self._place.manifest, self._place.scratch) as job:
            for line in self._shown(job):
                watch.see(line)
                if line.percent >= 100 * self._fraction:
                    not_before = min(not_before, time.monotonic() + self._wait)
                if time.monotonic() >= not_before and self._would_lose_work(line):
                    job.kill()
                    break
            else:
                job.check()
                raise JobFailed(
                    "the job came to its end before it could be killed; the stream is too short "
                    "for this machine: try a smaller --kill-after-fraction"
                )
        self._console.print("[bold red]killed[/] the job's process group with SIGKILL")
        return watch.step("first run, killed", first_epoch=1)

    def look_at_what_is_left(self) -> report.Left:
        """Read from disk what the killed job has left."""
        self._console.rule("3. What is left", align="left")
        checkpoint = last_checkpoint(self._place.checkpoints)
        if checkpoint is None:
            raise JobFailed("no checkpoint is left, although one was there before the kill")
        left = report.Left(
            checkpoint_id=checkpoint.checkpoint_id,
            epoch=checkpoint.epoch,
            published=len(self.published()),
            staged=sum(1 for _ in (self._place.entries / "_staging").rglob("*.parquet")),
        )
        self._console.print(
            f"checkpoint {left.checkpoint_id}, taken after epoch {left.epoch}\n"
            f"{left.published:,} published entries, all covered by a checkpoint\n"
            f"{left.staged} staged files of later epochs, which nobody will ever see"
        )
        return left

    def run_again(self, left: report.Left) -> report.Step:
        """Run the job to its end; it must begin from the checkpoint that is left."""
        self._console.rule("4. moorage run job.yaml, once more", align="left")
        watch = _Watch()
        with JobProcess(self._place.manifest, self._place.scratch) as job:
            for line in self._shown(job):
                watch.see(line)
            job.check()
        latest = f"chk-{left.checkpoint_id}"
        if watch.restored_from != latest:
            raise JobFailed(
                f"the second run did not go on from the latest checkpoint: "
                f"restored_from={watch.restored_from} latest={latest}"
            )
        return watch.step("second run, to the end", first_epoch=left.epoch + 1)

    def check(self, departures: pd.DataFrame) -> tuple[oracle.Comparison, report.Step]:
        """Compare all that was published with what pandas makes of the departures."""
        self._console.rule("5. The same, computed by pandas", align="left")
        started = time.monotonic()
        expected = oracle.logbooks(departures)
        comparison = oracle.compare(self.published(), expected)
        return comparison, report.Step("checked", len(expected), time.monotonic() - started)

    def published(self) -> pd.DataFrame:
        """All published entries, read as a plain Parquet folder; an empty table without any."""
        if not any(self._place.entries.glob("*.parquet")):
            return pd.DataFrame(columns=oracle.COLUMNS)
        return pd.read_parquet(self._place.entries)

    def _would_lose_work(self, line: Line) -> bool:
        """Whether a checkpoint is complete, and epochs have been committed since."""
        checkpoint = last_checkpoint(self._place.checkpoints)
        return checkpoint is not None and line.epoch > checkpoint.epoch

    def _shown(self, job: JobProcess) -> Iterator[Line]:
        """The job's lines, each shown: progress in one place on a terminal, else line by line."""
        if not self._console.is_terminal:
            for line in job.lines():
                self._console.print(f"  {line.text}", style="dim", markup=False, soft_wrap=True)
                yield line
            return
        with self._console.status("starting") as status:
            for line in job.lines():
                if line.phase:
                    status.update(Text(line.text, no_wrap=True, overflow="ellipsis"))
                else:
                    self._console.print(f"  {line.text}", style="dim", markup=False)
                yield line


class _Watch:
    """What the lines of one run tell: how far it came, how fast, and from where."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._streaming: tuple[float, int] | None = None
        self._last = Line("")
        self._seen_at = self._started
        self.restored_from: str | None = None

    def see(self, line: Line) -> None:
        """Take note of a line that has just come."""
        self.restored_from = line.restored_from or self.restored_from
        if line.rows == 0:
            return
        if line.rows > self._last.rows:
            self._seen_at = time.monotonic()
        self._streaming = self._streaming or (self._seen_at, line.rows)
        self._last = line

    def step(self, name: str, first_epoch: int) -> report.Step:
        """The run as a step; its rate leaves out the start of Spark and the first epochs."""
        now = time.monotonic()
        rate = 0.0
        if self._streaming is not None and self._seen_at > self._streaming[0]:
            since, rows = self._streaming
            rate = (self._last.rows - rows) / (self._seen_at - since)
        return report.Step(
            name, self._last.rows, now - self._started, rate, first_epoch, self._last.epoch
        )


def run(place: Workplace, console: Console, fraction: float, seed: int) -> bool:
    """Take all steps and print the outcome; returns whether the answer is right.

    Raises:
        JobFailed: a step did not come about.
    """
    demo = Demo(place, console, fraction, seed)
    departures, laid_out = demo.lay_out_the_stream()
    first = demo.run_and_kill()
    left = demo.look_at_what_is_left()
    second = demo.run_again(left)
    comparison, checked = demo.check(departures)
    console.print(report.steps(laid_out, first, left, second, checked))
    console.print(report.samples(oracle.latest(demo.published())))
    console.print(report.differences(comparison))
    console.print(report.verdict(comparison))
    return comparison.equal


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; returns the exit status."""
    options = _options(arguments)
    console = Console(highlight=False)
    for number in END_SIGNALS:
        signal.signal(number, _end)
    try:
        with workplace(keep=options.keep) as place:
            if options.keep:
                console.print(f"everything is kept in {place.root}")
            right = run(place, console, options.kill_after_fraction, options.seed)
            console.print(f"[dim]--seed {options.seed} waits as long before the kill[/]")
    except JobFailed as error:
        console.print(f"[bold red]the demo failed:[/] {error}", soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted; nothing is left running")
        return 130
    return 0 if right else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make demo", description="Kill a stateful job in mid-stream; compare its answer."
    )
    parser.add_argument(
        "--kill-after-fraction",
        type=_fraction,
        default=0.5,
        metavar="F",
        help="kill when this much of the stream is done (0 to 0.9, default 0.5)",
    )
    seed = random.randrange(10_000)  # noqa: S311 - no secret
    parser.add_argument("--seed", type=int, default=seed, help="of the moment of the kill")
    parser.add_argument("--keep", action="store_true", help="keep the directory with everything")
    return parser.parse_args(arguments)


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 0.9:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 0.9")
    return value


def _end(_number: int, _frame: object) -> None:
    """Let SIGTERM and a closed terminal clean up, as Ctrl-C does."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
