"""From bodies of our objects to the typed models, with everything that is wrong in words.

Jobs, snapshots, and old specs in ControllerRevisions. What a person can get wrong becomes
`Problem`s; what a newer operator has written is left alone. Pure, but that the specs of a whole
list are judged in a thread.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec
from pydantic import ValidationError

from moorage_api import API_VERSION, KIND, JobSpec, Problem, cluster_problems
from moorage_api.changes import (
    breaks_no_more,
    is_same_job,
    refreshed,
    spec_hash,
    version_hash,
)
from moorage_api.compute import Scaling
from moorage_api.explain import judge
from moorage_api.fleet import digest_of, with_defaults
from moorage_api.job import StatefulSparkJob
from moorage_api.problems import field_name
from moorage_api.snapshot import FINAL_STATES, JobRef, SnapshotSpec, SnapshotStatus
from moorage_api.status import STATUS_FORMAT, JobStatus, read_status
from moorage_api.stored import read_stored
from moorage_operator.children import names
from moorage_operator.podviews import moment
from moorage_operator.ports import Object
from moorage_operator.world import Meta, Revision, SnapshotView


def meta_of(body: Object) -> Meta:
    """The metadata that decisions look at."""
    meta = body["metadata"]
    return Meta(
        name=meta["name"],
        namespace=meta.get("namespace", ""),
        uid=meta["uid"],
        generation=meta.get("generation", 0),
        resource_version=meta["resourceVersion"],
        labels=meta.get("labels") or {},
        annotations=meta.get("annotations") or {},
        finalizers=tuple(meta.get("finalizers") or ()),
        created_at=moment(meta.get("creationTimestamp")),
        deleted_at=moment(meta.get("deletionTimestamp")),
    )


def read_job_spec(body: Object) -> tuple[JobSpec | None, tuple[Problem, ...]]:
    """The spec with its defaults, and what is wrong with it; None if it cannot be read as one.

    Definitions may be newer than this operator, and fill in what it does not know: that is passed
    over. The API server has taken out whatever no definition knows.
    """
    meta = {key: body["metadata"].get(key) for key in ("name", "namespace")}
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": meta,
        "spec": body.get("spec") or {},
    }
    verdict = judge(document, unknown="ignore")
    if isinstance(verdict, StatefulSparkJob):
        return verdict.spec, tuple(cluster_problems(verdict))
    return None, tuple(Problem(field_name(f.path), f.reason, f.fix) for f in verdict)


def read_job_status(body: Object) -> tuple[JobStatus, str]:
    """The status, and why this operator must leave the object alone; empty if it need not."""
    raw = body.get("status") or {}
    newer = _newer(body)
    if newer:
        return JobStatus(), newer
    try:
        return read_status(raw), ""
    except ValidationError as error:
        return JobStatus(), _garbled(error)


def is_newer(body: Object) -> bool:
    """Whether a newer operator wrote the object's status."""
    return bool(_newer(body))


def read_snapshot(body: Object) -> tuple[SnapshotView | None, tuple[Problem, ...], str]:
    """The snapshot's view, what is wrong with its spec, and why it must be left alone.

    A spec that rules refuse has a view as it stands, and one that cannot be read at all with the
    job that it names and defaults otherwise; there is none only if the status must be left alone.
    """
    raw = body.get("status") or {}
    trouble = _newer(body)
    try:
        status = SnapshotStatus() if trouble else SnapshotStatus.model_validate(raw)
    except ValidationError as error:
        trouble = _garbled(error)
    if trouble:
        return None, (), trouble
    spec, problems = _snapshot_spec(msgspec.json.encode(body.get("spec") or {}))
    return SnapshotView(meta_of(body), spec, status), problems, ""


@lru_cache(maxsize=4096)
def _snapshot_spec(text: bytes) -> tuple[SnapshotSpec, tuple[Problem, ...]]:
    """Of a job's snapshots most have the same."""
    raw = msgspec.json.decode(text)
    try:
        return SnapshotSpec.model_validate(raw, extra="ignore"), ()
    except ValidationError as error:
        problems = tuple(
            Problem(
                field_name(("spec", *details["loc"])), details["msg"], "correct it in a new object"
            )
            for details in error.errors()
        )
    try:
        # Of one that was taken long ago: its data and its age go by what it says.
        return read_stored(SnapshotSpec, raw), problems
    except ValueError:
        reference = JobRef.model_construct(name=job_name_of(raw))
        return SnapshotSpec.model_construct(job_ref=reference), problems


