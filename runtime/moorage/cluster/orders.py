"""What the operator mounted for this attempt: the job, the order to start, settings, the token.

Decides where these files lie and that all of them are whole and fit together, before anything is
started. Called once, by `main`.
"""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from moorage.driver.requests import SampleRequest
from moorage.driver.types import Orders
from moorage_api import ManifestError, StatefulSparkJob, load_manifest
from moorage_api.driver import (
    CONFIG_DIR,
    ENDPOINT_PORT,
    SCRAPE_FILE,
    TOKEN_FILE,
    SampleBody,
    SampleOrder,
    StartOrder,
    certificate_name,
)
from moorage_api.reserved import TLS_DIR
from moorage_api.unsupported import unsupported_anywhere
from moorage_state.errors import UserError
from moorage_state.server.tls import BadCertificate, TlsFiles, certificates

JOB_FILE = "job.yaml"
START_FILE = "start.json"
SPARK_FILE = "spark.json"
CONTROL_FILE = "control"

MIN_TOKEN = 16
"""Characters; what has fewer is no token."""
_SPARK_SECRET = "spark.authenticate.secret.file"  # noqa: S105  a setting's name
_MAX_BYTES = 1 << 20
_SETTINGS = TypeAdapter(dict[str, str])
_M = TypeVar("_M", bound=BaseModel)


class OrdersRefused(UserError):
    """The driver cannot begin.

    Attributes:
        attempt: the number in the order; 0 if that cannot be read.
    """

    attempt = 0


class BadOrders(OrdersRefused):
    """What was mounted is missing, broken, or does not fit together."""

    code = "bad_orders"


class NotSupported(OrdersRefused):
    """The job asks for what this release cannot do."""

    code = "not_supported"


class CertificateRefused(OrdersRefused):
    """What is mounted is no certificate that another pod of the job would believe."""

    code = BadCertificate.code


@dataclass(frozen=True, slots=True)
class Places:
    """Where things lie; each can be moved by a variable, for tests and for trying things out.

    Attributes:
        local: run Spark in this process instead of on executors.
    """

    config: Path = Path(CONFIG_DIR)
    token: Path = Path(TOKEN_FILE)
    termination: Path = Path("/dev/termination-log")
    host: str = ""
    port: int = ENDPOINT_PORT
    local: bool = False
    scrape: Path = Path(SCRAPE_FILE)
    tls: Path = Path(TLS_DIR)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "Places":
        """The places that variables name, and the usual ones.

        Raises BadOrders: the port is no number.
        """
        port = environ.get("MOORAGE_ENDPOINT_PORT", str(ENDPOINT_PORT))
        if not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise BadOrders(f"not a port: MOORAGE_ENDPOINT_PORT={port!r:.40}; use 0 to 65535")
        return cls(
            config=Path(environ.get("MOORAGE_CONFIG_DIR", CONFIG_DIR)),
            token=Path(environ.get("MOORAGE_TOKEN_FILE", TOKEN_FILE)),
            scrape=Path(environ.get("MOORAGE_SCRAPE_FILE", SCRAPE_FILE)),
            tls=Path(environ.get("MOORAGE_TLS_DIR", TLS_DIR)),
            termination=Path(environ.get("MOORAGE_TERMINATION_LOG", "/dev/termination-log")),
            host=environ.get("MOORAGE_ENDPOINT_HOST", ""),
            port=int(port),
            local=environ.get("MOORAGE_ENVIRONMENT", "") == "local",
        )


@dataclass(frozen=True, slots=True)
class Mounted:
    """One attempt's orders.

    Attributes:
        spark: settings that the operator decides.
        control: of the endpoint, for orders.
        scrape: the file with the token of the endpoint that only reads; there may be none.
        tls: the certificate of the job's pods; None: they speak in the clear.
    """

    job: StatefulSparkJob
    start: StartOrder
    spark: dict[str, str]
    token: str
    control: str
    scrape: Path
    tls: TlsFiles | None
    pod: str

    @property
    def secrets(self) -> Iterator[str]:
        """What must not be said: all that lies beside the token, Spark's among it."""
        yield from (self.token, self.control)
        with suppress(OSError, UnicodeDecodeError):
            yield Path(self.spark.get(_SPARK_SECRET, "")).read_text().strip()

    @property
    def orders(self) -> Orders:
        """What the driver is told."""
        start, restore = self.start, self.start.restore
        return Orders(
            cluster=start.cluster_id,
            uid=start.job_uid,
            holder=f"{self.pod} attempt {start.attempt}",
            adopt_lineage=start.adopt_lineage,
            mode=restore.mode,
            path=restore.path,
            digest=restore.digest,
            order_id=restore.order_id,
            standby=start.standby,
            sample=sample_request(start.sample),
        )


