"""One attempt of one job, for tests of what is made from it."""

from typing import Any

from moorage_api.driver import RestoreOrder, StartOrder
from moorage_operator.world import Meta

__all__ = ["META", "ORDER", "REVISION", "SMALL"]

META = Meta(
    name="clicks",
    namespace="analytics",
    uid="5f0c6e1a-0000-4000-8000-00000000c11c",
    generation=4,
    resource_version="1207",
)
ORDER = StartOrder(
    attempt=7,
    cluster_id="prod",
    job_uid=META.uid,
    restore=RestoreOrder(mode="Path", path="s3://saves/clicks/v1", order_id="4-2"),
)
REVISION = "clicks-0123456789"
SMALL: dict[str, Any] = {
    "image": "registry.example/clicks:1.4.2",
    "application": {"mainFile": "local:///app/job.py"},
    "scaling": {"parallelism": 5},
    "state": {"checkpointDir": "s3://state/clicks", "savepointDir": "s3://saves/clicks"},
}
