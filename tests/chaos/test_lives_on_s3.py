"""Whole lives of a lineage on a real S3 server, behind a network and a server that go wrong.

Every kind of fault happens to every kind of request: refusals, errors, cut connections, lost
replies, damaged reads, a full server, lost permissions. What drivers meet of it they answer as the
real one does: call again, take the next checkpoint, restart, or end until a person has acted.
"""

import random
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from moorage_testing.fault_proxy import PASSING, Chaos, Fault, FaultProxy
from moorage_testing.s3_server import S3Server
from moorage_testing.whole_lives import Life

from moorage_state.errors import CorruptState, MoorageError, ObjectNotFound, UserError
from moorage_state.stores import ObjectInfo, ObjectStore, Retries, S3Store

pytestmark = pytest.mark.chaos

STEPS = 25
LIVES = 5
FAULTS = (
    *PASSING,
    Fault.CONFLICT,
    Fault.FORBIDDEN,
    Fault.EXPIRED,
    Fault.FULL,
    Fault.FLIPPED_BIT,
)


@dataclass(slots=True)
class Weather(Chaos):
    """Chaos, and times in which nothing is permitted or nothing can be written any more.

    Attributes:
        outage: FORBIDDEN or FULL while such a time lasts.
    """

    outage: Fault | None = None

    def choose(self, method: str, path: str) -> Fault | None:
        # Two arguments: a dataclass with slots is another class than the one `super` knows.
        fault = Chaos.choose(self, method, path)
        if self.outage is Fault.FORBIDDEN or (self.outage is Fault.FULL and method == "PUT"):
            return self.outage
        # Nothing proves a listing; with TLS no bit of it is ever wrong.
        listing = path.count("/") < 2 or path.endswith("/")
        if fault is Fault.FLIPPED_BIT and (method != "GET" or listing):
            return Fault.CUT_REPLY
        return fault


class Moment:
    """What lies in a store now: one listing, and the entries of the log that are known already."""

    def __init__(self, store: ObjectStore, log: dict[str, bytes]) -> None:
        self.url = store.url
        self._store = store
        self._log = log
        self._listing = {info.key: info for info in store.list("")}

    def head(self, key: str) -> ObjectInfo | None:
        return self._listing.get(key)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        return iter(
            [
                info
                for key, info in self._listing.items()
                if key.startswith(prefix) and key > start_after
            ]
        )

    def get(self, key: str) -> bytes:
        if key not in self._listing:
            raise ObjectNotFound(f"not listed: key={key}")
        if key not in self._log:
            data = self._store.get(key)
            if not key.startswith("log/"):
                return data
            self._log[key] = data
        return self._log[key]


class BadBucket:
    """A prefix in a bucket, seen through the proxy and without it."""

    fatal: tuple[type[MoorageError], ...] = (UserError, CorruptState)
    births = 3

    def __init__(self, server: S3Server, proxy: FaultProxy, seed: int) -> None:
        rng = random.Random(seed + 1)
        prefix = f"life-{seed}-{uuid.uuid4().hex}"
        self.truth: ObjectStore = S3Store.at(server.url(prefix))
        address = S3Store.at(server.url(prefix, endpoint=proxy.endpoint)).address
        attempts, rate = rng.choice([(1, 0.01), (1, 0.03), (2, 0.05), (4, 0.1), (8, 0.3)])
        self.store = S3Store(address, Retries(attempts, first_pause=0.001, longest_pause=0.004))
        self._proxy = proxy
        self._weather = Weather(seed, rate, FAULTS)
        self._log: dict[str, bytes] = {}

    @contextmanager
    def storm(self) -> Iterator[None]:
        self._proxy.chaos = self._weather
        yield
        self._proxy.chaos = None

    @contextmanager
    def calm(self) -> Iterator[None]:
        before, self._proxy.chaos = self._proxy.chaos, None
        yield
        self._proxy.chaos = before

    @contextmanager
    def outage(self, rng: random.Random) -> Iterator[None]:
        if rng.random() < 0.1:
            self._weather.outage = rng.choice([Fault.FORBIDDEN, Fault.FULL])
        yield
        self._weather.outage = None

    def look(self) -> ObjectStore:
        moment: Any = Moment(self.truth, self._log)
        return cast("ObjectStore", moment)


@pytest.fixture(scope="module")
def running_proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(s3_server.endpoint, slow_seconds=0.02) as proxy:
        S3Store.at(s3_server.url("warm", endpoint=proxy.endpoint)).put_if_absent("warm", b"")
        yield proxy


@pytest.fixture
def proxy(running_proxy: FaultProxy) -> Iterator[FaultProxy]:
    running_proxy.forget()
    yield running_proxy
    running_proxy.chaos = None
    running_proxy.forget()


@pytest.fixture(autouse=True)
def one_transfer_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a seed means the same faults at the same places whenever it is run."""
    monkeypatch.setattr("moorage_state.server.uploads._UPLOAD_THREADS", 1)
    monkeypatch.setattr("moorage_state.server.restore._TRANSFERS", 1)


def live(seeds: Iterable[int], server: S3Server, proxy: FaultProxy, home: Path) -> Counter[object]:
    """Live one life after the other; return what happened in them."""
    tally: Counter[object] = Counter()
    for seed in seeds:
        bucket = BadBucket(server, proxy, seed)
        try:
            with bucket.storm():
                life = Life(seed, home / f"life{seed}", bucket)
                life.live(STEPS)
        except BaseException as error:
            error.add_note(f"in the life of seed={seed}")
            raise
        tally.update(life.tally)
        tally.update(fault for _, _, fault in proxy.seen)
        proxy.forget()
    return tally


def test_no_state_is_lost_and_nothing_is_left_over_on_s3(
    s3_server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    tally = live(range(LIVES), s3_server, proxy, tmp_path)
    # A good end proves something only of lives that were hard.
    assert {fault for fault in FAULTS if not tally[fault]} == set()
    met = ["crash", "store_unavailable", "store_denied", "birth: store_unavailable"]
    assert {name for name in met if not tally[name]} == set()


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_thousand_lives_on_s3_end_well(
    soak_seconds: float, s3_server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    end = time.monotonic() + soak_seconds
    for seed in range(LIVES, 1000):
        if time.monotonic() > end:
            break
        live([seed], s3_server, proxy, tmp_path)
