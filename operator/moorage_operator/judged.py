"""Specs of jobs as they were judged: once for each generation of an object, which is what costs.

To judge a rich spec takes some milliseconds: those of a whole list are judged in a thread, so that
meanwhile the Lease is renewed and probes are answered.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from moorage_api import JobSpec, Problem
from moorage_api.changes import spec_hash
from moorage_operator.objects import read_job_spec
from moorage_operator.ports import Object

__all__ = ["Judged", "JudgedSpecs"]

_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Judged:
    """A spec of one generation of one object.

    Attributes:
        spec: with defaults; None if it cannot be read as one.
        digest: its hash; empty without a spec.
        problems: what is wrong with it.
    """

    uid: str
    generation: int | None
    spec: JobSpec | None
    digest: str
    problems: tuple[Problem, ...]


class JudgedSpecs:
    """What was judged of each job's newest generation."""

    def __init__(self) -> None:
        self._known: dict[str, Judged] = {}

    def of(self, body: Object) -> Judged:
        """The job's spec, judged now unless it was before."""
        who = _who(body)
        known = self._known.get(who)
        if known is None or not _is_of(known, body):
            known = self._known[who] = _judged(body)
        return known

    async def learn(self, bodies: Sequence[Object]) -> None:
        """Judge what is not known of so many jobs, beside the loop."""
        for start in range(0, len(bodies), _AT_ONCE):
            some = [one for one in bodies[start : start + _AT_ONCE] if not self._knows(one)]
            if some:
                for one in await asyncio.to_thread(_all_judged, some):
                    self._known[one[0]] = one[1]

    def forget(self, who: str) -> None:
        """A job, as `namespace/name`, is gone."""
        self._known.pop(who, None)

    def _knows(self, body: Object) -> bool:
        known = self._known.get(_who(body))
        return known is not None and _is_of(known, body)


def _all_judged(bodies: Sequence[Object]) -> list[tuple[str, Judged]]:
    return [(_who(body), _judged(body)) for body in bodies]


def _judged(body: Object) -> Judged:
    spec, problems = read_job_spec(body)
    digest = spec_hash(spec) if spec is not None else ""
    return Judged(*_which(body), spec, digest, problems)


def _is_of(known: Judged, body: Object) -> bool:
    """Whether it was judged of this very generation; of an object without one nobody knows."""
    uid, generation = _which(body)
    return generation is not None and (known.uid, known.generation) == (uid, generation)


def _which(body: Object) -> tuple[str, int | None]:
    meta = body["metadata"]
    return str(meta.get("uid", "")), meta.get("generation")


def _who(body: Object) -> str:
    meta = body["metadata"]
    return f"{meta.get('namespace', '')}/{meta['name']}"
