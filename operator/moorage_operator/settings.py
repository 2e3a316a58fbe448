"""How one operator process is set up: flags, else environment, else what is written here.

`--watch-namespaces a,b` and `MOORAGE_WATCH_NAMESPACES=a,b` are the same. What no setting is called
is refused, so that a misspelt name does not go unnoticed.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from moorage_api.state import DEFAULT_BACKEND, Backend, for_every_job

_PREFIX = "MOORAGE_"
# What others put into a pod's environment under our prefix, each read elsewhere or by nobody.
_NOT_OURS = ("MOORAGE_POD_", "MOORAGE_SERVICE_", "MOORAGE_PORT", "MOORAGE_OPERATOR_")

LONGEST_SHARD = 20
"""Characters of a shard's name: names of objects are made of it."""

_SHARD = re.compile(rf"[a-z](?:[-a-z0-9]{{0,{LONGEST_SHARD - 2}}}[a-z0-9])?")

Seconds = Annotated[float, Field(gt=0, le=86_400)]
Port = Annotated[int, Field(ge=0, le=65_535)]


def _names(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _shard(value: str) -> str:
    if value and not _SHARD.fullmatch(value):
        raise ValueError(
            f"{value} is no name of a shard: at most {LONGEST_SHARD} of a-z, 0-9 and -, of which "
            "the first is a letter and the last no -"
        )
    return value


_PART = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_LABEL = rf"(?:[a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?{_PART}"
_VALUE = rf"(?:{_PART})?"
_REQUIREMENT = re.compile(
    rf"!?{_LABEL}|{_LABEL} *(?:==?|!=) *{_VALUE}"
    rf"|{_LABEL} +(?:in|notin) +\( *{_VALUE}(?: *, *{_VALUE})* *\)"
)


def _selector(value: str) -> str:
    """What the API server would refuse again and again is refused once, here."""
    for part in re.split(r",(?![^(]*\))", value.strip()) if value.strip() else ():
        if not _REQUIREMENT.fullmatch(part.strip()):
            raise ValueError(
                f"{part.strip() or 'an empty part'} selects by no label: write a=b, a!=b, a, !a, "
                "a in (b,c) or a notin (b,c), with commas between them"
            )
    return value.strip()


def _shards(values: tuple[str, ...]) -> tuple[str, ...]:
    twice = sorted({one for one in values if values.count(one) > 1})
    if twice:
        raise ValueError(f"{', '.join(twice)} is named twice")
    return tuple(_shard(one) for one in values)


def _endpoints(values: tuple[str, ...]) -> tuple[str, ...]:
    for one in values:
        if not one.startswith(("http://", "https://")):
            raise ValueError(f"{one} is no address of a server: write https://host:port")
    return tuple(one.rstrip("/") for one in values)


class SettingsError(Exception):
    """Settings that cannot be used; the message names each, its value and the fix."""


class Settings(BaseModel):
    """Everything that can be set."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    cluster_id: Annotated[str, Field(max_length=253)] = ""
    """Names this cluster in the owner records of stores; it must never change. Empty: the uid of
    the namespace kube-system."""

    watch_namespaces: Annotated[tuple[str, ...], BeforeValidator(_names)] = ()
    """The namespaces whose jobs this operator runs, with commas; empty for all."""

    watch_namespace_selector: Annotated[str, AfterValidator(_selector)] = ""
    """Labels of the namespaces whose jobs this operator runs, as `kubectl -l` takes them, such as
    `moorage.dev/jobs=yes`. Namespaces that get them are looked after from then on, and those that
    lose them are let go. Empty: as `--watch-namespaces` says."""

    shard: Annotated[str, AfterValidator(_shard)] = ""
    """The one of `--shards` whose jobs this operator runs. Empty: the operator of all jobs without
    the label `moorage.dev/shard`, or with one that is none of `--shards`."""

    shards: Annotated[tuple[str, ...], BeforeValidator(_names), AfterValidator(_shards)] = ()
    """The shards that have an operator of their own, with commas; the same for all operators of
    these namespaces. Empty: the label means nothing."""

    namespace: Annotated[str, Field(max_length=63)] = "moorage-system"
    """The operator's own namespace, where its Lease is."""

    state_backend: Annotated[Backend, AfterValidator(for_every_job)] = DEFAULT_BACKEND
    """The state backend of jobs that have no state yet and whose spec names none."""

    fleet: Path | None = None
    """A file with profiles of defaults and limits of jobs, such as a mounted ConfigMap's; it is
    read again when it changes. None: there are none."""

    identity: str = ""
    """Names this process in the Lease; the pod's name is good. Empty: the host's name."""

    kubeconfig: Path | None = None
    """A file with how the API server is reached. None: as a pod of the cluster."""

    context: str | None = None
    """The context in the kubeconfig. None: its current one."""

    leader_election: bool = True
    """Whether several processes may be started, of which one leads."""

    lease_name: Annotated[str, Field(pattern=r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$")] = ""
    """The Lease. Operators of different namespaces that share a namespace of their own need
    different ones. Empty: `moorage-operator`, and `-` with the shard after it."""

    lease_duration: Annotated[float, Field(ge=3, le=300)] = 15.0
    """Seconds for which a leader that does not renew its Lease keeps others out. It acts for two
    thirds of them."""

    workers: Annotated[int, Field(ge=1, le=256)] = 16
    """How many objects are looked at at once."""

    resync: Seconds = 30.0
    """Seconds after which a job is looked at again without anything having happened."""

    relist: Seconds = 1800.0
    """Seconds after which all objects are listed, whatever the watches say."""

    endpoint_patience: Seconds = 60.0
    """Seconds for which a driver that does not answer is still believed in while its pod runs."""

    start_timeout: Seconds = 600.0
    """Seconds a driver may take until the stream runs, where no policy says otherwise."""

    stop_timeout: Seconds = 180.0
    """Seconds a driver may take to end after it was told to, before its pod is deleted."""

    request_timeout: Annotated[float, Field(ge=1, le=300)] = 20.0
    """Seconds a request to the API server may take."""

    read_secrets: bool = True
    """Whether the operator reads the Secrets that jobs name, to look into their stores itself.
    Else a pod of the job's does."""

    store_endpoints: Annotated[
        tuple[str, ...], BeforeValidator(_names), AfterValidator(_endpoints)
    ] = ()
    """Servers of stores, such as `https://minio.stores:9000`, with commas, that the operator may
    ask itself where a job's `state.s3.endpoint` names them; to all others a pod of the job's goes.
    Empty: any. Who may write jobs may else have the operator ask any address that it can reach."""

    own_credentials: bool = False
    """Whether stores of jobs that name no Secret are read with the operator's own credentials."""

    local_files: bool = False
    """Whether `file://` directories are read here; they must be mounted as in the jobs."""

    health_port: Port = 8080
    """The port of /healthz, /readyz and /metrics."""

    health_host: str = ""
    """The address that it listens on. Empty: all, of IPv4 and of IPv6."""

    stop_grace: Seconds = 20.0
    """Seconds that passes under way have to end when the operator is stopped."""

    log_format: Literal["json", "text"] = "json"
    """How log lines look."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Which log lines there are."""

    @property
    def lease(self) -> str:
        """The Lease's name."""
        ending = f"-{self.shard}" if self.shard else ""
        return self.lease_name or f"moorage-operator{ending}"

    def checked(self) -> Self:
        """Refuse what is right by itself, and wrong together.

        Raises:
            SettingsError: with each and the fix.
        """
        if self.shard and self.shard not in self.shards:
            known = ", ".join(self.shards) or "none"
            raise SettingsError(
                f"--shard (MOORAGE_SHARD): is none of --shards: value={self.shard!r} "
                f"shards={known}; add it there, in all operators of these namespaces"
            )
        if self.watch_namespace_selector and self.watch_namespaces:
            raise SettingsError(
                "--watch-namespace-selector (MOORAGE_WATCH_NAMESPACE_SELECTOR): is "
                f"{self.watch_namespace_selector!r}, and --watch-namespaces is "
                f"{','.join(self.watch_namespaces)!r}: only one of them can hold; leave out the "
                "other"
            )
        if self.watch_namespace_selector and not self.leader_election:
            raise SettingsError(
                "--watch-namespace-selector (MOORAGE_WATCH_NAMESPACE_SELECTOR): needs a Lease, by "
                "which a job changes hands when its namespace does: leader_election=false; set "
                "--leader-election true"
            )
        if self.shards and not self.leader_election:
            raise SettingsError(
                "--shards (MOORAGE_SHARDS): need a Lease each: leader_election=false; set "
                "--leader-election true"
            )
        return self


def read_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Settings from flags and environment; flags win.

    Raises:
        SettingsError: one of them is unknown or wrong.
        SystemExit: help was asked for, or a flag is unknown.
    """
    flags = vars(_parser().parse_args(list(arguments)))
    given = _from_environment(environment) | {k: v for k, v in flags.items() if v is not None}
    try:
        return Settings.model_validate(given).checked()
    except ValidationError as error:
        lines = [_line(details) for details in error.errors()]
        raise SettingsError("\n".join(lines)) from error


def flag_of(name: str) -> str:
    """The flag of a setting."""
    return "--" + name.replace("_", "-")


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in environment.items():
        if not key.startswith(_PREFIX) or key.startswith(_NOT_OURS):
            continue
        name = key.removeprefix(_PREFIX).lower()
        if name not in Settings.model_fields:
            raise SettingsError(f"{key}: is not a setting; see --help, or unset it")
        found[name] = value
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m moorage_operator",
        description="Run StatefulSparkJobs. Each flag is also an environment variable MOORAGE_*.",
        allow_abbrev=False,
    )
    for name, field in Settings.model_fields.items():
        text = " ".join((field.description or "").split()).replace("%", "%%")
        usual = "" if field.default in (None, "", ()) else f" (default: {field.default})"
        parser.add_argument(flag_of(name), dest=name, help=text + usual, metavar="VALUE")
    return parser


def _line(details: Any) -> str:
    name = str(details["loc"][0])
    value = str(details["input"])[:80]
    key = f"{_PREFIX}{name.upper()}"
    return f"{flag_of(name)} ({key}): {details['msg']}: value={value!r}; correct it"
