"""Which job has which checkpoint directory: two jobs with one directory would fence each other off.

A quick answer from what this process has seen of all jobs; the owner record in the store is the
authority. The older object is in the right.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from moorage_operator.podviews import moment
from moorage_operator.ports import Object

__all__ = ["Directories"]

_LATEST = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, order=True)
class _Claim:
    created_at: datetime
    uid: str
    who: str
    directory: str


class Directories:
    """An index of all jobs' checkpointDirs; a directory inside another one counts as the same."""

    def __init__(self) -> None:
        self._claims: dict[str, _Claim] = {}
        self._inside: dict[str, set[str]] = {}

    def note(self, body: Object) -> None:
        """Take in what a job's object says."""
        meta = body["metadata"]
        who = f"{meta.get('namespace', '')}/{meta['name']}"
        self.forget(who)
        state = (body.get("spec") or {}).get("state")
        directory = state.get("checkpointDir") if isinstance(state, dict) else None
        if not isinstance(directory, str) or not directory:
            return
        created = moment(meta.get("creationTimestamp")) or _LATEST
        self._claims[who] = _Claim(created, str(meta.get("uid", "")), who, directory)
        for folder in _folders(directory):
            self._inside.setdefault(folder, set()).add(who)

    def forget(self, who: str) -> None:
        """A job, as `namespace/name`, is gone."""
        claim = self._claims.pop(who, None)
        for folder in _folders(claim.directory) if claim else ():
            self._inside[folder].discard(who)
            if not self._inside[folder]:
                del self._inside[folder]

    def rival(self, who: str) -> str:
        """The oldest other job whose directory is, holds or lies in this one's, if it is older."""
        mine = self._claims.get(who)
        if mine is None:
            return ""
        own = _folders(mine.directory)
        above = {
            other
            for folder in own
            for other in self._inside.get(folder, ())
            if _folders(self._claims[other].directory)[-1] == folder
        }
        others = (above | self._inside.get(own[-1], set())) - {who}
        older = [self._claims[other] for other in others if self._claims[other] < mine]
        return min(older).who if older else ""


def _folders(directory: str) -> list[str]:
    """The directory and those above it, the widest first: `s3://b`, `s3://b/k`."""
    scheme, _, path = directory.partition("://")
    steps = [step for step in path.split("/") if step]
    return [f"{scheme}://{'/'.join(steps[:count])}" for count in range(1, len(steps) + 1)] or [
        directory
    ]
