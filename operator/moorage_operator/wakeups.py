"""Which objects a change concerns: from what the watches show to wake-ups of the queue.

A pod wakes its job, a snapshot wakes itself and its job, a job wakes itself and those of its
snapshots that are under way. A wake-up too many costs one reading, one too few is made good by the
next relist.
"""

from collections.abc import Callable, Iterable
from typing import Any

from moorage_api.snapshot import FINAL_STATES
from moorage_operator.children.names import JOB_LABEL
from moorage_operator.loop import Ref
from moorage_operator.objects import job_name_of

__all__ = ["Wakeups"]


class Wakeups:
    """Knows which snapshots of a job are under way, as far as it has been shown them.

    Args:
        wake: sees to a pass.
        has_seen: whether a pass has seen an object of ours in this very version: of what the
            operator itself wrote last, the watch brings no news.
    """

    def __init__(
        self,
        wake: Callable[[Ref], None],
        has_seen: Callable[[dict[str, Any]], bool] = lambda _: False,
    ) -> None:
        self._wake, self._has_seen = wake, has_seen
        self._waiting: dict[Ref, set[Ref]] = {}
        self._jobs: dict[Ref, Ref] = {}

    def seen(self, event: str, kind: str, body: dict[str, Any]) -> None:
        """An object was listed, or changed, or is gone (event DELETED)."""
        meta = body["metadata"]
        for ref in self._concerned(event, kind, meta.get("namespace", ""), body):
            self._wake(ref)

    def _concerned(
        self, event: str, kind: str, namespace: str, body: dict[str, Any]
    ) -> Iterable[Ref]:
        name = body["metadata"]["name"]
        if kind == "Pod":
            job = (body["metadata"].get("labels") or {}).get(JOB_LABEL, "")
            return [Ref("StatefulSparkJob", namespace, job)] if job else []
        if kind == "StatefulSparkJob":
            ref = Ref("StatefulSparkJob", namespace, name)
            return [*self._own(ref, event, body), *sorted(self._waiting.get(ref, ()))]
        ref = Ref("StatefulSparkSnapshot", namespace, name)
        job = Ref("StatefulSparkJob", namespace, job_name_of(body.get("spec") or {}))
        self._note(ref, job, waits=event != "DELETED" and _is_under_way(body))
        return [*self._own(ref, event, body), *([job] if job.name else [])]

    def _own(self, ref: Ref, event: str, body: dict[str, Any]) -> list[Ref]:
        return [] if event != "DELETED" and self._has_seen({**body, "kind": ref.kind}) else [ref]

    def _note(self, ref: Ref, job: Ref, *, waits: bool) -> None:
        before = self._jobs.pop(ref, None)
        if before is not None:
            self._waiting[before].discard(ref)
            if not self._waiting[before]:
                del self._waiting[before]
        if waits:
            self._jobs[ref] = job
            self._waiting.setdefault(job, set()).add(ref)


def _is_under_way(body: dict[str, Any]) -> bool:
    if body["metadata"].get("deletionTimestamp"):
        return True
    return (body.get("status") or {}).get("state") not in FINAL_STATES
