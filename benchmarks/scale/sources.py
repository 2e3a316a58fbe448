"""A checkpoint's part of a file source: what it costs against the input files there ever were.

The driver's own code: what is captured of Spark's files, what of it goes into objects, and the
root. Stood in for is Spark, which writes its log of files; every tenth entry is all of it anew.
"""

import datetime
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moorage_testing.manifests import checkpoint_fields

from benchmarks.scale.curve import Curve
from moorage.engine.sparklog import SparkLog, capture
from moorage_state.snapshots import (
    CheckpointStore,
    Cutter,
    LogWriter,
    Owner,
    Root,
    store_texts,
    with_texts,
)
from moorage_state.stores import LocalStore

__all__ = ["measure"]

_FILES_OF_A_BATCH = 10
_BATCHES_OF_A_CHECKPOINT = 10
_CHECKPOINTS = 30
_NOW = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
_INPUTS = ["files"]


class _Source:
    """A query's checkpoint location, with one file source that has seen so many files."""

    def __init__(self, folder: Path, files: int) -> None:
        self.location = folder / "spark"
        self._log = self.location / "sources" / "0"
        self._log.mkdir(parents=True)
        (self.location / "metadata").write_text('{"id":"q-1"}')
        (self.location / "offsets").mkdir()
        self._random = random.Random(1)  # noqa: S311  names of files
        self.batch = 9
        self._whole = self._log / "9.compact"
        with self._whole.open("w") as whole:
            whole.write("v1")
            whole.writelines(self._lines(files))
        for batch in (8, 9):
            self._offset(batch)

    def go_on(self) -> None:
        """As many batches as there are between two checkpoints."""
        lines: list[str] = []
        for _ in range(_BATCHES_OF_A_CHECKPOINT):
            self.batch += 1
            some = list(self._lines(_FILES_OF_A_BATCH))
            lines += some
            if self.batch % 10 == 9:
                before, self._whole = self._whole, self._log / f"{self.batch}.compact"
                shutil.copyfile(before, self._whole)
                with self._whole.open("a") as whole:
                    whole.writelines(lines)
                before.unlink()
            else:
                (self._log / str(self.batch)).write_text("".join(["v1", *some]))
            self._offset(self.batch)

    def _offset(self, batch: int) -> None:
        head = '{"batchWatermarkMs":0,"batchTimestampMs":5,"conf":{}}'
        text = f'v1\n{head}\n{{"logOffset":{batch}}}'
        (self.location / "offsets" / str(batch)).write_text(text)

    def _lines(self, number: int) -> Iterator[str]:
        for _ in range(number):
            name = f"{self._random.getrandbits(128):032x}"
            path = f"s3a://bucket/landing/2026/01/02/part-00000-{name}.json"
            yield f'\n{{"path":"{path}","timestamp":1767322800000,"batchId":{self.batch}}}'


def _checkpoints(folder: Path, files: int) -> dict[str, float]:
    source, cutter = _Source(folder, files), Cutter()
    (folder / "store").mkdir()
    store = LocalStore(folder / "store")
    checkpoints = CheckpointStore(store)
    writer = LogWriter.claim(store, Owner("c", "n", "scale", "u"), "benchmark")
    base: Root | None = None
    cpu: list[float] = []
    stored: list[int] = []
    for number in range(1, _CHECKPOINTS + 2):
        began = time.process_time()
        plain = capture(source.location, source.batch, _INPUTS, cutter).to_json()
        texts = store_texts(store, cutter.taken(), base, f"{number:032x}")
        fields: dict[str, Any] = checkpoint_fields(writer.lineage, number)
        fields |= {"fence": writer.fence, "source": plain, "source_texts": texts.texts}
        base = Root(**{**fields, "base_id": number - 1})
        entry = checkpoints.complete(writer, base, _NOW)
        cpu.append(1000 * (time.process_time() - began))
        manifest = store.head(entry.manifest_key)
        assert manifest is not None
        stored.append(texts.bytes + manifest.size)
        source.go_on()
    began = time.process_time()
    SparkLog.from_json(with_texts(store, base or Root(**fields)))
    restore = 1000 * (time.process_time() - began)
    # The first one is of all that there was.
    return {
        "ms of CPU": statistics.median(cpu[1:]),
        "KB written": statistics.mean(stored[1:]) / 1000,
        "ms of CPU for a restore": restore,
    }


def measure(*, quick: bool) -> list[Curve]:
    """Curves over the number of input files that were read before."""
    sizes = (1_000, 10_000) if quick else (1_000, 10_000, 100_000, 1_000_000)
    costs = []
    for files in sizes:
        with tempfile.TemporaryDirectory(prefix="moorage-scale-") as folder:
            costs.append((files, _checkpoints(Path(folder), files)))
    # Where little is written so far the whole log stands in the manifest.
    asked = {"ms of CPU": 0.2, "KB written": 0.3}
    return [
        Curve(
            "sources",
            "a restore" if unit.endswith("restore") else "a checkpoint",
            unit.removesuffix(" for a restore"),
            "input files before",
            tuple((float(size), cost[unit]) for size, cost in costs),
            asked.get(unit),
        )
        for unit in costs[0][1]
    ]