def sample_request(order: SampleOrder | None) -> SampleRequest | None:
    """What a driver is asked for; for ever where the order does not say for how long."""
    if order is None:
        return None
    seconds = order.seconds if isinstance(order, SampleBody) else math.inf
    return SampleRequest(order.percent, order.except_columns, seconds)


def read_orders(places: Places, environ: Mapping[str, str] = os.environ) -> Mounted:
    """Read everything that is mounted.

    Raises:
        BadOrders: naming the file and what is wrong with it.
        NotSupported: the job asks for what this release cannot do.
    """
    start = _model(StartOrder, places.config / START_FILE)
    try:
        return _read_rest(start, places, environ)
    except OrdersRefused as error:
        error.attempt = start.attempt
        raise


def _read_rest(start: StartOrder, places: Places, environ: Mapping[str, str]) -> Mounted:
    try:
        job = load_manifest(places.config / JOB_FILE)
    except ManifestError as error:
        raise BadOrders(f"the job cannot be read: {error}") from error
    _check_together(job, start, places)
    _check_supported(job)
    return Mounted(
        job=job,
        start=start,
        spark=_spark_settings(places),
        token=_token(places.token),
        control=_token(_control(places)),
        scrape=places.scrape,
        tls=_tls(job, places),
        pod=environ.get("MOORAGE_POD_NAME", "") or f"pid {os.getpid()}",
    )


def _check_together(job: StatefulSparkJob, start: StartOrder, places: Places) -> None:
    uid, restore = job.metadata.uid, start.restore
    if uid is not None and uid != start.job_uid:
        raise BadOrders(
            f"the job and the order are of two objects: {JOB_FILE} uid={uid} {START_FILE} "
            f"jobUid={start.job_uid}; mount files of one attempt at {places.config}"
        )
    if job.metadata.namespace is None:
        raise BadOrders(f"the job has no namespace: file={JOB_FILE}; name it in metadata.namespace")
    for name, value in (("clusterId", start.cluster_id), ("jobUid", start.job_uid)):
        if not value.strip():
            raise BadOrders(f"the order has no {name}: file={START_FILE}; it names the owner")
    if restore.mode == "Path" and not restore.path:
        raise BadOrders(f"restore.mode is Path without a path: file={START_FILE}; give the path")
    if restore.mode != "Latest" and not restore.order_id:
        raise BadOrders(
            f"restore.mode is {restore.mode} without an orderId: file={START_FILE}; a choice is "
            f"followed once, and the id says which one it is"
        )


def _check_supported(job: StatefulSparkJob) -> None:
    if problems := list(unsupported_anywhere(job)):
        text = "; ".join(f"{p.field} {p.reason}: {p.fix}" for p in problems)
        raise NotSupported(f"the job asks for what this release cannot do: {text}")


def _spark_settings(places: Places) -> dict[str, str]:
    path = places.config / SPARK_FILE
    if places.local and not path.exists():
        return {}
    data = _read(path)
    try:
        return _SETTINGS.validate_json(data, strict=True)
    except ValidationError as error:
        raise _broken(path, error) from error


def _tls(job: StatefulSparkJob, places: Places) -> TlsFiles | None:
    if not job.spec.tls_secret:
        return None
    name = certificate_name(job.name, job.metadata.namespace or "")
    files = TlsFiles(str(places.tls), name)
    try:
        certificates(files).check()
    except BadCertificate as error:
        text = f"{error}; it comes from the Secret of spec.security.tls: {job.spec.tls_secret}"
        raise CertificateRefused(text) from error
    return files


def _control(places: Places) -> Path:
    """Beside the token; an older operator mounts one token for everything."""
    path = places.token.with_name(CONTROL_FILE)
    return path if path.exists() else places.token


def _token(path: Path) -> str:
    try:
        token = _read(path).decode().strip()
    except UnicodeDecodeError as error:
        raise BadOrders(f"the token is no text: path={path}; mount the job's Secret") from error
    if len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise BadOrders(
            f"the token is not one: path={path} characters={len(token)}; it needs {MIN_TOKEN} or "
            f"more printable ones"
        )
    return token


def _model(model: type[_M], path: Path) -> _M:
    try:
        return model.model_validate_json(_read(path), strict=True)
    except ValidationError as error:
        raise _broken(path, error) from error


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise BadOrders(
            f"cannot read what the operator mounts: path={path} error={error.strerror}; mount the "
            f"attempt's ConfigMap and the job's Secret"
        ) from error
    if len(data) > _MAX_BYTES:
        raise BadOrders(f"a mounted file is too long: path={path} max={_MAX_BYTES}")
    return data


def _broken(path: Path, error: ValidationError) -> BadOrders:
    problems = "; ".join(
        f"{'.'.join(map(str, e['loc'])) or 'document'}: {e['msg']}"
        for e in error.errors(include_url=False, include_input=False)[:5]
    )
    return BadOrders(f"a mounted file is not as it must be: path={path} {problems}")
