"""Output files on an object store: uploaded once, made visible by a list that Spark reads.

Files lie below `_data/`; what is visible is in the list `_spark_metadata/`;
`_moorage_log/<lineage>/` says by checkpoint what was published. Going back takes files off the list
and going forward puts them on it again; they stay until no restore can ask for them.
"""

import functools
import json
import os
import tempfile
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from moorage.api.sinks import Committable, LiveOutput, SinkOrigin, SinkRestore, SinkRetire
from moorage.sinks.file_names import (
    BESIDE_SUFFIX,
    IF_MISSING,
    RUN_SUFFIX,
    Age,
    is_not_newer,
    lost,
    neighbours_in,
    newer_run,
    older_marks,
    origin_of,
    require_kind,
    run_age,
    taken_over,
)
from moorage.sinks.metadata_log import MetadataLog, Visible
from moorage.sinks.records import (
    Records,
    compaction,
    decode,
    encode,
    live_ids,
    record_name,
    recorded,
    sweep_is_due,
    together,
)
from moorage_state import failpoints
from moorage_state.errors import CorruptState, disk_errors
from moorage_state.stores import ObjectStore, delete_all, open_store

# A store has no rename: a file goes to its last name at once, and tools that know nothing of the
# list skip names with an underscore.
_DATA = "_data/"
_LOG = "_moorage_log/"
_SWEEP_EVERY = 16
"""Checkpoints between two listings of all files, at first: what losing attempts left costs space
only."""

_BLOCK_BYTES = 64 << 20
"""How large a part of a file Spark gives to one task at most; any number is right."""


def open_output(url: str) -> ObjectStore:
    """The store at `url`; a local directory is made."""
    return _open_cached(url) if url.startswith("s3:") else open_store(url, create=True)


@functools.cache
def _open_cached(url: str) -> ObjectStore:
    """Clients take long to make, and one serves all attempts of a worker process."""
    return open_store(url, create=True)


class StoreFolder:
    """Where one attempt's files go: from a local file to a prefix of a store; see `StagingArea`."""

    def __init__(self, url: str, prefix: str = _DATA) -> None:
        self._url = url
        self._prefix = prefix

    def create(self, file: str) -> Path:
        """A new local file."""
        with disk_errors("make a local file for output", Path(file)):
            handle, path = tempfile.mkstemp(prefix="moorage-output-", suffix=Path(file).suffix)
            os.close(handle)
        return Path(path)

    def keep(self, file: str, path: Path) -> Committable:
        """Upload the file and remove the local one."""
        open_output(self._url).put_file(self._prefix + file, path)
        failpoints.hit("sink.staged")
        with disk_errors("drop a local file of output", path):
            written = path.stat().st_mtime
            path.unlink(missing_ok=True)
        return {"modified": int(written * 1000)}

    def drop(self, file: str, path: Path) -> None:
        """Remove the local file, or the object when it was uploaded."""
        if path.exists():
            with disk_errors("drop a local file of output", path):
                path.unlink()
        else:
            open_output(self._url).delete(self._prefix + file)


