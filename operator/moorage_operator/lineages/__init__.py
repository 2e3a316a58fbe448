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
from moorage_operator.world import StoreTaskView, StoreView, Unreadable

__all__ = ["ChosenLineages", "LineageSettings"]


@dataclass(frozen=True, slots=True)
class LineageSettings:
    """What the operator may do itself; everything else is done by pods."""

    read_secrets: bool = True  # read the Secrets that jobs name, and use what is in them
    own_chain: bool = False  # use the operator's own credentials for jobs that name no Secret
    # Open `file://` directories, which must then be mounted here as in the jobs
    local_files: bool = False

    @property
    def schemes(self) -> frozenset[str]:
        """The kinds of stores that the operator opens."""
        return frozenset({"s3", "file"} if self.local_files else {"s3"})

    def is_direct(self, job: JobRefs) -> bool:
        """Whether the operator goes itself."""
        state = job.spec.state
        if state.checkpoint_dir.startswith("file://"):
            return self.local_files
        return self.own_chain if state.credentials_secret_ref is None else self.read_secrets


@dataclass(frozen=True, slots=True)
class ChosenLineages:
    """See `moorage_operator.ports.Lineages`; goes by the job's spec and the settings alone."""

    direct: Lineages
    store_tasks: Lineages
    settings: LineageSettings

    async def inspect(
        self, job: JobRefs, since: datetime | None = None
    ) -> StoreView | Unreadable | None:
        """See `Lineages.inspect`."""
        return await self._way(job).inspect(job, since)

    async def run(self, job: JobRefs, store_task: StoreTask) -> StoreTaskView:
        """See `Lineages.run`."""
        way = self.store_tasks if store_task.kind == "Copy" else self._way(job)
        return await way.run(job, store_task)

    async def look(self, job: JobRefs, task_id: str) -> StoreTaskView | None:
        """See `Lineages.look`."""
        found = await self._way(job).look(job, task_id)
        if found is None and self._way(job) is not self.store_tasks:
            # Gigabytes are for a pod of the job's to move, whoever may open the store.
            found = await self.store_tasks.look(job, task_id)
        return found

    def _way(self, job: JobRefs) -> Lineages:
        return self.direct if self.settings.is_direct(job) else self.store_tasks
