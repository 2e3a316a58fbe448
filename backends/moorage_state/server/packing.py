"""What becomes of each file of an upload: known already, inline, part of a pack, or an object.

Decides how many objects a checkpoint costs. Pure; called by `uploading`, which does what it says.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from moorage_state.server.api import UploadLimits
from moorage_state.snapshots import FileRef

__all__ = ["LocalFile", "Pack", "UploadPlan", "plan_upload"]


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file of a snapshot; `part` is the number of its range in the upload."""

    part: int
    path: Path
    size: int
    sha256: str
    xxh3: str = ""

    @property
    def shared(self) -> bool:
        """Whether later checkpoints may reference its bytes too: SST files never change."""
        return self.path.suffix == ".sst"

    @property
    def content(self) -> tuple[bool, int, str]:
        """What makes two files of one upload the same slice of a pack."""
        return self.shared, self.size, self.sha256


@dataclass(frozen=True, slots=True)
class Pack:
    """An object made of these files' bytes, one after the other; no content is there twice."""

    shared: bool
    files: tuple[LocalFile, ...]

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class UploadPlan:
    """Every file of an upload is in exactly one of these, or has the content of a packed one.

    Attributes:
        known: what the base has, and where.
        inline: what goes into the handles.
        packs: small files that share objects.
        alone: the others, each an object.
    """

    known: dict[LocalFile, FileRef]
    inline: frozenset[LocalFile]
    packs: tuple[Pack, ...]
    alone: tuple[LocalFile, ...]


def plan_upload(
    parts: Sequence[Sequence[LocalFile]],
    bases: Sequence[Iterable[FileRef]],
    limits: UploadLimits,
) -> UploadPlan:
    """Return what to do with the files of each range, given what the base of each has."""
    files = [file for part in parts for file in part]
    inline = _inline(parts, limits)
    known = _known(parts, bases)
    left = [file for file in files if file not in inline and file not in known]
    small = [file for file in left if file.size < limits.merge_below]
    return UploadPlan(
        known={file: ref for file, ref in known.items() if file not in inline},
        inline=inline,
        packs=(
            *_packed(small, limits.pack, shared=False),
            *_packed(small, limits.pack, shared=True),
        ),
        alone=tuple(file for file in left if file.size >= limits.merge_below),
    )


def _known(
    parts: Sequence[Sequence[LocalFile]], bases: Sequence[Iterable[FileRef]]
) -> dict[LocalFile, FileRef]:
    known: dict[LocalFile, FileRef] = {}
    for part, base in zip(parts, bases, strict=True):
        has = {(ref.size, ref.sha256): ref for ref in base if ref.shared and ref.inline is None}
        for file in part:
            ref = has.get((file.size, file.sha256)) if file.shared else None
            if ref is not None:
                known[file] = ref
    return known


def _inline(parts: Sequence[Sequence[LocalFile]], limits: UploadLimits) -> frozenset[LocalFile]:
    """Whole small ranges first, the smallest of them before the others; then small private files.

    A file without bytes is always inline: a slice of a pack cannot be empty.
    """
    chosen = {file for part in parts for file in part if not file.size}
    left = limits.inline_total
    sized = sorted((sum(file.size for file in part), n) for n, part in enumerate(parts))
    for size, number in sized:
        if size < limits.inline_range and size <= left:
            chosen.update(parts[number])
            left -= size
    private = [file for part in parts for file in part if not file.shared and file not in chosen]
    for file in sorted(private, key=lambda file: (file.size, file.part, file.path.name)):
        if file.size <= limits.inline_file and file.size <= left:
            chosen.add(file)
            left -= file.size
    return frozenset(chosen)


def _packed(files: Iterable[LocalFile], most: int, *, shared: bool) -> list[Pack]:
    """Files in their order, so that those of one range lie side by side, cut at `most` bytes."""
    once = {file.content: file for file in reversed([f for f in files if f.shared is shared])}
    groups: dict[int, list[LocalFile]] = defaultdict(list)
    number = size = 0
    for file in reversed(once.values()):
        if size and size + file.size > most:
            number, size = number + 1, 0
        groups[number].append(file)
        size += file.size
    return [Pack(shared, tuple(group)) for group in groups.values()]
