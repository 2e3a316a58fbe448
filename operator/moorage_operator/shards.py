"""Whose a job is: what an operator selects, under which Lease it acts, and how a job changes hands.

A shard is what one Lease covers: namespaces, and one value of the label `moorage.dev/shard`. A
job's status names the Lease that it is looked after under, and only who holds that one acts on it.
So of two operators that select a job by mistake, or between which it moves, never both act:

- Who has a job acts on it for two thirds of the time that a Lease lasts, at most, after it *asked*
  for the object that showed it to be its own (`Tenure`).
- Who takes over writes its own Lease and the former one (`takenFrom`) into the status, and acts
  only after it has seen that there for as long as a Lease lasts. No two clocks are compared.

When to take over is a question of manners, not of safety: when nobody holds the other Lease, or its
holder does not select the job, as it says on the Lease (`Selection.text`).
"""

import json
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from moorage_api.status import OperatorView
from moorage_operator.children.names import SHARD_LABEL
from moorage_operator.plan import ActionFailed
from moorage_operator.ports import Cluster, Conflict, Forbidden, Kind, NotFound, Object
from moorage_operator.world import Meta, SnapshotView

_log = logging.getLogger("moorage.operator")

SELECTION_ANNOTATION = "moorage.dev/selection"
"""Of a Lease: what its holder selects."""

