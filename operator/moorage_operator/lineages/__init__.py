"""The operator's way to its jobs' stores: by itself, or by a pod under the job's own account.

Implements the port `Lineages` twice, and chooses. What is done in a store is in
`moorage_state.snapshots.store_tasks`; here it is decided with whose credentials, for how long, and
how a crash in between is survived. It decides nothing about jobs. Nothing read is kept for later
decisions, and no secret is ever shown.
"""

from dataclasses import dataclass
from datetime import datetime

from moorage_operator.plan import StoreTask
from moorage_operator.ports import JobRefs, Lineages
from moorage_operator.settings import Settings
from moorage_operator.world import StoreTaskView, StoreView, Unreadable


@dataclass(frozen=True, slots=True)
class ChosenLineages:
    """See `moorage_operator.ports.Lineages`; goes by the job's spec and the settings alone."""

    direct: Lineages
    store_tasks: Lineages
    settings: Settings

    async def inspect(
        self, job: JobRefs, since: datetime | None = None
    ) -> StoreView | Unreadable | None:
        """See `Lineages.inspect`."""
        return await self._way(job).inspect(job, since)

    async def run(self, job: JobRefs, store_task: StoreTask) -> StoreTaskView:
        """See `Lineages.run`."""
        by_pod = store_task.kind in ("Copy", "Preflight")
        way = self.store_tasks if by_pod else self._way(job)
        return await way.run(job, store_task)

    async def look(self, job: JobRefs, task_id: str) -> StoreTaskView | None:
        """See `Lineages.look`."""
        found = await self._way(job).look(job, task_id)
        if found is None and self._way(job) is not self.store_tasks:
            # Gigabytes are for a pod of the job's to move, whoever may open the store.
            found = await self.store_tasks.look(job, task_id)
        return found

    def _way(self, job: JobRefs) -> Lineages:
        return self.direct if self._is_direct(job) else self.store_tasks

    def _is_direct(self, job: JobRefs) -> bool:
        """Whether the operator goes itself."""
        state, may = job.spec.state, self.settings
        if state.checkpoint_dir.startswith("file://"):
            return may.local_files
        endpoint = (state.s3.endpoint or "").rstrip("/")
        if endpoint and may.store_endpoints and endpoint not in may.store_endpoints:
            return False
        return may.own_credentials if state.credentials_secret_ref is None else may.read_secrets