class Bucket:
    """The output at `url`; the driver's phases of `Sink` on it. Readers use `reader_url` for it."""

    def __init__(self, url: str, reader_url: str) -> None:
        self._store = open_output(url)
        self._reader_url = reader_url
        self._list = MetadataLog(self._store)
        # What a restore took off the list is not kept until the next sweep is due.
        self._restored = False
        self._retired_at = 0

    def admit(self, lineage: str, origin: SinkOrigin | None, *, keep: bool) -> list[str]:
        """Refuse a list whose readers would see rows twice, unless told to `keep` what is there."""
        found = neighbours_in(lineage, map(_file_of, self._list.read()))
        if not keep:
            beside = self._journal_names(origin.lineage) if origin is not None else []
            found.require_admissible(f"store={self._store.url}", lineage, origin, beside)
        for other in found.files:
            self._store.put(f"{self._folder(lineage)}{other}{BESIDE_SUFFIX}", b"")
        return []

    def check_covered(self, committables: list[Committable]) -> None:
        """Refuse output of another folder or kind of sink; see `Sink`."""
        require_kind(f"store={self._store.url}", committables, "modified")
        self._require({item["file"] for item in committables})

    def publish(self, lineage: str, checkpoint_id: int, committables: list[Committable]) -> int:
        """Record the files, then commit them to the list; see `Sink.publish`."""
        if committables:
            own = max(o.run for i in committables if (o := origin_of(lineage, i["file"])))
            # A record comes before its files: where there is none they are on no list.
            new = not recorded(self._journal_names(lineage), checkpoint_id)
            self._list.begin()
            self._record(lineage, checkpoint_id, committables)
            lines = dict(self._line(item) for item in committables)
            self._list.add(lines, self._not_replaced(lineage, own), new=new)
        return sum(int(item["rows"]) for item in committables)

    def restore(self, point: SinkRestore) -> list[str]:
        """Make the list right in one step; see `Sink.restore`."""
        own, lineage = run_age(point.run), point.lineage
        _, records = self._journal(lineage)
        self._list.begin()
        covered = _covered(records, [LiveOutput(point.history, point.committables)])
        self._require(covered.keys())
        self._mark(lineage, point.run)
        if point.history and point.committables:
            self._record(lineage, point.history[-1], point.committables)
        changes: dict[str, int] = {}

        def wanted(visible: Visible) -> Visible:
            lines = dict(self._line(item) for item in covered.values())
            others = {
                p: v for p, v in visible.items() if not is_not_newer(lineage, _file_of(p), own)
            }
            known = {p: visible.get(p, line) for p, line in lines.items()}
            published = {i["file"] for items in records.values() for i in items}
            target = others | known
            changes["hidden"] = len(visible.keys() - target.keys())
            shown = (_file_of(path) for path in target.keys() - visible.keys())
            changes["shown"] = len(published.intersection(shown))
            return target

        self._list.replace(wanted, self._not_replaced(lineage, own))
        self._restored = True
        return _sentences(self._store.url, changes)

    def retire(self, point: SinkRetire) -> None:
        """Forget what no restore can ask for: see `SinkRetire`. May be cut short anywhere."""
        folder, at = self._folder(point.lineage), point.checkpoint_id
        sizes = self._journal_sizes(point.lineage)
        names, regular = together(sizes), at % _SWEEP_EVERY == 0
        if newer_run(sizes, run_age(point.run)) or not (regular or names):
            return
        failpoints.hit("sink.unread")
        if regular:
            if self._restored or sweep_is_due(self._retired_at or at - 1, at, _SWEEP_EVERY):
                _, records = self._journal(point.lineage)
                self._sweep(point, set(_covered(records, point.live)))
            self._restored, self._retired_at = False, at
            self._list.expire()
        records = self._records(point.lineage, names)
        plan = compaction(names, records, live_ids(point, records))
        if plan is not None:
            self._store.put(folder + plan.name, plan.data.encode())
            failpoints.hit("sink.compacted")
            delete_all(self._store, [folder + name for name in plan.obsolete])

    def files(self) -> list[str]:
        """All visible files, for readers that do not know the list: paths, or `s3a://...`."""
        return sorted(unquote(path).removeprefix("file://") for path in self._list.read())

    def _sweep(self, point: SinkRetire, wanted: set[str]) -> None:
        visible = {_file_of(path) for path in self._list.read()}
        files = (info.key.removeprefix(_DATA) for info in self._store.list(_DATA))
        over = [f for f in files if f not in wanted and f not in visible and lost(point, f)]
        delete_all(self._store, [_DATA + file for file in over])
        failpoints.hit("sink.swept")

    def _record(self, lineage: str, checkpoint_id: int, items: list[Committable]) -> None:
        kept = [{name: i[name] for name in ("file", "bytes", "modified")} for i in items]
        key = self._folder(lineage) + record_name(checkpoint_id)
        self._store.put(key, encode(checkpoint_id, kept).encode())
        failpoints.hit("sink.recorded")

    def _mark(self, lineage: str, run: str) -> None:
        """Leave a mark of this run; those of older ones go."""
        folder = self._folder(lineage)
        self._store.put(f"{folder}{run}{RUN_SUFFIX}", b"")
        failpoints.hit("sink.marked")
        for name in older_marks(self._journal_names(lineage), run_age(run)):
            self._store.delete(folder + name)

    def _not_replaced(self, lineage: str, own: Age) -> Callable[[], None]:
        """Raises Fenced when a newer run has taken the output over."""

        def check() -> None:
            # A newer run's mark comes before its first entry in the list, and an entry in between
            # makes every append look again.
            if newer := newer_run(self._journal_names(lineage), own):
                raise taken_over(f"store={self._store.url}", newer, f"f{own[0]}r{own[1]}")

        return check

    def _require(self, covered: Collection[str]) -> None:
        """Refuse to show files that are not there: readers of the list would fail."""
        visible = {_file_of(path) for path in self._list.read()}
        for name in sorted(set(covered) - visible):
            if self._store.head(_DATA + name) is None:
                raise CorruptState(
                    "an output file that the checkpoint covers is missing",
                    path=f"{self._store.url}/{_DATA}{name}",
                    advice=IF_MISSING,
                )

    def _journal(self, lineage: str) -> tuple[list[str], Records]:
        """The records of a lineage, by name and as they were read."""
        names = self._journal_names(lineage)
        return names, self._records(lineage, [n for n in sorted(names) if n.endswith(".json")])

    def _records(self, lineage: str, names: Iterable[str]) -> Records:
        folder = self._folder(lineage)
        contents = ((name, self._store.get(folder + name)) for name in names)
        return decode(contents, f"{self._store.url}/{folder}")

    def _journal_names(self, lineage: str) -> list[str]:
        return list(self._journal_sizes(lineage))

    def _journal_sizes(self, lineage: str) -> dict[str, int]:
        """By name, the bytes of all that is kept for a lineage."""
        folder = self._folder(lineage)
        return {info.key.removeprefix(folder): info.size for info in self._store.list(folder)}

    @staticmethod
    def _folder(lineage: str) -> str:
        return f"{_LOG}{lineage}/"

    def _line(self, item: Committable) -> tuple[str, str]:
        """The path of a file as readers know it, and its line in the list."""
        path = f"{self._reader_url}/{_DATA}{quote(item['file'], safe='/=')}"
        status: dict[str, Any] = {
            "path": path,
            "size": item["bytes"],
            "isDir": False,
            "modificationTime": item["modified"],
            "blockReplication": 1,
            "blockSize": _BLOCK_BYTES,
            "action": "add",
        }
        return path, json.dumps(status)


def _covered(records: Records, outputs: Iterable[LiveOutput]) -> dict[str, Committable]:
    """By name, what is visible at one of these points, or by restoring it."""
    found: dict[str, Committable] = {}
    for output in outputs:
        found.update((item["file"], item) for item in output.committables)
        for checkpoint_id, items in records.items():
            if checkpoint_id in output.history:
                found.update((item["file"], item) for item in items)
    return found


def _file_of(path: str) -> str:
    """The name of a file below `_data/`; the whole path for files of others."""
    return unquote(path.rpartition(f"/{_DATA}")[2])


def _sentences(url: str, changes: dict[str, int]) -> list[str]:
    sentences = []
    if hidden := changes["hidden"]:
        sentences.append(
            f"took published files off the list that the restore point does not cover: "
            f"store={url} files={hidden}"
        )
    if shown := changes["shown"]:
        sentences.append(
            f"put files back on the list that an earlier restore took off: store={url} "
            f"files={shown}"
        )
    return sentences
