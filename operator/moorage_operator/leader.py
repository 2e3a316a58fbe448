"""Which of several operator processes leads: a Lease, and a clock of one's own.

No two clocks are compared. A candidate takes the lease only after it has *seen* it unchanged for as
long as the lease lasts; the holder counts from before it sent its last renewal that went through,
and stops acting well before a candidate can have come to that. What a holder had under way when it
stopped is harmless: statuses are written under a resourceVersion, drivers claim a fence.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from moorage_operator.ports import Cluster, ClusterError, Conflict, NameTaken, Object
from moorage_operator.shards import SELECTION_ANNOTATION, is_same_rule

_log = logging.getLogger("moorage.operator")

_LAST_WORD = 5.0
"""Seconds that giving the lease back may take: it lapses by itself, and the process is to end."""


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds."""

    duration: float = 15.0  # how long a lease that is not renewed keeps others out
    give_up: float = 10.0  # for how long after a renewal the holder acts; below `duration`
    retry: float = 2.0  # between two tries

    def __post_init__(self) -> None:
        if not 0 < self.retry < self.give_up < self.duration:
            raise ValueError(
                "a lease needs retry < give_up < duration: "
                f"retry={self.retry} give_up={self.give_up} duration={self.duration}"
            )


class Leader:
    """One process's part in the election.

    Args:
        identity: of this process; no two are alike.
        selection: what the holder looks after by now, as others may read it on the Lease.
        tick: seconds that only ever grow, of this process.
        wall: the time that is written into the Lease, for people.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        identity: str,
        *,
        selection: Callable[[], str] = str,
        times: LeaseTimes | None = None,
        tick: Callable[[], float],
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cluster, self._namespace, self._name = cluster, namespace, name
        self._identity, self._times = identity, times or LeaseTimes()
        self._tick, self._wall, self._selection = tick, wall, selection
        self._odd = ""  # what the holder selects, told of because it is something else
        self._held_until = float("-inf")
        self._follows = self._may_hold = False
        self._seen: tuple[Any, ...] | None = None
        self._seen_at = 0.0

    @property
    def leads(self) -> bool:
        """Whether this process may act now."""
        return self._tick() < self._held_until

    @property
    def stands_by(self) -> bool:
        """Whether this process would lead if the one that does went away."""
        return self._follows and not self.leads

    async def acquire(self) -> None:
        """Return once this process leads."""
        while not await self.step():  # noqa: ASYNC110  what is waited for is in a server
            await asyncio.sleep(self._times.retry * random.uniform(0.8, 1.2))  # noqa: S311
        _log.info("leading: lease=%s/%s identity=%s", self._namespace, self._name, self._identity)

    async def hold(self) -> None:
        """Renew; return when this process does not lead any more."""
        while self.leads:
            left = self._held_until - self._tick()
            await asyncio.sleep(max(min(self._times.retry, left), 0.0))
            if self.leads and not await self._in_time():
                break
        _log.error("not leading any more: lease=%s/%s", self._namespace, self._name)

    async def release(self) -> None:
        """Let the next one in at once; a lease that is another's by now is left alone.

        To be called when neither `acquire` nor `hold` is awaited any more. A request of theirs that
        was cut short may have gone through all the same, or go through still.
        """
        self._held_until, self._follows = float("-inf"), False
        if not self._may_hold:
            return
        try:
            async with asyncio.timeout(_LAST_WORD):
                while not await self._give_back():
                    _log.info("the lease was written meanwhile, and is given back again")
        except (ClusterError, TimeoutError) as error:
            why = str(error) or "no answer in time"
            _log.info("the lease was not given back: error=%s", why)

    async def _give_back(self) -> bool:
        """Say whether it is free; False if the lease was written in between."""
        found = await self._cluster.get("Lease", self._namespace, self._name)
        if found is None or _holder(found) != self._identity:
            return True
        return await self._write(found, holder="")

    async def step(self) -> bool:
        """Try once to take or renew; say whether this process leads."""
        # From before the request was sent: when the server took it, nobody here can know.
        begun = self._tick()
        try:
            taken = await self._try()
        except ClusterError as error:
            _log.warning("the lease could not be read or written: error=%s", error)
            self._follows = False
            return self.leads
        self._follows = not taken
        if taken:
            self._held_until = begun + self._times.give_up
        return self.leads

    async def _in_time(self) -> bool:
        """Renew, if that does not take longer than this process may act."""
        try:
            async with asyncio.timeout(max(self._held_until - self._tick(), 0.0)):
                return await self.step()
        except TimeoutError:
            return False

    async def _try(self) -> bool:
        found = await self._cluster.get("Lease", self._namespace, self._name)
        if found is None:
            return await self._create()
        holder = _holder(found)
        if holder == self._identity:
            return await self._write(found, holder=self._identity)
        if holder and not self._lapsed(found):
            # Whoever holds it is not this process, whatever this process believed.
            self._held_until = float("-inf")
            self._compare(found)
            return False
        return await self._write(found, holder=self._identity)

    def _compare(self, found: Object) -> None:
        """Two operators of one Lease are one at a time: the part of the other is nobody's."""
        theirs = (found["metadata"].get("annotations") or {}).get(SELECTION_ANNOTATION, "")
        own = self._selection()
        if theirs != self._odd and not is_same_rule(theirs, own):
            _log.warning(
                "the holder of the lease looks after other jobs: lease=%s/%s theirs=%s own=%s; if "
                "this is no upgrade, give each operator a --lease-name of its own",
                self._namespace,
                self._name,
                theirs or "all",
                own,
            )
        self._odd = theirs

    def _lapsed(self, found: Object) -> bool:
        """Whether it was seen unchanged for as long as it lasts."""
        spec = found.get("spec") or {}
        seen = (found["metadata"]["uid"], spec.get("renewTime"), spec.get("leaseTransitions"))
        now = self._tick()
        if (*seen, _holder(found)) != self._seen:
            self._seen, self._seen_at = (*seen, _holder(found)), now
        lasts = max(float(spec.get("leaseDurationSeconds") or 0), self._times.duration)
        return now - self._seen_at >= lasts

    async def _create(self) -> bool:
        spec = self._spec(self._identity, 0, fresh=True)
        meta = {"name": self._name, "namespace": self._namespace, **self._notes()}
        kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        self._may_hold = True
        try:
            await self._cluster.create({**kind, "metadata": meta, "spec": spec})
        except NameTaken:
            return False
        return True

    async def _write(self, found: Object, *, holder: str) -> bool:
        meta, spec = found["metadata"], found.get("spec") or {}
        fresh = _holder(found) != holder
        count = int(spec.get("leaseTransitions") or 0) + (fresh and bool(holder))
        version = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
        spec = self._spec(holder, count, fresh=fresh)
        patch = {"metadata": {**version, **self._notes()}, "spec": spec}
        self._may_hold |= bool(holder)
        try:
            await self._cluster.patch("Lease", self._namespace, self._name, patch)
        except Conflict:
            return False
        return True

    def _notes(self) -> Object:
        said = self._selection()
        return {"annotations": {SELECTION_ANNOTATION: said}} if said else {}

    def _spec(self, holder: str, transitions: int, *, fresh: bool) -> Object:
        now = self._wall().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec: Object = {
            "holderIdentity": holder or None,
            "leaseDurationSeconds": max(1, round(self._times.duration)),
            "renewTime": now,
            "leaseTransitions": transitions,
        }
        return {**spec, "acquireTime": now} if fresh else spec


def _holder(found: Object) -> str:
    return str((found.get("spec") or {}).get("holderIdentity") or "")
