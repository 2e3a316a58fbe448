"""Large texts of a manifest's `source`, by reference: what does not change is stored once.

A source's own log has a line for each file that there ever was, and grows at its end. Its beginning
is cut into chunks, which are shared objects; only what follows the last one stands in the manifest.
Chunks have few sizes, and as many of the largest as there can be, so that a text of any length is
few objects, and a byte is stored once for each size at most. Decides where texts are cut, and puts
them together again. Must not know what they say.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from moorage_state.errors import CorruptState, LocalDiskError, ObjectNotFound
from moorage_state.snapshots.manifest import (
    RESTORE_ADVICE,
    PartRef,
    Root,
    SnapshotRoot,
    SourceText,
    SourceTexts,
)
from moorage_state.snapshots.object_keys import source_key
from moorage_state.stores import ObjectStore, in_parallel

CHUNK_SIZES = (16 << 20, 1 << 20, 64 << 10)
"""Each a multiple of the next. A text under the smallest stands in the manifest whole."""

_THREADS = 4

_Path = tuple[str, ...]


class Chunk(NamedTuple):
    """Some bytes of a text, by their number and SHA-256 in hex."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class CutText:
    """A text whose beginning is not in the manifest.

    Attributes:
        path: the names under which the rest of it stands in `source`, from the outermost.
        file: where it lies whole, on this machine.
        chunks: its beginning, in order.
    """

    path: _Path
    file: Path
    chunks: tuple[Chunk, ...]


class Cutter:
    """Cuts the texts of one run, and reads again only what is not known of the last ones.

    A file that is named as before is as it was. One of another name beside it may begin with the
    same bytes: it does where the last chunk that they would share is the same. So it is meant for
    files to whose end their writer appends, or which it copies whole into a longer one.
    """

    def __init__(self, restored: SnapshotRoot | None = None) -> None:
        self._known: dict[_Path, CutText] = {}
        self._cut: dict[_Path, CutText] = {}
        texts = restored.source_texts if isinstance(restored, Root) else msgspec.UNSET
        for text in [] if texts is msgspec.UNSET else texts.texts:
            chunks = tuple(Chunk(ref.size, ref.sha256) for ref in text.objects)
            self._known[tuple(text.path)] = CutText(tuple(text.path), Path(), chunks)

    def begin(self) -> None:
        """Forget what was cut and not taken."""
        self._cut = {}

    def cut(self, path: _Path, file: Path) -> str:
        """Return what follows the last chunk of a text.

        Raises OSError, and UnicodeDecodeError where that is no text.
        """
        known = self._known.get(path)
        if known is None or known.file != file:
            beside = [one for at, one in self._known.items() if at[:-1] == path[:-1]]
            known = CutText(path, file, _chunks(file, [one.chunks for one in beside]))
        if known.chunks:
            self._cut[path] = known
        with file.open("rb") as opened:
            opened.seek(sum(chunk.size for chunk in known.chunks))
            return opened.read().decode()

    def taken(self) -> list[CutText]:
        """What was cut since it began; the next texts are held against these."""
        self._known, self._cut = self._cut, {}
        return list(self._known.values())


def _chunks(file: Path, before: Iterable[tuple[Chunk, ...]]) -> tuple[Chunk, ...]:
    """The chunks of a file; those it has in common with one of `before` are not read."""
    wanted = _sizes(file.stat().st_size)
    with file.open("rb") as opened:
        kept: list[Chunk] = []
        for chunks in before:
            same = [c for c, size in zip(chunks, wanted, strict=False) if c.size == size]
            # Sizes never grow along a text: what is of the same size is at the same place.
            same = same if [c.size for c in same] == wanted[: len(same)] else []
            if len(same) > len(kept):
                opened.seek(sum(chunk.size for chunk in same[:-1]))
                if _chunk(opened.read(same[-1].size)) == same[-1]:
                    kept = same
        opened.seek(sum(chunk.size for chunk in kept))
        data = b""
        for size in wanted[len(kept) :]:
            data = opened.read(size)
            kept.append(_chunk(data))
        after = opened.read(1)
    if data and after and after[0] & 0xC0 == 0x80:
        # A character goes on behind it, and what follows has to be text.
        end = next(n for n in range(1, len(data)) if data[-n] & 0xC0 != 0x80)
        kept[-1] = _chunk(data[:-end])
    return tuple(kept)


def _sizes(size: int) -> list[int]:
    found: list[int] = []
    for each in CHUNK_SIZES:
        number, size = divmod(size, each)
        found += [each] * number
    return found


def _chunk(data: bytes) -> Chunk:
    return Chunk(len(data), hashlib.sha256(data).hexdigest())


