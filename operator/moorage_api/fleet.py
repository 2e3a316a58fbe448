"""What holds for many jobs at once: profiles of defaults, and limits, by cluster and namespace.

A fleet is one YAML file, the chart's value `fleet` or a config map. The operator goes by it, and
`moorage render --fleet` shows what comes of it. Pure: knows no status, and no file but as text.

The API server fills in the defaults of the definitions before anybody else sees an object. So a
value that is the definition's default counts as not said, and a profile's takes its place.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, ValidationError
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from moorage_api.compute import MAX_PARALLELISM_LIMIT
from moorage_api.explain import judge
from moorage_api.job import API_VERSION, KIND, JobSpec, StatefulSparkJob
from moorage_api.manifest import parse
from moorage_api.model import MAX_INT, Items, Model, RawMapping
from moorage_api.names import OBJECT_NAME
from moorage_api.problems import Problem, field_name
from moorage_api.quantities import Duration, Quantity
from moorage_api.sizing import executor_count, sidecar_memory
from moorage_api.state import CheckpointSpec

NO_PROFILE = "none"
"""The name by which a job has no profile at all."""

LONGEST_PROFILE = 16_384
"""Characters of a profile as JSON: each job's status keeps its own."""

# What makes a job this one, or is fixed with its state: no two jobs have it of one place.
_OF_THE_JOB = (
    ("application",),
    ("bounded",),
    ("desiredState",),
    ("image",),
    ("profile",),
    ("restore",),
    ("scaling", "keyHash"),
    ("scaling", "maxParallelism"),
    ("scaling", "parallelism"),
    ("state", "checkpointDir"),
    ("state", "savepointDir"),
)

_EITHER = ("interval", "cron")
"""Of checkpoints, at most one may be given."""

_Name = Annotated[str, Field(pattern=OBJECT_NAME, max_length=63)]
_Some = Annotated[int, Field(ge=1, le=MAX_INT)]
_Text = Annotated[str, Field(min_length=1, max_length=1024)]


class Limits(Model):
    """What no job may go beyond."""

    parallelism: _Some | None = None
    """Subtasks; of autoscaler.max too."""

    executors: _Some | None = None
    """Executors; with an autoscaler, those of its max."""

    executor_memory: Quantity | None = None
    """Memory of one executor's pod: executor.memory and that of its state servers."""

    driver_memory: Quantity | None = None
    """Memory of the driver's pod."""

    memory: Quantity | None = None
    """Memory of all pods of a job together."""

    images: Annotated[Items[_Text], Field(max_length=256)] | None = None
    """Images, with * for any text."""

    service_accounts: Annotated[Items[_Text], Field(max_length=256)] | None = None
    """Service accounts, with * for any text."""

    start_timeout: Duration | None = None
    """spec.operator.startTimeout."""

    stop_timeout: Duration | None = None
    """spec.operator.stopTimeout."""

    endpoint_patience: Duration | None = None
    """spec.operator.endpointPatience."""


class NamespaceRules(Model):
    """What holds in one namespace in place of what holds everywhere."""

    profile: _Name | Literal[""] | None = None
    """The profile of jobs that name none; empty for no profile."""

    limits: Limits = Limits()
    """Those that are given here; the others are those of everywhere."""


class FleetFile(Model):
    """The file, but for what each profile says."""

    profile: _Name | Literal[""] = ""
    """The profile of jobs that name none, in namespaces that say nothing else."""

    profiles: Mapping[_Name, RawMapping] = Field(default_factory=dict)
    """Parts of a job's spec, by name."""

    limits: Limits = Limits()
    """What no job may go beyond, in namespaces that say nothing else."""

    namespaces: Mapping[_Text, NamespaceRules] = Field(default_factory=dict)
    """By the namespace's name."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Defaults of many jobs."""

    name: str = ""  # empty for no profile
    values: Mapping[str, Any] | None = None  # a part of a spec; None if it cannot be used
    problems: tuple[Problem, ...] = ()  # why it cannot, as problems of the job that is to have it

    @property
    def digest(self) -> str:
        """A hash that is equal for profiles that say the same."""
        return digest_of(self.values or {})


