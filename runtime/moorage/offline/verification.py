"""`snapshots verify`: is everything there that a restore needs, to the last byte.

Finds all damage, each object once, however many checkpoints share it. Reads only.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from moorage.offline.lookup import directories_of, find, has_log
from moorage.state.snapshot_path import Found, check_retained
from moorage_state.errors import CorruptState, ObjectNotFound
from moorage_state.snapshots import (
    Checkpoint,
    CheckpointStore,
    FileRef,
    LineageLog,
    Manifest,
    checkpoint_id_of,
    checkpoint_path,
    log_key,
    pack_size,
    retained,
)
from moorage_state.snapshots.object_keys import is_moved_key, log_seq
from moorage_state.stores import ObjectStore, in_parallel, open_store
from moorage_state.stores.addresses import parent_and_name

_THREADS = 8
_CHUNK_BYTES = 8 << 20

OnProgress = Callable[[int, int], None]
"""Called from several threads with how many more bytes were checked, and how many there are."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One object that is not as it was written.

    Attributes:
        needed_by: the checkpoints or the savepoint that cannot be restored without it.
    """

    path: str
    problem: str
    needed_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verification:
    """What was looked at and what was found.

    Attributes:
        full: every byte was read; otherwise existence and sizes.
        log_entries: how many entries of the log were checked; 0 for a savepoint.
    """

    path: str
    full: bool
    snapshots: tuple[str, ...]
    objects: int
    bytes: int
    log_entries: int
    damage: tuple[Damage, ...]


@dataclass(slots=True)
class _Object:
    """What manifests say of one object."""

    slices: set[tuple[int, int, str]] = field(default_factory=set)
    needed_by: set[str] = field(default_factory=set)

    @property
    def bytes(self) -> int:
        return sum(size for _, size, _ in self.slices)


def verify(
    text: str, name: str | None = None, *, full: bool = False, progress: OnProgress | None = None
) -> Verification:
    """Check a checkpoint directory as a whole, or one checkpoint or savepoint, as `find` has them.

    Of a directory the log and every retained checkpoint are checked; of one checkpoint the log too.

    Args:
        full: read every byte; otherwise only existence and sizes.

    Raises:
        UserError: there is nothing of the kind, or a newer Moorage wrote it; or the checkpoint
            that is meant was retired meanwhile.
        CorruptState: the manifest of the one that is meant is damaged.
        StoreUnavailable: the store does not answer; that is no verdict.
    """
    url = directories_of(text).checkpoints
    split = parent_and_name(url)
    if name is None and (split is None or checkpoint_id_of(split[1]) is None):
        store = open_store(url)
        if has_log(store):
            return _directory(store, full=full, progress=progress)
    return _snapshot(find(text, name), full=full, progress=progress)


def _directory(store: ObjectStore, *, full: bool, progress: OnProgress | None) -> Verification:
    entries, damage = _check_log(store)
    if damage:
        return Verification(store.url, full, (), 0, 0, entries, tuple(damage))
    live = _live(store)
    loaded = [_load(store, entry) for entry in live]
    manifests = [(checkpoint_path(m.checkpoint_id), m) for m in loaded if isinstance(m, Manifest)]
    objects = _objects(manifests)
    damage = [found for found in loaded if isinstance(found, Damage)]
    damage += _inline_damage(manifests) + _check_objects(store, objects, progress, full=full)
    if damage:
        # A running job may have retired a checkpoint meanwhile: that is no damage.
        still = {checkpoint_path(entry.checkpoint_id) for entry in _live(store)}
        damage = [found for found in damage if still.intersection(found.needed_by)]
    names = tuple(checkpoint_path(entry.checkpoint_id) for entry in live)
    return _verdict(store.url, names, objects, damage, entries, full=full)


def _snapshot(found: Found, *, full: bool, progress: OnProgress | None) -> Verification:
    entries, damage = _check_log(found.store) if found.checkpoint else (0, [])
    manifest = found.snapshot.manifest
    name = checkpoint_path(manifest.checkpoint_id) if found.checkpoint else manifest.name
    objects = _objects([(name, manifest)])
    of_objects = _inline_damage([(name, manifest)])
    of_objects += _check_objects(found.store, objects, progress, full=full)
    if of_objects and found.checkpoint is not None:
        check_retained(found.store, found.checkpoint)
    damage += of_objects
    return _verdict(found.snapshot.path, (name,), objects, damage, entries, full=full)


def _verdict(
    path: str,
    names: tuple[str, ...],
    objects: dict[str, _Object],
    damage: Iterable[Damage],
    entries: int,
    *,
    full: bool,
) -> Verification:
    total = sum(one.bytes for one in objects.values())
    ordered = tuple(sorted(damage, key=lambda found: (found.path, found.problem)))
    return Verification(path, full, names, len(objects), total, entries, ordered)


def _live(store: ObjectStore) -> Sequence[Checkpoint]:
    return list(reversed(retained([r.entry for r in LineageLog.open(store).view().records])))


def _load(store: ObjectStore, entry: Checkpoint) -> Manifest | Damage:
    try:
        return CheckpointStore(store).load(entry)
    except CorruptState as error:
        return Damage(error.path, error.message, (checkpoint_path(entry.checkpoint_id),))


def _check_log(store: ObjectStore) -> tuple[int, list[Damage]]:
    """Check every entry, and that none is missing; returns how many there are."""
    log = LineageLog.open(store)
    base = log.begins()
    keys = [info.key for info in store.list("log/")]
    end = max((log_seq(key) or 0 for key in keys), default=0)
    strange = [key for key in keys if log_seq(key) is None and not is_moved_key(key)]

    def check(seq: int) -> Damage | None:
        path = f"{store.url}/{log_key(seq)}"
        try:
            missing = log.read_one(seq) is None
        except CorruptState as error:
            return Damage(path, error.message, ("log",))
        return Damage(path, "log entry is missing", ("log",)) if missing else None

    checks = (partial(check, seq) for seq in range(max(base, 1), end + 1))
    found = [one for one in in_parallel(checks, _THREADS) if one is not None]
    found += [
        Damage(f"{store.url}/{key}", "is no log entry; move it away", ("log",)) for key in strange
    ]
    if end == 0:
        found.append(Damage(f"{store.url}/log/", "the log is missing beside checkpoints", ("log",)))
    if log.moved(base) is not None:
        return _check_log(store)  # the job had it begin anew meanwhile
    return end - max(base, 1) + 1, found


def _objects(manifests: Iterable[tuple[str, Manifest]]) -> dict[str, _Object]:
    objects: dict[str, _Object] = {}
    for name, manifest in manifests:
        for file in manifest.files:
            if file.inline is None:
                one = objects.setdefault(file.key, _Object())
                one.slices.add((file.offset, file.size, file.sha256))
                one.needed_by.add(name)
    return objects


def _inline_damage(manifests: Iterable[tuple[str, Manifest]]) -> list[Damage]:
    """Inline files that are not of their checksum."""

    def wrong(file: FileRef) -> bool:
        data = file.inline
        # The manifest's own checksum covers these bytes, but not that they are the file.
        return data is not None and hashlib.sha256(data).hexdigest() != file.sha256

    return [
        Damage(f"{name}/MANIFEST", f"inline file {file.name} is not of its checksum", (name,))
        for name, manifest in manifests
        for file in manifest.files
        if wrong(file)
    ]


def _check_objects(
    store: ObjectStore, objects: dict[str, _Object], progress: OnProgress | None, *, full: bool
) -> list[Damage]:
    total = sum(one.bytes for one in objects.values())

    def check(key: str) -> list[Damage]:
        one = objects[key]
        problems = _problems(store, key, sorted(one.slices), full=full)
        if progress is not None:
            progress(one.bytes, total)
        by = tuple(sorted(one.needed_by))
        return [Damage(f"{store.url}/{key}", problem, by) for problem in problems]

    # Each object once, however many checkpoints share it.
    checks = (partial(check, key) for key in sorted(objects))
    return [damage for found in in_parallel(checks, _THREADS) for damage in found]


def _problems(
    store: ObjectStore, key: str, slices: Sequence[tuple[int, int, str]], *, full: bool
) -> list[str]:
    info = store.head(key)
    if info is None:
        return ["is missing"]
    packed = pack_size(key)
    expected = packed if packed is not None else max(o + size for o, size, _ in slices)
    if info.size != expected or any(o + size > expected for o, size, _ in slices):
        return [f"has {info.size} bytes, not {expected}"]
    if not full:
        return []
    try:
        return list(_wrong_slices(store, key, slices, whole=packed is None))
    except ObjectNotFound:
        return ["is missing"]
    except CorruptState as error:
        return [error.message]


def _wrong_slices(
    store: ObjectStore, key: str, slices: Sequence[tuple[int, int, str]], *, whole: bool
) -> Iterator[str]:
    for span in _spans(slices):
        begin = span[0][0]
        if len(span) == 1:
            digests = [_streamed(store, key, *span[0][:2])]
        else:
            length = max(offset + size for offset, size, _ in span) - begin
            data = store.get(key, offset=begin, length=length)
            digests = [
                hashlib.sha256(data[offset - begin : offset - begin + size]).hexdigest()
                for offset, size, _ in span
            ]
        for (offset, size, wanted), found in zip(span, digests, strict=True):
            if found != wanted:
                where = "" if whole else f" at offset {offset}, {size} bytes"
                yield f"does not match its checksum{where}"


def _spans(
    slices: Sequence[tuple[int, int, str]],
) -> Iterator[Sequence[tuple[int, int, str]]]:
    """Group neighbouring slices that one request brings."""
    span: list[tuple[int, int, str]] = []
    for one in slices:
        if span and one[0] + one[1] - span[0][0] > _CHUNK_BYTES:
            yield span
            span = []
        span.append(one)
    if span:
        yield span


def _streamed(store: ObjectStore, key: str, offset: int, size: int) -> str:
    digest = hashlib.sha256()
    # In pieces: neither memory nor disk holds a whole object.
    for at in range(offset, offset + size, _CHUNK_BYTES):
        digest.update(store.get(key, offset=at, length=min(_CHUNK_BYTES, offset + size - at)))
    return digest.hexdigest()