def is_under_way(body: Object) -> bool:
    """Whether a snapshot has not come to its end, or its object is being deleted."""
    if body["metadata"].get("deletionTimestamp"):
        return True
    return (body.get("status") or {}).get("state") not in FINAL_STATES


def is_controlled_by(found: Object, uid: str) -> bool:
    """Whether the object is one that the operator made for the object of this uid."""
    owners = found["metadata"].get("ownerReferences") or ()
    return any(owner.get("controller") and owner.get("uid") == uid for owner in owners)


def job_name_of(spec: dict[str, Any]) -> str:
    """The job that a snapshot's spec names, however wrong the rest of it is; empty if none."""
    reference = spec.get("jobRef")
    name = reference.get("name") if isinstance(reference, dict) else None
    return name if isinstance(name, str) else ""


def _newer(body: Object) -> str:
    known = STATUS_FORMAT if body["kind"] == "StatefulSparkJob" else _SNAPSHOT_FORMAT
    number = (body.get("status") or {}).get("format", known)
    if isinstance(number, int) and number <= known:
        return ""
    return (
        f"the status has format {number} and this operator knows up to {known}; "
        "install the operator that wrote it, or a newer one"
    )


def _garbled(error: ValidationError) -> str:
    first = error.errors()[0]
    return (
        f"the status cannot be read: {field_name(('status', *first['loc']))}: {first['msg']}; "
        "no operator wrote that: remove the status, and it is made anew from pods and store"
    )


_SNAPSHOT_FORMAT = 1
_AT_ONCE = 32
_PROFILES_KEPT = 2
"""Of a job: the one that it goes by, and the one that is to come."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A spec of one generation of one object."""

    uid: str
    generation: int | None
    spec: JobSpec | None  # with defaults; None if it cannot be read as one
    digest: str  # its hash; empty without a spec
    problems: tuple[Problem, ...]  # what is wrong with it


class JudgedSpecs:
    """What was judged of each job's newest generation."""

    def __init__(self) -> None:
        self._known: dict[str, Judged] = {}
        # With a profile's values: by job, then by the hash of those
        self._with_defaults: dict[str, dict[str, Judged]] = {}

    def of(self, body: Object) -> Judged:
        """The job's spec, judged now unless it was before."""
        who = _who(body)
        known = self._known.get(who)
        if known is None or not _is_of(known, body):
            known = self._known[who] = _judge(body)
        return known

    def with_defaults(self, body: Object, values: Mapping[str, Any]) -> Judged:
        """The job's spec with a profile's values where it says none of its own."""
        if not values:
            return self.of(body)
        known, key = self._with_defaults.setdefault(_who(body), {}), digest_of(values)
        for old in [old for old, one in known.items() if not _is_of(one, body)]:
            del known[old]
        if key not in known:
            if len(known) >= _PROFILES_KEPT:
                known.clear()
            spec = with_defaults(body.get("spec") or {}, values)
            known[key] = _judge({**body, "spec": spec})
        return known[key]

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
        self._with_defaults.pop(who, None)

    def _knows(self, body: Object) -> bool:
        known = self._known.get(_who(body))
        return known is not None and _is_of(known, body)


def _all_judged(bodies: Sequence[Object]) -> list[tuple[str, Judged]]:
    return [(_who(body), _judge(body)) for body in bodies]


def _judge(body: Object) -> Judged:
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


HASH_ANNOTATION = "moorage.dev/spec-hash"
PROFILE_ANNOTATION = "moorage.dev/profile-hash"

_TRIALS = ("Preflight", "Standby")
"""Steps in which a new version is tried, and the old one runs."""


def revision_body(
    meta: Meta, name: str, number: int, digest: str, spec: JobSpec, profile: str = ""
) -> Object:
    """The ControllerRevision that keeps a spec, with a hash of the profile that is in it."""
    notes = {HASH_ANNOTATION: digest, **({PROFILE_ANNOTATION: profile} if profile else {})}
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": name,
            "namespace": meta.namespace,
            "labels": names.labels(meta),
            "annotations": notes,
            "ownerReferences": [dict(names.owner_reference(meta))],
        },
        "revision": number,
        "data": {"spec": spec.model_dump(mode="json", by_alias=True, exclude_none=True)},
    }


