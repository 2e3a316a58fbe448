"""The job on Moorage, run as `moorage run` would run it.

Checkpoints go to a `file://` store throughout, output through the exactly-once file sink. A batch
is what lies between two committed epochs on the wall clock: Spark's trigger, the epoch, checkpoints
that hold it up, reports.
"""

import time
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.engines.meter import Meter
from benchmarks.engines.outcome import Outcome
from benchmarks.params import BY_COLUMN, WITH_CHANGELOG
from benchmarks.request import Request
from benchmarks.window import Batch
from moorage.driver.runner import run_job
from moorage.driver.types import JobProgress, RunOptions
from moorage_api import load_manifest

__all__ = ["run"]

_JOBS = Path(__file__).parents[1] / "jobs"

_MANIFEST = """\
apiVersion: moorage.dev/v1alpha1
kind: StatefulSparkJob
metadata: {{name: bench}}
spec:
  application:
    mainFile: {main_file}
    args: ["{source}", "{target}"]
  bounded: true
  scaling: {{parallelism: {parallelism}}}
  state: {{checkpointDir: "file://./checkpoints", changelog: {changelog}}}
  checkpoint: {{interval: {interval}s, minPause: 1s}}
  driver: {{memory: 2Gi}}
"""


def run(request: Request) -> Outcome:
    """Run the job until the window is full, then stop it: it takes a last checkpoint."""
    work, output = request.work, request.work / "output"
    manifest = work / "job.yaml"
    name = "count_sum_batch.py" if request.engine == BY_COLUMN else "count_sum.py"
    manifest.write_text(
        _MANIFEST.format(
            main_file=f"local://{_JOBS / name}",
            source=request.source,
            target=output,
            parallelism=request.params.parallelism,
            interval=request.params.checkpoint_seconds,
            changelog=str(request.engine == WITH_CHANGELOG).lower(),
        )
    )
    options = RunOptions(local_dir=work / "local", cores=request.params.parallelism)
    watcher = _Watcher(Meter(request), options)
    result = run_job(load_manifest(manifest), work, options, watcher.report)
    meter = watcher.meter
    if not watcher.checkpoints:
        raise RuntimeError("no checkpoint was completed while it was measured: checkpoints are on")
    return Outcome(
        steady=meter.steady,
        cpu_seconds=meter.cpu_seconds,
        batches=result.epoch,
        answer=pq.read_table(output).to_pandas(),
        is_running=True,
        rows=result.rows_total,
        checkpoints=watcher.checkpoints,
    )


class _Watcher:
    """Listens to the run: measures epochs, stops it when there are enough."""

    def __init__(self, meter: Meter, options: RunOptions) -> None:
        self.meter = meter
        self.checkpoints = 0
        self._last_checkpoint = 0
        self._options = options
        self._epoch = 0
        self._rows = 0
        self._since = time.monotonic()

    def report(self, progress: JobProgress) -> None:
        """Called by the driver, in turn, at every epoch and whenever something else changes.

        Raises:
            RuntimeError: the run goes back to a checkpoint; such a run cannot be measured.
        """
        if progress.phase == "rewinding":
            raise RuntimeError(f"the job was rewound while it was measured: {progress.message}")
        if progress.epoch == self._epoch:
            self._between_epochs(progress)
            return
        now = time.monotonic()
        self.meter.batch(Batch(progress.rows_total - self._rows, now - self._since))
        self._since, self._rows, self._epoch = now, progress.rows_total, progress.epoch
        if self.meter.full:
            self._options.stop.set()

    def _between_epochs(self, progress: JobProgress) -> None:
        if self._epoch == 0:
            self._since = time.monotonic()
        last = progress.last_checkpoint
        if last is not None and last.checkpoint_id != self._last_checkpoint:
            self._last_checkpoint = last.checkpoint_id
            self.checkpoints += self.meter.measuring
