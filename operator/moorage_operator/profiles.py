"""Which defaults of many jobs a job goes by, and what its spec is with them. Pure.

A job keeps the values of its profile in its status, as they were when it took them. So an edit of a
profile stops no stream: what needs no restart is taken at once, and what needs one waits, whole,
until the job starts anew in any case. That is an edit that restarts it, moorage.dev/restart, or a
suspended job that is to run again. Only what it says of what is kept does not wait.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from moorage_api import JobSpec, Problem
from moorage_api.changes import classify, is_same_job
from moorage_api.fleet import (
    NO_PROFILE,
    Fleet,
    Limits,
    asks_for_more,
    digest_of,
    limit_problems,
)
from moorage_api.status import JobStatus, ProfileStatus
from moorage_operator.objects import Judged, JudgedSpecs, KnownSpec, known_spec
from moorage_operator.ports import Object
from moorage_operator.world import Meta, Revision, restart_asked

_RESTARTS = ("Upgrade", "Redeploy")

_KEPT = ("deletion", "savepoint")
"""Of a spec, what of a job's state is kept. It needs no restart, and what is gone stays gone."""


@dataclass(frozen=True, slots=True)
class Effective:
    """A job's newest spec, with everything that is not said in it filled in."""

    judged: Judged  # with the profile's values, and else as the object says it
    spec: JobSpec | None  # with the backend and the parallelism that hold, too
    digest: str
    problems: tuple[Problem, ...]  # that keep it from being acted on
    beyond: tuple[Problem, ...]  # of profiles and limits, whether they keep it from that or not
    profile: ProfileStatus | None  # what the status is to say of it
    waits: tuple[str, ...] = ()  # fields that other defaults would change, and have to wait
    given_up: JobSpec | None = None  # in place of which `spec` goes on


def effective(
    body: Object,
    meta: Meta,
    specs: JudgedSpecs,
    status: JobStatus,
    revisions: Mapping[str, Revision],
    fleet: Fleet,
    default_backend: str,
    now: datetime,
) -> Effective:
    """The spec that a job is to go by now."""
    retried = restart_asked(meta, status)

    def known(values: Mapping[str, Any]) -> tuple[Judged, KnownSpec]:
        judged = specs.with_defaults(body, _without_backend(values))
        backend, digest = _backend(values) or default_backend, digest_of(values)
        return judged, known_spec(judged, status, revisions, backend, now, digest, retried=retried)

    today = fleet.profile(meta.namespace, _named(body))
    held, waits = status.profile or ProfileStatus(), tuple[str, ...]()
    (judged, found), profile = known(held.values), status.profile
    newest: JobSpec | None = None
    if today.values is not None:
        profile = _shown(today.name, today.values)
    if today.values is not None and today.digest != held.digest:
        another, new = known(today.values)
        if _takes(meta, status, revisions, found.spec, another, new.spec):
            judged, found = another, new
        else:
            waiting = today.digest or NO_PROFILE
            profile = held.model_copy(update={"waiting": waiting})
            newest = new.spec
    elif held.values and _named(body) == NO_PROFILE:
        # The file cannot be used. That none of it counts here is known all the same.
        newest, profile = known({})[1].spec, held.model_copy(update={"waiting": NO_PROFILE})
    spec = found.spec
    if spec is not None and profile is not None and profile.waiting:
        spec = _keeping(spec, newest)
        waits = classify(spec, newest).fields if newest is not None else ()
    limits = fleet.limits(meta.namespace)
    beyond = (*today.problems, *(limit_problems(limits, spec) if spec is not None else ()))
    known_limits = None if fleet.problems else limits
    counts = beyond and _asks_anew(status, revisions, spec, known_limits)
    problems = (*judged.problems, *(beyond if counts else ()))
    return Effective(
        judged, spec, found.digest, problems, beyond, profile, waits, given_up=found.given_up
    )


def values_of(body: Object, fleet: Fleet) -> Mapping[str, Any]:
    """The values of a profile that a job goes by, by its object alone; none if nobody knows."""
    status = _mapping(body.get("status"))
    held = _mapping(_mapping(status.get("profile")).get("values"))
    if not _mapping(status.get("attempt")).get("number"):
        today = fleet.profile(body["metadata"].get("namespace", ""), _named(body)).values
        held = today if today is not None else held
    return _without_backend(held)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _asks_anew(
    status: JobStatus,
    revisions: Mapping[str, Revision],
    spec: JobSpec | None,
    limits: Limits | None,
) -> bool:
    """Whether a spec asks for what limits are there to judge, and not for what runs already.

    What runs was allowed once. It goes on, comes back after a failure, and can be told to stop, to
    take a snapshot or to become smaller, whatever a fleet file says by now.
    """
    running = revisions.get(status.attempt.revision)
    rests = status.reconciliation.desired_state == "Suspended" or status.finished_at is not None
    if running is None or spec is None or rests:
        return True
    if classify(running.spec, spec).kind in _RESTARTS:
        return True
    return asks_for_more(limits, running.spec, spec)


def _takes(
    meta: Meta,
    status: JobStatus,
    revisions: Mapping[str, Revision],
    old: JobSpec | None,
    judged: Judged,
    new: JobSpec | None,
) -> bool:
    """Whether the job goes by the new values from now on."""
    if status.attempt.number == 0:
        return True
    if restart_asked(meta, status):
        return True
    if old is None:
        return False
    if old.desired_state == "Running" and status.reconciliation.desired_state == "Suspended":
        return True
    running = revisions.get(status.attempt.revision)
    if running is not None and classify(running.spec, old).kind in _RESTARTS:
        return True
    return new is not None and not judged.problems and is_same_job(old, new)


def _keeping(spec: JobSpec, newest: JobSpec | None) -> JobSpec:
    """The spec with what values that wait say of what is kept.

    Args:
        newest: the spec with those; None where it cannot be read: state is kept then, as it may
            have taken a Delete back.
    """
    if newest is None:
        deletion = spec.deletion.model_copy(update={"policy": "Retain"})
        return spec.model_copy(update={"deletion": deletion})
    return spec.model_copy(update={name: getattr(newest, name) for name in _KEPT})


def _shown(name: str, values: Mapping[str, Any]) -> ProfileStatus | None:
    return ProfileStatus(name=name, digest=digest_of(values), values=values) if name else None


def _named(body: Object) -> str | None:
    spec = body.get("spec")
    named = spec.get("profile") if isinstance(spec, dict) else None
    return named if isinstance(named, str) else None


def _backend(values: Mapping[str, Any]) -> str:
    """Its state backend is a default as the operator's is: a job that has begun keeps its own."""
    return str(_mapping(values.get("state")).get("backend") or "")


def _without_backend(values: Mapping[str, Any]) -> Mapping[str, Any]:
    if not _backend(values):
        return values
    return {**values, "state": {k: v for k, v in values["state"].items() if k != "backend"}}
