"""Which namespaces have the labels by which an operator looks after them, now.

They are listed again and again, and not watched: one request in ten seconds, which misses nothing
and needs nothing to be repaired. A list that fails says nothing: what is looked after stays so.
"""

import asyncio
import logging
import random

from moorage_operator.ports import Cluster, ClusterError

_log = logging.getLogger("moorage.operator")

LOOK_EVERY = 10.0
"""Seconds between two looks, about."""


class LabelledNamespaces:
    """The namespaces that a selector finds.

    Args:
        selector: of labels, as the API server is asked.
    """

    def __init__(self, cluster: Cluster, selector: str) -> None:
        self._cluster, self._selector = cluster, selector
        self._problem = ""
        self._known = frozenset[str]()

    async def known(self) -> frozenset[str]:
        """Their names, once they can be listed."""
        while (found := await self.look()) is None:  # noqa: ASYNC110  what is waited for is a server
            await asyncio.sleep(random.uniform(1.0, 3.0))  # noqa: S311
        self._known = found
        return found

    async def changed(self) -> frozenset[str]:
        """Their names, once they are others than at the last call."""
        while True:
            await asyncio.sleep(LOOK_EVERY * random.uniform(0.8, 1.2))  # noqa: S311
            found = await self.look()
            if found is not None and found != self._known:
                self._known = found
                return found

    async def look(self) -> frozenset[str] | None:
        """Their names; None if nobody knows at the moment."""
        found = set[str]()
        try:
            async for page in self._cluster.pages("Namespace", None, self._selector):
                if page.first:
                    found.clear()
                found.update(body["metadata"]["name"] for body in page.items)
        except ClusterError as error:
            self._tell(str(error))
            return None
        self._tell("")
        return frozenset(found)

    def _tell(self, problem: str) -> None:
        if problem and problem != self._problem:
            _log.warning(
                "namespaces cannot be listed, and those that are looked after stay so: "
                "selector=%s error=%s; give the operator the right to list namespaces",
                self._selector,
                problem,
            )
        elif self._problem and not problem:
            _log.info("namespaces are listed again: selector=%s", self._selector)
        self._problem = problem