def read_revision(body: Object) -> Revision | None:
    """The spec in a ControllerRevision, whatever rules there are by now; None if it is none."""
    meta, data = body["metadata"], body.get("data") or {}
    try:
        spec = read_stored(JobSpec, data.get("spec"))
    except ValueError:
        return None
    notes = meta.get("annotations") or {}
    digest, profile = notes.get(HASH_ANNOTATION) or spec_hash(spec), notes.get(PROFILE_ANNOTATION)
    return Revision(meta["name"], int(body.get("revision") or 0), digest, spec, profile or "")


@dataclass(frozen=True, slots=True)
class KnownSpec:
    """The spec that a job is to go by."""

    spec: JobSpec | None  # with the state backend and the parallelism that hold
    digest: str
    # What the object asks for, where that version was given up and `spec` goes on in its place
    given_up: JobSpec | None = None


def known_spec(
    judged: Judged,
    status: JobStatus,
    revisions: Mapping[str, Revision],
    default_backend: str,
    now: datetime,
    profile: str = "",
    *,
    retried: bool = False,
) -> KnownSpec:
    """The newest spec, or what goes on in its place.

    Args:
        profile: the hash of the profile that it was judged with.
        retried: whether a person wants to try it again, should it have been given up.
    """
    if judged.spec is None:
        return KnownSpec(None, judged.digest)
    generation = judged.generation or 0
    newest = with_backend(judged.spec, status, revisions, default_backend)
    if not retried and status.lineage_owner_uid == judged.uid:
        found = in_place_of(newest, status, revisions, generation, now)
        if found is not None:
            spec, given_up = found
            # It is of no generation: nobody wrote it.
            return KnownSpec(spec, same_hash(spec, spec_hash(spec), -1, revisions), given_up)
    spec = with_parallelism(newest, status, revisions, now)
    same = spec.state.effective_backend == judged.spec.state.effective_backend
    same = same and spec.scaling.parallelism == judged.spec.scaling.parallelism
    digest = judged.digest if same else spec_hash(spec)
    return KnownSpec(spec, same_hash(spec, digest, generation, revisions, profile))


def in_place_of(
    newest: JobSpec,
    status: JobStatus,
    revisions: Mapping[str, Revision],
    generation: int,
    now: datetime,
) -> tuple[JobSpec, JobSpec] | None:
    """What goes on in place of a newest version that was given up, and that; None if none was.

    It is the last good version with what needs no other one of the newest: its policies, and its
    parallelism, which autoscalers write. A rollback first goes back to what was stable as it was.
    """
    done, operation = status.reconciliation, status.operation
    if not done.rejected_spec_hash or (operation is not None and operation.type == "Rollback"):
        return None
    given_up = _widened(newest, asked_parallelism(newest.scaling, status))
    if not done.gave_up(version_hash(given_up), given_up.scaling.parallelism, generation):
        return None
    names = (status.attempt.revision, done.current_revision, done.stable_revision)
    known = (revisions[name].spec for name in names if name in revisions)
    widths = ((one, one.scaling.parallelism) for one in known)
    good = next((one for one, width in widths if not done.gave_up(version_hash(one), width)), None)
    if good is None:
        return None
    wider = with_parallelism(newest, status, revisions, now).scaling.parallelism
    # One whose parallelism alone was given up keeps its own.
    stored = good if done.rejected_parallelism else _widened(good, wider)
    for one in (stored, good):
        spec = refreshed(one, newest)
        if spec is not one and breaks_no_more(one, good):
            return spec, given_up
    return None


def with_backend(
    spec: JobSpec, status: JobStatus, revisions: Mapping[str, Revision], default: str
) -> JobSpec:
    """The spec with the state backend that holds: its own, its state's, else the cluster's default.

    So another default of the cluster changes no job that has begun.
    """
    if spec.state.backend is not None:
        return spec
    attempt, known = status.attempt, revisions.get(status.attempt.revision)
    name, ran = status.reconciliation.state_backend, attempt.running_since is not None
    # An attempt that ended and never ran left no state: perhaps the default was what it failed of.
    begun = status.snapshots.last_checkpoint is not None or not attempt.outcome
    # What ran is the truth: an operator of a release before moves a job and leaves the record.
    if known is not None and (ran or (not name and begun)):
        name = known.spec.state.effective_backend
    state = spec.state.model_copy(update={"backend": name or default})
    return spec.model_copy(update={"state": state})


