"""All drivers of a world, and the door through which the operator asks them."""

import json
import zlib
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import yaml
from pydantic import BaseModel

from moorage_api.driver import DriverState, RequestView, StartOrder
from moorage_operator.ports import DriverTarget, EndpointRefused, EndpointUnreachable
from moorage_testing.world.buckets import Buckets
from moorage_testing.world.fake_driver import FakeDriver
from moorage_testing.world.habits import Habits, Restored

__all__ = ["Drivers", "FakeDriver", "Habits", "Restored", "address_of"]


class Drivers:
    """All drivers of a world, and the door through which the operator asks them."""

    def __init__(self, buckets: Buckets, now: Callable[[], datetime]) -> None:
        self.buckets = buckets
        self.habits = Habits()
        self.by_pod: dict[str, FakeDriver] = {}
        self._by_address: dict[str, FakeDriver] = {}
        self.restored: list[Restored] = []
        self._now = now

    def start(self, pod: dict[str, Any], config: dict[str, str], token: str) -> FakeDriver:
        """A driver's container starts."""
        meta = pod["metadata"]
        driver = FakeDriver(
            pod=meta["name"],
            pod_uid=meta["uid"],
            namespace=meta["namespace"],
            manifest=yaml.safe_load(config["job.yaml"]),
            order=StartOrder.model_validate(json.loads(config["start.json"])),
            token=token,
            started=self._now(),
            buckets=self.buckets,
            habits=self.habits,
            restored_list=self.restored,
        )
        self.by_pod[meta["uid"]] = self._by_address[address_of(meta["uid"])] = driver
        return driver

    def tick(self) -> None:
        """Let all drivers do what is due."""
        for driver in list(self.by_pod.values()):
            driver.tick(self._now())

    @property
    def living(self) -> list[FakeDriver]:
        """Those whose process runs."""
        return [driver for driver in self.by_pod.values() if driver.alive]

    @property
    def newest(self) -> FakeDriver:
        """The one that started last."""
        return list(self.by_pod.values())[-1]

    async def state(self, target: DriverTarget) -> DriverState:
        """See `moorage_operator.ports.DriverClient`."""
        ahead = timedelta(seconds=self.habits.clock_ahead)
        report = self._reach(target).state()
        times = ("running_since", "last_progress_time", "last_move_time", "last_checkpoint_time")
        known = {name: getattr(report, name) for name in times}
        told = {name: at + ahead for name, at in known.items() if at is not None}
        return report.model_copy(update={**told, "answered_at": self._now() + ahead})

    async def ask(self, target: DriverTarget, path: str, body: BaseModel) -> RequestView:
        """See `moorage_operator.ports.DriverClient`."""
        return self._reach(target).ask(path, body)

    def _reach(self, target: DriverTarget) -> FakeDriver:
        driver = self._by_address.get(target.ip)
        if driver is None or not driver.alive or self.habits.deaf or driver.cut_off:
            raise EndpointUnreachable(f"no answer: ip={target.ip}")
        if driver.token != target.token:
            raise EndpointRefused("unauthorized", "wrong token")
        return driver


def address_of(pod_uid: str) -> str:
    """The address of a pod; another one for each."""
    number = zlib.crc32(pod_uid.encode()) % (1 << 22)
    return f"10.{64 + (number >> 16)}.{(number >> 8) & 255}.{number & 255}"
