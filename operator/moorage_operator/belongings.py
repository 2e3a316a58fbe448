"""What a running driver needs besides its pod, brought back where somebody deleted it.

New executors mount the attempt's Secret, and the operator needs it to speak to the driver; metrics
need the one for reading; they and people find the driver by the Service. Nothing tells of their
deletion, so they are looked for now and then. Called by every pass over a job; never holds one up.
"""

import logging
from datetime import timedelta

from moorage_operator.children import config_owner, names, owner_reference, service, token_secret
from moorage_operator.memory import Memory
from moorage_operator.needs import current_driver
from moorage_operator.ports import Clock, Cluster, ClusterError
from moorage_operator.tokens import Tokens
from moorage_operator.world import JobWorld, Meta

__all__ = ["Belongings"]

_log = logging.getLogger("moorage.operator")

_EVERY = timedelta(minutes=1)


class Belongings:
    """The Secrets and the Service of jobs whose driver lives."""

    def __init__(self, cluster: Cluster, tokens: Tokens, clock: Clock) -> None:
        self._cluster = cluster
        self._tokens = tokens
        self._clock = clock

    async def see_to(self, world: JobWorld, memory: Memory) -> None:
        """Make again what is missing; at most once a minute for each job.

        The first look comes a minute after the operator first saw the job.
        """
        meta, now = world.meta, self._clock.now()
        pod = current_driver(world)
        if pod is None or pod.terminal or pod.deleted_at is not None:
            return
        if meta.deleted_at is not None or meta.annotation("paused") == "true":
            return
        memory.looked_after = memory.looked_after or now
        if now < memory.looked_after + _EVERY:
            return
        memory.looked_after = now
        try:
            await self._secret(meta, pod.attempt)
            await self._scrape(meta, pod.attempt)
            await self._service(meta)
        except ClusterError as error:
            _log.warning("not looked after: job=%s/%s error=%s", meta.namespace, meta.name, error)

    async def _secret(self, meta: Meta, attempt: int) -> None:
        """With what the driver has; tokens that nobody remembers come with a new driver."""
        name = names.token_secret_name(meta.name, attempt)
        tokens = self._tokens.known(meta.uid, attempt)
        if tokens is None or tokens.by_older_operator:
            return
        if await self._cluster.get("Secret", meta.namespace, name) is not None:
            return
        config = names.config_map_name(meta.name, attempt)
        found = await self._cluster.get("ConfigMap", meta.namespace, config)
        owner = owner_reference(meta)
        if found is not None:
            owner = config_owner(meta, attempt, found["metadata"]["uid"])
        await self._cluster.create(token_secret(meta, attempt, tokens.control, owner))
        _log.warning("a Secret was gone: job=%s/%s name=%s", meta.namespace, meta.name, name)

    async def _scrape(self, meta: Meta, attempt: int) -> None:
        """For a driver that an older operator started with the one token that it knows."""
        tokens = self._tokens.known(meta.uid, attempt)
        if tokens is None:
            return  # it was not asked yet: whose it is, is not known
        if await self._tokens.ensure_scrape(
            meta, tokens.control if tokens.by_older_operator else ""
        ):
            name = names.scrape_secret_name(meta.name)
            _log.warning("a Secret was made: job=%s/%s name=%s", meta.namespace, meta.name, name)

    async def _service(self, meta: Meta) -> None:
        name = names.service_name(meta.name)
        if await self._cluster.get("Service", meta.namespace, name) is None:
            await self._cluster.apply(service(meta))
            _log.warning("a Service was gone: job=%s/%s name=%s", meta.namespace, meta.name, name)