def with_parallelism(
    spec: JobSpec, status: JobStatus, revisions: Mapping[str, Revision], now: datetime
) -> JobSpec:
    """The spec with the number of subtasks that holds; the spec itself where that is its own."""
    number = asked_parallelism(spec.scaling, status)
    if tried := tried_parallelism(spec, status, revisions):
        number = tried
    elif held_until(spec, status, revisions, now) is not None:
        number = revisions[status.attempt.revision].spec.scaling.parallelism
    return _widened(spec, number)


def tried_parallelism(spec: JobSpec, status: JobStatus, revisions: Mapping[str, Revision]) -> int:
    """That of the version which is tried, takes over or restores, if the spec is it; else 0.

    Another number alone would begin all that anew, and autoscalers write one every few minutes.
    """
    operation, attempt, name = status.operation, status.attempt, ""
    if operation is not None and (operation.step in _TRIALS or operation.standby is not None):
        name = operation.target_revision
    elif attempt.running_since is None and not attempt.outcome:
        # One that stood by leads, and is warm: the stream runs in a few seconds.
        name = attempt.revision if attempt.stood_by or _restores(status) else ""
    tried = revisions.get(name)
    if tried is None or version_hash(tried.spec) != version_hash(spec):
        return 0
    return tried.spec.scaling.parallelism


def _restores(status: JobStatus) -> bool:
    """Whether all executors of a start are there, and it restores: no start anew is faster."""
    there = status.executors
    return status.job.state == "restoring" and 0 < there.desired <= there.ready


def held_until(
    spec: JobSpec, status: JobStatus, revisions: Mapping[str, Revision], now: datetime
) -> datetime | None:
    """Until when the number that runs stays, as it has just changed; None if it need not.

    The autoscaler has a cooldown of its own.
    """
    scaling, changed = spec.scaling, status.scaling.changed_at
    running = revisions.get(status.attempt.revision)
    if running is None or changed is None or _advised(scaling, status):
        return None
    if max(scaling.parallelism, scaling.floor) == running.spec.scaling.parallelism:
        return None
    until = changed + scaling.cooldown.timedelta
    return until if now < until else None


def asked_parallelism(scaling: Scaling, status: JobStatus) -> int:
    """The number of subtasks that is asked for, by whomever."""
    return _advised(scaling, status) or max(scaling.parallelism, scaling.floor)


def _widened(spec: JobSpec, number: int) -> JobSpec:
    if number == spec.scaling.parallelism:
        return spec
    scaling = spec.scaling.model_copy(update={"parallelism": number})
    return spec.model_copy(update={"scaling": scaling})


def _advised(scaling: Scaling, status: JobStatus) -> int:
    """The autoscaler's number, where it holds; else 0."""
    known = status.scaling.autoscaler
    if not scaling.autoscaler.enabled or known is None or known.dry_run:
        return 0
    # Who edits the spec's number decides anew.
    if known.declared != scaling.parallelism:
        return 0
    return min(known.target, scaling.max_parallelism)


def same_hash(
    spec: JobSpec,
    digest: str,
    generation: int,
    revisions: Mapping[str, Revision],
    profile: str = "",
) -> str:
    """The hash by which a spec is known: that of the revision that asks for the same job, if any.

    A hash is only a name. Another release may hash otherwise, know other fields, or have another
    default; where nobody has edited the object since its revision was made, or the edit asks for
    nothing else, the job is the one that runs, whatever its hash would be today.

    Args:
        revisions: those that the status names, of this very object.
    """
    if any(one.spec_hash == digest for one in revisions.values()):
        return digest
    # A job that never ran follows the cluster's default to another backend without any edit.
    # And an autoscaler goes to another parallelism, and a restart takes another profile.
    backend, width = spec.state.effective_backend, spec.scaling.parallelism
    unedited = (
        one
        for one in revisions.values()
        if one.number == generation
        and one.spec.state.effective_backend == backend
        and one.spec.scaling.parallelism == width
        and one.profile == profile
    )
    equal = (one for one in revisions.values() if is_same_job(one.spec, spec))
    found = next(unedited, None) or next(equal, None)
    return found.spec_hash if found is not None else digest
