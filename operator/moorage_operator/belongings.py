"""What a running driver needs besides its pod, brought back where somebody deleted it.

New executors mount the Secret, and the operator needs it to speak to the driver; metrics and people
find the driver by the Service. Nothing tells of their deletion, so they are looked for now and
then. Called by every pass over a job; never holds one up.
"""

import logging
from datetime import timedelta

from moorage_operator.children import names, service, token_secret
from moorage_operator.memory import Memory
from moorage_operator.needs import current_driver
from moorage_operator.ports import Clock, Cluster, ClusterError
from moorage_operator.tokens import Tokens
from moorage_operator.world import JobWorld, Meta

__all__ = ["Belongings"]

_log = logging.getLogger("moorage.operator")

_EVERY = timedelta(minutes=1)


class Belongings:
    """The Secret and the Service of jobs whose driver lives."""

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
        lives = pod is not None and not pod.terminal and pod.deleted_at is None
        let_be = meta.deleted_at is not None or meta.annotation("paused") == "true"
        if not lives or let_be:
            return
        memory.looked_after = memory.looked_after or now
        if now < memory.looked_after + _EVERY:
            return
        memory.looked_after = now
        try:
            await self._secret(meta)
            await self._service(meta)
        except ClusterError as error:
            _log.warning("not looked after: job=%s/%s error=%s", meta.namespace, meta.name, error)

    async def _secret(self, meta: Meta) -> None:
        """With the token that the driver has; one that nobody remembers comes with a new driver."""
        name, token = names.token_secret_name(meta.name), self._tokens.known(meta.uid)
        if token and await self._cluster.get("Secret", meta.namespace, name) is None:
            await self._cluster.create(token_secret(meta, token))
            _log.warning("a Secret was gone: job=%s/%s name=%s", meta.namespace, meta.name, name)

    async def _service(self, meta: Meta) -> None:
        name = names.service_name(meta.name)
        if await self._cluster.get("Service", meta.namespace, name) is None:
            await self._cluster.apply(service(meta))
            _log.warning("a Service was gone: job=%s/%s name=%s", meta.namespace, meta.name, name)