def digest_of(values: Mapping[str, Any]) -> str:
    """A hash of what a profile says; empty if that is nothing."""
    if not values:
        return ""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Fleet:
    """Profiles and limits.

    Args:
        file: what the file says.
        problems: why it cannot be read; what it said before is not known here.
    """

    def __init__(self, file: FleetFile | None = None, problems: Sequence[Problem] = ()) -> None:
        self._file = file or FleetFile()
        self.problems = tuple(problems)
        self.digest = digest_of(
            {"file": self._file.model_dump(mode="json"), "problems": [*map(str, problems)]}
        )
        self._profiles = {name: _judged(name, one) for name, one in self._file.profiles.items()}

    @property
    def profiles(self) -> Mapping[str, Profile]:
        """All of them, right and wrong, by name."""
        return self._profiles

    def profile(self, namespace: str, named: str | None) -> Profile:
        """The profile of a job: its own, its namespace's, or everybody's.

        Args:
            named: `spec.profile`.
        """
        if self.problems:
            # Whatever the job names: nobody knows its limits.
            what = f"the operator's fleet file cannot be used: {self.problems[0]}"
            return Profile(named or "", None, (Problem("spec.profile", what, _PUT_RIGHT),))
        if named == NO_PROFILE:
            return Profile(values={})
        name = named or self._usual(namespace)
        if not name:
            return Profile(values={})
        found = self._profiles.get(name)
        return found if found is not None else Profile(name, None, (self._unknown(name, named),))

    def limits(self, namespace: str) -> Limits:
        """What jobs of a namespace may not go beyond."""
        own = self._file.namespaces.get(namespace)
        given = (
            {} if own is None else {k: getattr(own.limits, k) for k in own.limits.model_fields_set}
        )
        return self._file.limits.model_copy(update=given)

    def _usual(self, namespace: str) -> str:
        own = self._file.namespaces.get(namespace)
        said = own.profile if own is not None else None
        return self._file.profile if said is None else said

    def _unknown(self, name: str, named: str | None) -> Problem:
        known = ", ".join(sorted(self._profiles)) or "none"
        if named:
            reason = f"names a profile that is not there: {name}; there are: {known}"
            return Problem("spec.profile", reason, f"name one of them, or {NO_PROFILE}")
        reason = f"is {name} by the operator's fleet file, which has no such profile"
        return Problem("spec.profile", reason, _PUT_RIGHT)


_PUT_RIGHT = "correct the fleet file; what runs goes on as it is"


def read_fleet(text: bytes) -> Fleet:
    """The fleet of a file. What is wrong with it as a whole is in `problems`; never raises."""
    if all(not line.strip() or line.lstrip().startswith(b"#") for line in text.splitlines()):
        return Fleet()
    found = parse(text)
    if found.problems:
        return Fleet(problems=found.problems)
    if found.data is None:
        return Fleet()
    if not isinstance(found.data, dict):
        fix = "write profile, profiles, limits and namespaces"
        return Fleet(problems=[Problem("", "is not a mapping", fix)])
    try:
        file = FleetFile.model_validate(found.data, by_alias=True, by_name=False)
    except ValidationError as error:
        wrong = (
            Problem(field_name(one["loc"]), one["msg"], "correct it, as docs/fleets.md says")
            for one in error.errors()
        )
        return Fleet(problems=list(wrong))
    return Fleet(file)


