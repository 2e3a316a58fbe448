"""What an edit of a running job's spec means, and when two specs are the same.

The models say it field by field (`OnChange`); a field that says nothing, and has nothing above it
that does, is an Upgrade. The operator calls this to decide what to do about a new generation, and
to name what it has acted on. Knows no status, no pods, no clock.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from pydantic.fields import FieldInfo

from moorage_api.job import JobSpec
from moorage_api.model import ChangeKind, HashedAsAbsent, Model, OnChange, broken_rules
from moorage_api.quantities import Duration, Quantity

_M = TypeVar("_M", bound=Model)

KINDS: dict[ChangeKind, str] = {
    "Ignore": "nothing; it is looked at when something else makes the job start anew",
    "Live": "the operator goes by the new value at once; the job runs on undisturbed",
    "Rescale": "the job goes on with another width",
    "Upgrade": "the job is stopped and started again from its state, as spec.upgrade says",
    "Redeploy": "the job is stopped and started again from what spec.restore names",
}
"""What each kind of change does, the weakest first; the strongest of an edit decides."""

_ORDER = tuple(KINDS)
_UNHASHED = ("Ignore", "Live")
_SHOWN = 60
"""Characters of a value, its last ones: images have the longest, and end with a tag."""


@dataclass(frozen=True, slots=True)
class SpecChange:
    """The difference between two specs."""

    kind: ChangeKind  # the strongest kind among the fields; Ignore if there are none
    # What differs, as `spec.scaling.parallelism`, in the order of the models
    fields: tuple[str, ...]


def classify(old: JobSpec, new: JobSpec) -> SpecChange:
    """Say what it means to go from `old` to `new`.

    Values count, not spellings: `1Gi` and `1024Mi` are no change, nor is a default written out.
    """
    differences = list(_differences(old, new, "spec", "Upgrade"))
    kinds = [kind for _, kind in differences]
    strongest = max(kinds, key=_ORDER.index, default=_ORDER[0])
    return SpecChange(strongest, tuple(field for field, _ in differences))


def described(old: JobSpec, new: JobSpec) -> tuple[str, ...]:
    """Say what differs, field by field, as `spec.image: a -> b`; what needs no restart is left out.

    Values stand there where they are short words and numbers. Lists and mappings, such as a
    program's arguments and variables, may have secrets in them and are named only.
    """
    found = []
    for field, kind in _differences(old, new, "spec", "Upgrade"):
        if kind in _UNHASHED:
            continue
        shown = [_short(_at(spec, field)) for spec in (old, new)]
        told = f": {shown[0]} -> {shown[1]}" if None not in shown else ""
        found.append(f"{field}{told}")
    return tuple(found)


def _at(spec: JobSpec, path: str) -> Any:
    """The value of a field, by the path that `_differences` gives it."""
    value: Any = spec
    for part in path.split(".")[1:]:
        fields = type(value).model_fields
        name = next(name for name, field in fields.items() if (field.alias or name) == part)
        value = getattr(value, name)
    return value


def _short(value: Any) -> str | None:
    """A value that may be shown; None for one that may not."""
    if value is None:
        return "none"
    if not isinstance(value, str | int | float | Duration | Quantity):
        return None
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= _SHOWN else f"…{text[1 - _SHOWN :]}"


def is_same_job(old: JobSpec, new: JobSpec) -> bool:
    """Whether both ask for the same job: what differs, if anything, needs no restart."""
    return all(kind in _UNHASHED for _, kind in _differences(old, new, "spec", "Upgrade"))


def spec_hash(spec: JobSpec) -> str:
    """Return 64 hexadecimal digits that are equal for specs that ask for the same job.

    Fields whose change is Ignore or Live do not count, nor does how a value is spelt. Values that
    are the models' defaults are left out before hashing: whether the API server has filled them in
    makes no difference, and a field that a later release adds does not change old specs' hashes.
    """
    plain = _plain(spec, "Upgrade")
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def version_hash(spec: JobSpec) -> str:
    """Return the `spec_hash` that a spec has whatever its parallelism.

    Autoscalers and `kubectl scale` write that number, and none of them makes another version.
    """
    scaling = spec.scaling.model_copy(update={"parallelism": 1})
    return spec_hash(spec.model_copy(update={"scaling": scaling}))


def refreshed(stored: JobSpec, newest: JobSpec) -> JobSpec:
    """Return `stored` with those values of `newest` that need no new revision.

    A revision keeps the spec of the moment it was made. What was edited since and is only Ignore or
    Live (a failure policy, restore.allowNonRestoredState) holds for its next start all the same,
    unless that breaks a rule which `stored` does not break by itself: then it is `stored`.
    """
    mixed = _refreshed(stored, newest, "Upgrade")
    # An autoscaler for a maxParallelism that is not there yet: each whole only with its own.
    return mixed if breaks_no_more(mixed, stored) else stored


def breaks_no_more(spec: JobSpec, known: JobSpec) -> bool:
    """Whether every rule that `spec` breaks is broken by `known`, too."""
    return _broken(spec) <= _broken(known)


def _broken(spec: JobSpec) -> set[tuple[Any, ...]]:
    return {(above, violation.paths) for above, violation in broken_rules(spec)}


def declared(
    model: type[Model] = JobSpec, above: str = "spec", kind: ChangeKind = "Upgrade"
) -> Iterator[tuple[str, ChangeKind]]:
    """Yield every field of the spec with its kind, in the order of the models."""
    for name, field in model.model_fields.items():
        path, here = f"{above}.{field.alias or name}", _kind(field, kind)
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Model):
            yield from declared(inner, path, here)
        else:
            yield path, here


def _kind(field: FieldInfo, above: ChangeKind) -> ChangeKind:
    own = [mark.kind for mark in field.metadata if isinstance(mark, OnChange)]
    return own[-1] if own else above


def _differences(
    old: Model, new: Model, above: str, kind: ChangeKind
) -> Iterator[tuple[str, ChangeKind]]:
    for name, field in type(old).model_fields.items():
        one, other = getattr(old, name), getattr(new, name)
        path, here = f"{above}.{field.alias or name}", _kind(field, kind)
        if isinstance(one, Model) and isinstance(other, Model):
            yield from _differences(one, other, path, here)
        elif _json(one) != _json(other):
            yield path, here


@dataclass(frozen=True, slots=True)
class _Hashed:
    """What a hash needs to know of a field."""

    name: str
    alias: str
    kind: ChangeKind | None  # its own, None if it is that of what is above
    is_model: bool  # its default is a model
    absent: tuple[Any, ...]  # JSON of the values that are as good as none


@cache
def _hashed(model: type[Model]) -> tuple[_Hashed, ...]:
    found = []
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        once = [mark.value for mark in field.metadata if isinstance(mark, HashedAsAbsent)]
        own = [mark.kind for mark in field.metadata if isinstance(mark, OnChange)]
        absent = tuple(_json(one) for one in (default, *once))
        is_model, kind = isinstance(default, Model), own[-1] if own else None
        found.append(_Hashed(name, field.alias or name, kind, is_model, absent))
    return tuple(found)


def _plain(model: Model, kind: ChangeKind) -> dict[str, Any]:
    """Return the model as JSON data of canonical values, without defaults and unhashed fields."""
    plain: dict[str, Any] = {}
    for field in _hashed(type(model)):
        value, here = getattr(model, field.name), field.kind or kind
        if isinstance(value, Model):
            below = _plain(value, here)
            # Without a default of its own kind its presence says something, even if it is empty.
            if below or not (field.is_model or here in _UNHASHED):
                plain[field.alias] = below
        elif here not in _UNHASHED and (shown := _json(value)) not in field.absent:
            plain[field.alias] = shown
    return plain


def _json(value: Any) -> Any:
    if isinstance(value, Duration):
        return f"{value.seconds:.6f}s"
    if isinstance(value, Quantity):
        return format(value.value.normalize(), "f")
    if isinstance(value, Model):
        return {name: _json(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {str(key): _json(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_json(inner) for inner in value]
    return value


def _refreshed(stored: _M, newest: _M, kind: ChangeKind) -> _M:
    values: dict[str, Any] = {}
    for name, field in type(stored).model_fields.items():
        one, other, here = getattr(stored, name), getattr(newest, name), _kind(field, kind)
        if isinstance(one, Model) and isinstance(other, Model):
            values[name] = _refreshed(one, other, here)
        elif here in _UNHASHED:
            values[name] = other
    return stored.model_copy(update=values)
