"""Which job has which checkpoint directory: two jobs with one directory would fence each other off.

A quick answer from what this process has seen of all jobs; the owner record in the store is the
authority. In the right is the job that has a checkpoint there; if none or both have, the one that
did not move there while this process looked on; else the older object.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from moorage_api import JobSpec
from moorage_api.fleet import digest_of
from moorage_operator.objects import JudgedSpecs
from moorage_operator.podviews import moment
from moorage_operator.ports import Object

_LATEST = datetime.max.replace(tzinfo=UTC)
_PROVEN, _AT_HOME, _MOVED = range(3)


@dataclass(frozen=True, slots=True, order=True)
class _Claim:
    """Of one job, on one directory; the smaller one is in the right."""

    rank: int
    created_at: datetime
    uid: str
    who: str
    folders: tuple[str, ...]  # the directory and those above it, the widest first
    # Whether it is held against others. A job that sleeps holds what it has a checkpoint in, and no
    # place that is only named in its spec.
    stands: bool


@dataclass(frozen=True, slots=True)
class _Seen:
    """A spec that was judged."""

    uid: str
    generation: object
    profile: str  # a hash of its values
    folders: tuple[str, ...]
    sleeps: bool
    home: tuple[str, ...]  # the directory that the object named when this process saw it first


class CheckpointDirectories:
    """An index of all jobs' checkpointDirs; a directory inside another one counts as the same.

    Only specs that the models accept count: of a job whose newest spec is wrong, the one before.

    Args:
        values: of the profile that a job goes by: the server of its bucket may stand there.
    """

    def __init__(
        self,
        specs: JudgedSpecs | None = None,
        values: Callable[[Object], Mapping[str, Any]] = lambda _: {},
    ) -> None:
        self._specs, self._values = specs or JudgedSpecs(), values
        self._seen: dict[str, _Seen] = {}
        self._claims: dict[str, _Claim] = {}
        # By a folder: whose directory it is, and whose directory lies in it or is it. All jobs of a
        # bucket lie in it, so that the second is asked for a job's own directory alone.
        self._at: dict[str, set[str]] = {}
        self._inside: dict[str, set[str]] = {}

    def note(self, body: Object) -> None:
        """Take in what a job's object says."""
        meta = body["metadata"]
        who = f"{meta.get('namespace', '')}/{meta['name']}"
        seen = self._judged(who, body)
        self.forget(who)
        if seen is None:
            return
        self._seen[who] = seen
        if not seen.folders:
            return
        proven = _is_proven(body, seen.folders)
        rank = _PROVEN if proven else _AT_HOME if seen.folders == seen.home else _MOVED
        created = moment(meta.get("creationTimestamp")) or _LATEST
        stands = proven or not seen.sleeps
        self._claims[who] = _Claim(rank, created, seen.uid, who, seen.folders, stands)
        self._at.setdefault(seen.folders[-1], set()).add(who)
        for folder in seen.folders:
            self._inside.setdefault(folder, set()).add(who)

    def forget(self, who: str) -> None:
        """A job, as `namespace/name`, is gone."""
        self._seen.pop(who, None)
        claim = self._claims.pop(who, None)
        if claim is None:
            return
        _drop(self._at, claim.folders[-1], who)
        for folder in claim.folders:
            _drop(self._inside, folder, who)

    def rival(self, who: str) -> str:
        """The other job whose directory is, holds or lies in this one's, if it is in the right."""
        mine = self._claims.get(who)
        if mine is None:
            return ""
        above = (self._at.get(folder, set()) for folder in mine.folders)
        others = self._inside[mine.folders[-1]].union(*above) - {who}
        claims = (self._claims[other] for other in others)
        better = [claim for claim in claims if claim.stands and claim < mine]
        return min(better).who if better else ""

    def _judged(self, who: str, body: Object) -> _Seen | None:
        """What the newest good spec says, judged once a generation; None if there was none yet."""
        uid, generation = str(body["metadata"].get("uid", "")), body["metadata"].get("generation")
        known = self._seen.get(who)
        if known is not None and known.uid != uid:
            known = None
        values = self._values(body)
        profile = digest_of(values)
        judged_by = (generation, profile)
        if known and generation is not None and (known.generation, known.profile) == judged_by:
            return known
        judged = self._specs.with_defaults(body, values)
        if judged.spec is None or judged.problems:
            return known
        folders = _folders(judged.spec)
        home = known.home if known is not None else folders
        sleeps = judged.spec.desired_state == "Suspended"
        return _Seen(uid, generation, profile, folders, sleeps, home)


def _drop(index: dict[str, set[str]], folder: str, who: str) -> None:
    index[folder].discard(who)
    if not index[folder]:
        del index[folder]


def _is_proven(body: Object, folders: tuple[str, ...]) -> bool:
    """Whether the job's last checkpoint lies in the directory."""
    found: Any = body.get("status")
    for key in ("snapshots", "lastCheckpoint", "path"):
        found = found.get(key) if isinstance(found, dict) else None
    if not isinstance(found, str) or not folders:
        return False
    above = _steps(found.partition("?")[0])[:-1]
    return bool(above) and above[-1] == folders[-1].rpartition(" ")[2]


def _folders(spec: JobSpec) -> tuple[str, ...]:
    """The directory and those above it, the widest first: `s3://b`, `s3://b/k`."""
    # Buckets are told apart by their server; two names of one server are found out by the store.
    # Files are the same in two pods only where they are those of the node.
    state = spec.state
    if state.checkpoint_dir.startswith("file://") and state.local.type != "HostPath":
        return ()
    server = f"{state.s3.endpoint.rstrip('/')} " if state.s3.endpoint else ""
    return tuple(f"{server}{step}" for step in _steps(state.checkpoint_dir))


def _steps(address: str) -> list[str]:
    scheme, _, path = address.partition("://")
    names = [name for name in path.split("/") if name]
    return [f"{scheme}://{'/'.join(names[:count])}" for count in range(1, len(names) + 1)]