def with_defaults(spec: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """A spec as JSON with a profile's values where it says none of its own.

    Mappings are merged key by key, lists are taken whole. A value that is the definition's default
    counts as not said.
    """
    return _merged(JobSpec, spec, defaults) if defaults else dict(spec)


class _Size(NamedTuple):
    """How large a job is, by what limits have a number for."""

    parallelism: int  # of autoscaler.max, where that is more
    executors: int
    executor_memory: Decimal
    driver_memory: Decimal
    memory: Decimal
    start_timeout: float
    stop_timeout: float
    endpoint_patience: float

    @staticmethod
    def of(spec: JobSpec) -> "_Size":
        """Of a spec with its defaults."""
        scaling, executor, patience = spec.scaling, spec.executor, spec.operator
        scaled = scaling.autoscaler.enabled and not scaling.autoscaler.dry_run
        width = max(scaling.parallelism, scaling.autoscaler.max if scaled else 0)
        count = executor_count(executor, width)
        each = executor.memory.value + (sidecar_memory(executor).limit << 20)
        times = (patience.start_timeout, patience.stop_timeout, patience.endpoint_patience)
        driver = spec.driver.memory.value
        seconds = (one.seconds if one is not None else 0.0 for one in times)
        return _Size(width, count, each, driver, driver + count * each, *seconds)


def asks_for_more(limits: Limits | None, old: JobSpec, new: JobSpec) -> bool:
    """Whether a spec goes further beyond limits than another one did.

    Args:
        limits: None where nobody knows them: any growth counts.
    """
    before, after = _Size.of(old)._asdict(), _Size.of(new)._asdict()
    for name, now in after.items():
        most = getattr(limits, name) if limits is not None else 0
        bound = getattr(most, "value", getattr(most, "seconds", most))
        if bound is not None and now > max(before[name], bound):
            return True
    return False


def limit_problems(limits: Limits, spec: JobSpec) -> Iterator[Problem]:
    """What of a job's spec, with its defaults, goes beyond its limits."""
    executor, size = spec.executor, _Size.of(spec)
    width, count, each, total = size.parallelism, size.executors, size.executor_memory, size.memory
    own = width == spec.scaling.parallelism
    field = "spec.scaling.parallelism" if own else "spec.scaling.autoscaler.max"
    if limits.parallelism is not None and width > limits.parallelism:
        yield _beyond(field, width, limits.parallelism, "parallelism")
    if limits.executors is not None and count > limits.executors:
        inner = "spec.executor.instances" if executor.instances else field
        reason = f"makes {count} executors, and limits.executors is {limits.executors}"
        yield Problem(inner, reason, _SMALLER)
    if limits.executor_memory is not None and each > limits.executor_memory.value:
        servers = f"{sidecar_memory(executor).limit}Mi"
        what = f"is {executor.memory}, with {servers} of its state servers more than limits."
        reason = f"{what}executorMemory {limits.executor_memory}"
        yield Problem("spec.executor.memory", reason, _SMALLER)
    if limits.driver_memory is not None and spec.driver.memory > limits.driver_memory:
        yield _beyond(
            "spec.driver.memory", spec.driver.memory, limits.driver_memory, "driverMemory"
        )
    if limits.memory is not None and total > limits.memory.value:
        mib = int(total / (1 << 20))
        reason = f"has pods of {mib}Mi together, and limits.memory is {limits.memory}"
        yield Problem("spec", reason, _SMALLER)
    yield from _allowed("spec.image", spec.image or "", limits.images, "images")
    account = spec.service_account_name
    field = "spec.serviceAccountName"
    yield from _allowed(field, account, limits.service_accounts, "serviceAccounts")
    for name in ("start_timeout", "stop_timeout", "endpoint_patience"):
        wanted, most = getattr(spec.operator, name), getattr(limits, name)
        if wanted is not None and most is not None and wanted > most:
            alias = to_camel(name)
            yield _beyond(f"spec.operator.{alias}", wanted, most, alias)


_SMALLER = "ask for less, or have the operator's fleet file allow more"


def _beyond(field: str, value: object, limit: object, name: str) -> Problem:
    return Problem(field, f"is {value}, and limits.{name} is {limit}", _SMALLER)


def _allowed(
    field: str, value: str, patterns: Sequence[str] | None, name: str
) -> Iterator[Problem]:
    if patterns is None or any(fnmatchcase(value, one) for one in patterns):
        return
    known = ", ".join(patterns) or "none"
    reason = f"is {value}, which limits.{name} does not have: {known}"
    yield Problem(field, reason, "take one of them, or have the operator's fleet file allow it")


def _judged(name: str, values: Mapping[str, Any]) -> Profile:
    found = [*_refused(values), *_wrong(values)]
    if name == NO_PROFILE:
        found = [("", "is the name of no profile", "choose another one")]
    elif len(json.dumps(values, default=str)) > LONGEST_PROFILE:
        found = [("", f"has more than {LONGEST_PROFILE} characters", "say less")]
    if not found:
        return Profile(name, values)
    where, reason, fix = found[0]
    more = f"; and {len(found) - 1} more" if len(found) > 1 else ""
    what = f"is {name}, and that profile is wrong: {f'{where} ' if where else ''}{reason}; {fix}"
    return Profile(name, None, (Problem("spec.profile", f"{what}{more}", _PUT_RIGHT),))


def _refused(values: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for path in _OF_THE_JOB:
        inner: Any = values
        for part in path:
            inner = inner.get(part) if isinstance(inner, Mapping) else None
        if inner is not None:
            yield ".".join(path), "is each job's own", "leave it out"


def _wrong(values: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    stand_in: dict[str, Any] = {
        "application": {"mainFile": "job.py"},
        # As wide as can be: what a profile says of an autoscaler is judged with each job's own.
        "scaling": {"parallelism": 1, "maxParallelism": MAX_PARALLELISM_LIMIT},
        "state": {"checkpointDir": "memory://state"},
    }
    spec = _deep(values, stand_in)
    meta = {"name": "job"}
    verdict = judge({"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": spec})
    if not isinstance(verdict, StatefulSparkJob):
        for one in verdict:
            yield field_name(one.path[1:]), one.reason, one.fix


def _deep(over: Mapping[str, Any], under: Mapping[str, Any]) -> dict[str, Any]:
    """`over` upon `under`, mapping by mapping."""
    made = dict(under)
    for key, value in over.items():
        below = made.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            made[key] = _deep(value, below)
        else:
            made[key] = value
    return made


def _merged(
    model: type[Model], own: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    made = dict(defaults)
    if model is CheckpointSpec and any(own.get(key) is not None for key in _EITHER):
        # Of a profile's interval and a job's cron only one can hold.
        made = {key: value for key, value in made.items() if key not in _EITHER}
    for key, value in own.items():
        field, below = fields.get(key), defaults.get(key)
        if field is None or below is None or value is None:
            made[key] = value if value is not None else below
            continue
        inner, both = field.annotation, isinstance(value, Mapping) and isinstance(below, Mapping)
        if both and isinstance(inner, type) and issubclass(inner, Model):
            made[key] = _merged(inner, value, below)
        elif both and not _holds_model(field):
            made[key] = _deep(value, below)
        elif not _is_default(field, value):
            made[key] = value
    return made


def _holds_model(field: FieldInfo) -> bool:
    """Whether it may be left out, and is a whole where it is given."""
    parts = getattr(field.annotation, "__args__", ())
    return any(isinstance(one, type) and issubclass(one, Model) for one in parts)


def _is_default(field: FieldInfo, value: Any) -> bool:
    default = field.get_default(call_default_factory=True)
    if isinstance(default, Model | Mapping | tuple):
        return not value
    plain = isinstance(default, bool | int | str) or default is None
    return bool(value == (default if plain else str(default)))