class StoredTexts(NamedTuple):
    """What a root says of its texts, and how many objects and bytes were written for it."""

    texts: SourceTexts | msgspec.UnsetType
    objects: int
    bytes: int


def store_texts(
    store: ObjectStore, texts: Sequence[CutText], base: SnapshotRoot | None, upload: str
) -> StoredTexts:
    """Write the chunks that the base does not reference.

    Args:
        base: what the checkpoint builds on: no other object of the store may be referenced.
        upload: a random id, which is in the names of all that is written.

    Raises LocalDiskError where a file is gone or another by now, and StoreUnavailable.
    """
    known = refs_of(base)
    if not texts and not known:
        return StoredTexts(msgspec.UNSET, 0, 0)
    stored = {Chunk(ref.size, ref.sha256): ref for ref in known}
    new: dict[Chunk, tuple[Path, int]] = {}
    for text in texts:
        at = 0
        for chunk in text.chunks:
            if chunk not in stored:
                new.setdefault(chunk, (text.file, at))
            at += chunk.size

    def put(chunk: Chunk, file: Path, at: int) -> PartRef:
        key = source_key(chunk.sha256, upload)
        store.put(key, _local(file, at, chunk))
        return PartRef(key=key, size=chunk.size, sha256=chunk.sha256)

    puts = [partial(put, chunk, *place) for chunk, place in new.items()]
    written = in_parallel(puts, _THREADS, "source")
    stored |= dict(zip(new, written, strict=True))
    found = [
        SourceText(path=list(text.path), objects=[stored[chunk] for chunk in text.chunks])
        for text in texts
    ]
    now = {ref.key for text in found for ref in text.objects}
    made = SourceTexts(
        texts=found,
        added=sorted(ref.key for ref in written),
        lost=sorted({ref.key for ref in known} - now),
    )
    return StoredTexts(made, len(written), sum(chunk.size for chunk in new))


def refs_of(root: SnapshotRoot | None) -> list[PartRef]:
    """The objects that hold chunks of the texts of a root."""
    texts = root.source_texts if isinstance(root, Root) else msgspec.UNSET
    return [] if texts is msgspec.UNSET else [ref for text in texts.texts for ref in text.objects]


def with_local(source: dict[str, Any], texts: Iterable[CutText]) -> dict[str, Any]:
    """`source` with its texts whole, as their files have them. Raises LocalDiskError."""
    whole = source
    for text in texts:
        at, chunks = 0, []
        for chunk in text.chunks:
            chunks.append(_local(text.file, at, chunk))
            at += chunk.size
        whole = _with_head(whole, text.path, b"".join(chunks))
    return whole


def with_texts(store: ObjectStore, root: SnapshotRoot) -> dict[str, Any]:
    """The `source` of a snapshot with its texts whole.

    Raises CorruptState if an object is missing, or is not what the root says; StoreUnavailable.
    """
    refs = {ref.key: ref for ref in refs_of(root)}
    some = in_parallel((partial(_stored, store, ref) for ref in refs.values()), _THREADS, "source")
    data = dict(zip(refs, some, strict=True))
    whole = root.source
    if isinstance(root, Root) and root.source_texts is not msgspec.UNSET:
        for text in root.source_texts.texts:
            head = b"".join(data[ref.key] for ref in text.objects)
            try:
                whole = _with_head(whole, text.path, head)
            except (KeyError, TypeError, UnicodeDecodeError) as error:
                raise CorruptState(
                    f"source of a manifest has no such text: text={text.path} error={error!r}",
                    store.url,
                    RESTORE_ADVICE,
                ) from error
    return whole


def _with_head(source: Mapping[str, Any], path: Sequence[str], head: bytes) -> dict[str, Any]:
    name, rest = path[0], path[1:]
    inner = _with_head(source[name], rest, head) if rest else head.decode() + source[name]
    return {**source, name: inner}


def _local(file: Path, at: int, chunk: Chunk) -> bytes:
    try:
        with file.open("rb") as opened:
            opened.seek(at)
            data = opened.read(chunk.size)
    except OSError as error:
        raise LocalDiskError(f"cannot read the log of a source: path={file} {error=}") from error
    if _chunk(data) != chunk:
        raise LocalDiskError(f"the log of a source was changed: path={file} offset={at}")
    return data


def _stored(store: ObjectStore, ref: PartRef) -> bytes:
    path = f"{store.url}/{ref.key}"
    try:
        data = store.get(ref.key)
    except ObjectNotFound as error:
        raise CorruptState("log of a source is missing", path, RESTORE_ADVICE) from error
    if _chunk(data) != Chunk(ref.size, ref.sha256):
        raise CorruptState("log of a source does not match its checksum", path, RESTORE_ADVICE)
    return data