_FORMAT = 1
_FRESH = 1.0
_TOLD_AFTER = 4.0
_LONGEST = 150_000
"""Characters of names of namespaces: annotations may have 256 KiB, with what is between names."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The jobs of one operator. What belongs to a job has its label, and is selected with it.

    Attributes:
        namespaces: all if empty, but for `labels`.
        shard: the value of the label; empty for the operator of all jobs that no other shard has.
        shards: the values that have an operator of their own; without any the label means nothing.
        labels: the selector that found the namespaces, which are others at another time, or none.
    """

    namespaces: Collection[str] = ()
    shard: str = ""
    shards: tuple[str, ...] = ()
    labels: str = ""

    @property
    def selector(self) -> str:
        """As the API server is asked; empty if the label does not matter."""
        if self.shard:
            return f"{SHARD_LABEL}={self.shard}"
        return f"{SHARD_LABEL} notin ({','.join(sorted(self.shards))})" if self.shards else ""

    def reaches(self, namespace: str) -> bool:
        """Whether anything in a namespace may be selected."""
        return not (self.namespaces or self.labels) or namespace in self.namespaces

    def has(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether an object is selected."""
        if not self.reaches(namespace):
            return False
        shard = labels.get(SHARD_LABEL, "")
        return shard == self.shard if self.shard else shard not in self.shards

    @property
    def text(self) -> str:
        """As it stands on the Lease."""
        if self.labels and sum(map(len, self.namespaces)) > _LONGEST:
            # A Lease has no room for them. Whoever reads that all are selected takes nothing over.
            return replace(self, namespaces=(), labels="").text
        said = {
            "format": _FORMAT,
            "namespaces": sorted(self.namespaces),
            "shard": self.shard,
            "shards": sorted(self.shards),
            # A release that does not know it takes no namespaces for all: it waits, and takes none.
            **({"labels": self.labels} if self.labels else {}),
        }
        return json.dumps(said, separators=(",", ":"))


def joined(*selectors: str) -> str:
    """One selector for what all of them find; empty ones find everything."""
    return ",".join(one for one in selectors if one)


def read_selection(lease: Object) -> Selection:
    """What the holder of a Lease selects; everything, where that cannot be read."""
    return _selection((lease["metadata"].get("annotations") or {}).get(SELECTION_ANNOTATION, ""))


def _selection(text: str) -> Selection:
    try:
        found = json.loads(text)
        if found["format"] != _FORMAT:
            return Selection()
        namespaces, shards = tuple(found["namespaces"]), tuple(found["shards"])
        return Selection(namespaces, str(found["shard"]), shards, str(found.get("labels", "")))
    except (ValueError, KeyError, TypeError, RecursionError):
        return Selection()


def is_same_rule(one: str, other: str) -> bool:
    """Whether what stands on Leases selects alike; which namespaces have a label may differ."""
    if one == other:
        return True
    first, second = (_selection(text) for text in (one, other))
    return bool(first.labels) and replace(first, namespaces=()) == replace(second, namespaces=())


@dataclass(frozen=True, slots=True)
class Standing:
    """Whose a job is."""

    ours: bool
    # Seconds after which to look again whether it is; None if it is not selected
    wait: float | None = None
    claim: OperatorView | None = None  # what to write into the status first, if anything
    told: str = ""  # what a person should hear of; empty if nothing


OURS = Standing(ours=True)
NOT_SELECTED = Standing(ours=False)


@dataclass(frozen=True, slots=True)
class _Read:
    sent: float
    received: float
    lease: Object | None
    refused: str = ""


@dataclass(slots=True)
class Ownership:
    """One process's word on whose jobs are.

    Attributes:
        lease: `namespace/name` of the Lease that this process acts under.
        lasts: seconds that a Lease lasts, here.
        tick: seconds that only ever grow: the loop's.
    """

    cluster: Cluster
    selection: Selection
    lease: str
    lasts: float
    tick: Callable[[], float]
    _held: dict[str, float] = field(default_factory=dict)  # jobs of others, by uid, since when
    _taken: dict[str, float] = field(default_factory=dict)  # jobs that are being taken over
    _leases: dict[str, _Read] = field(default_factory=dict)
    _unchanged: dict[str, tuple[tuple[Any, ...], float]] = field(default_factory=dict)
    _dropped: set[str] = field(default_factory=set)  # jobs whose status cannot name anybody

    @property
    def waiting(self) -> int:
        """How many jobs are selected here, and looked after under another Lease."""
        return len(self._held)

    @property
    def mine(self) -> OperatorView:
        """What the status of this operator's jobs says."""
        return OperatorView(lease=self.lease)

    def keeps(self, job: Meta, said: OperatorView | None) -> bool:
        """Whether a job with this in its status is this operator's, as far as a status can say."""
        if not self.selection.has(job.namespace, job.labels):
            return False
        return job.uid in self._dropped if said is None else said == self.mine

    async def judge(self, job: Meta, said: OperatorView | None, *, known: bool) -> Standing:
        """Whose a job is that was just read, with this in its status.

        Args:
            known: whether some operator has looked after it before; see `is_known`.

        Raises:
            ClusterError: the Lease that it names could not be read.
        """
        if not self.selection.has(job.namespace, job.labels):
            self.forget(job.uid)
            return NOT_SELECTED
        if said is None and known and job.uid not in self._dropped:
            # Somebody deleted who has it, and passes of that one may go on for a while.
            said = self.mine.model_copy(update={"taken_from": self.lease})
            return Standing(ours=False, wait=0.0, claim=said)
        if said is None or said == self.mine:
            self._held.pop(job.uid, None)
            self._taken.pop(job.uid, None)
            return OURS
        if said.lease == self.lease:
            return await self._taking(job, said.taken_from)
        return await self._of_other(job, said.lease)

    def forget(self, uid: str) -> None:
        """The job is not waited for."""
        self._held.pop(uid, None)
        self._taken.pop(uid, None)
        self._dropped.discard(uid)

    async def take(self, body: Object, claim: OperatorView) -> bool:
        """Write a claim into the job's status, and nothing else; False if the job has changed.

        Definitions that are older than this operator drop it: only the Lease protects such a job.
        """
        meta = body["metadata"]
        status = {**(body.get("status") or {}), "operator": claim.to_json()}
        try:
            written = await self.cluster.replace_status({**body, "status": status})
        except (Conflict, NotFound):
            return False
        self._taken.pop(meta["uid"], None)
        if operator_of(written) is None:
            self._dropped.add(meta["uid"])
        name = f"{meta['namespace']}/{meta['name']}"
        _log.info("claimed: job=%s lease=%s from=%s", name, claim.lease, claim.taken_from)
        return True

    async def _taking(self, job: Meta, other: str) -> Standing:
        """Passes of whoever had it may go on until they have to look again."""
        self._held.pop(job.uid, None)
        since = self._taken.setdefault(job.uid, self.tick())
        read = await self._read(other)
        left = since + self._lasts(read.lease) - self.tick()
        if left > 0:
            return Standing(ours=False, wait=left)
        return Standing(ours=False, wait=0.0, claim=self.mine)

    async def _of_other(self, job: Meta, lease: str) -> Standing:
        now = self.tick()
        # Should it be taken over again, its next operator is to be waited for anew.
        self._taken.pop(job.uid, None)
        begun = self._held.setdefault(job.uid, now)
        read = await self._read(lease)
        if not read.refused and self._is_left(job, lease, read):
            claim = OperatorView(lease=self.lease, taken_from=lease)
            return Standing(ours=False, wait=0.0, claim=claim)
        # Somebody lives and has it: people hear of it when it is no upgrade.
        long = read.refused or now - begun > _TOLD_AFTER * self.lasts
        told = self._told(lease, read) if long else ""
        return Standing(ours=False, wait=2 * self.lasts, told=told)

    def _is_left(self, job: Meta, lease: str, read: _Read) -> bool:
        """Whether nobody holds the Lease any more, or its holder does not look after the job."""
        if read.lease is None or not _holder(read.lease):
            return True
        if not read_selection(read.lease).has(job.namespace, job.labels):
            return True
        spec = read.lease["spec"]
        seen = (read.lease["metadata"]["uid"], _holder(read.lease), spec.get("renewTime"))
        key, since = self._unchanged.setdefault(lease, (seen, read.received))
        if key != seen:
            self._unchanged[lease] = (seen, read.received)
            return False
        return read.sent - since >= self._lasts(read.lease)

    async def _read(self, lease: str) -> _Read:
        """Of so many jobs that wait for one Lease, one asks."""
        known = self._leases.get(lease)
        if known is not None and self.tick() - known.sent < _FRESH:
            return known
        sent = self.tick()
        namespace, _, name = lease.partition("/")
        try:
            found = await self.cluster.get("Lease", namespace, name)
        except Forbidden as error:
            read = _Read(sent, self.tick(), None, refused=str(error))
        else:
            read = _Read(sent, self.tick(), found)
        self._leases[lease] = read
        return read

    def _lasts(self, lease: Object | None) -> float:
        spec = (lease or {}).get("spec") or {}
        return max(self.lasts, float(spec.get("leaseDurationSeconds") or 0))

    def _told(self, lease: str, read: _Read) -> str:
        why = read.refused or f"holder={_holder(read.lease or {})}"
        return (
            "another operator looks after this job, which this one is set up for as well: "
            f"lease={lease} own={self.lease} {why}; see that no two are set up for the same "
            "namespaces and shards; if the other one is gone and its Lease cannot be read here, "
            "delete .status.operator"
        )


def _holder(lease: Object) -> str:
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


@dataclass(slots=True)
class Tenure:
    """For how long a pass may act on a job, since it asked for what showed that it may."""

    ownership: Ownership
    job: Meta
    since: float

    async def until(self) -> float:
        """When it ends, on the loop's clock; looked at again once a third of it is over.

        Raises:
            ActionFailed: the job is not this operator's any more.
            ClusterError: it could not be read.
        """
        own, job = self.ownership, self.job
        lasts = own.lasts * 2 / 3
        if own.tick() - self.since > lasts / 3:
            sent = own.tick()
            found = await own.cluster.get("StatefulSparkJob", job.namespace, job.name)
            if found is None or found["metadata"]["uid"] != job.uid:
                raise ActionFailed("the job's object is gone")
            if not own.keeps(replace(job, labels=_labels(found)), operator_of(found)):
                raise ActionFailed("the job is another operator's by now")
            self.since = sent
        return self.since + lasts


def _labels(body: Object) -> Mapping[str, str]:
    return body["metadata"].get("labels") or {}


def is_known(body: Object) -> bool:
    """Whether some operator has looked after a job, whatever its status says of whom."""
    return bool(body.get("status") or body["metadata"].get("finalizers"))


def operator_of(body: Object) -> OperatorView | None:
    """What a job's status says of its operator, whoever wrote it; None if nobody can tell."""
    try:
        return OperatorView.model_validate((body.get("status") or {}).get("operator"))
    except ValidationError:
        return None


async def lead(cluster: Cluster, job: Meta, snapshots: tuple[SnapshotView, ...]) -> bool:
    """Give snapshots their job's shard, by which its operator finds them; say if any lacked it."""
    wanted, changed = job.labels.get(SHARD_LABEL), False
    for one in snapshots:
        if one.meta.labels.get(SHARD_LABEL) == wanted:
            continue
        patch = {"metadata": {"uid": one.meta.uid, "labels": {SHARD_LABEL: wanted}}}
        kind: Kind = "StatefulSparkSnapshot"
        await cluster.patch(kind, one.meta.namespace, one.meta.name, patch)
        changed = True
    return changed
