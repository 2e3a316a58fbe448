"""What the objects of a job are called and how they are labelled.

Names are made from the job's name and the attempt's number alone, so that an operator that was
ended half way finds what it had begun.
"""

from collections.abc import Mapping
from typing import Any

from moorage_api.job import API_VERSION, KIND
from moorage_operator.world import Meta

JOB_LABEL = "moorage.dev/job"
JOB_UID_LABEL = "moorage.dev/job-uid"
ROLE_LABEL = "moorage.dev/role"
ATTEMPT_LABEL = "moorage.dev/attempt"
SHARD_LABEL = "moorage.dev/shard"
REVISION_ANNOTATION = "moorage.dev/revision"
STANDBY_ANNOTATION = "moorage.dev/standby"
"""Of a driver that was made to run beside another one; it stays when it leads."""

# In pods a store task keeps the name that it had once, `errand`: pods of an operator before this
# one are found again by it, charts let their role through, and images of every release know the
# module and the variable.
STORE_TASK_ROLE = "errand"
STORE_TASK_ANNOTATION = "moorage.dev/errand"
"""Which store task a pod of that role is for."""


def driver_pod_name(job: str, attempt: int) -> str:
    """The driver's pod of an attempt."""
    return f"{job}-{attempt}-driver"


def config_map_name(job: str, attempt: int) -> str:
    """The ConfigMap of an attempt."""
    return f"{job}-{attempt}-config"


def executor_prefix(job: str, attempt: int) -> str:
    """What Spark puts before `-exec-<id>` in the names of executor pods."""
    return f"{job}-{attempt}"


def application_id(uid: str, attempt: int) -> str:
    """What Spark calls an attempt's application, and the claims that it may use."""
    return f"{uid}-{attempt}"


def service_name(job: str) -> str:
    """The Service in front of whichever driver lives."""
    return f"{job}-driver"


def budget_name(job: str, role: str) -> str:
    """The PodDisruptionBudget of a role's pods."""
    return f"{job}-{role}"


def token_secret_name(job: str, attempt: int) -> str:
    """The Secret of an attempt."""
    return f"{job}-{attempt}-tokens"


def older_secret_name(job: str) -> str:
    """The Secret of all attempts that older operators made, with one token for everything."""
    return f"{job}-token"


def scrape_secret_name(job: str) -> str:
    """The Secret with the token that reads from the endpoint of every attempt."""
    return f"{job}-scrape"


def labels(meta: Meta, role: str = "", attempt: int = 0) -> dict[str, str]:
    """The labels of an object of the job; those of pods have a role and an attempt."""
    found = {
        "app.kubernetes.io/name": "moorage",
        "app.kubernetes.io/instance": meta.name,
        "app.kubernetes.io/managed-by": "moorage-operator",
        JOB_LABEL: meta.name,
        JOB_UID_LABEL: meta.uid,
    }
    if SHARD_LABEL in meta.labels:
        # The operator of a shard is shown only what has its label.
        found[SHARD_LABEL] = meta.labels[SHARD_LABEL]
    if role:
        found |= {"app.kubernetes.io/component": role, ROLE_LABEL: role}
    if attempt:
        found[ATTEMPT_LABEL] = str(attempt)
    return found


def selector(uid: str, role: str, attempt: int = 0) -> dict[str, str]:
    """The labels that find the pods of a job in one role, of one attempt or of all."""
    found = {JOB_UID_LABEL: uid, ROLE_LABEL: role}
    return {**found, ATTEMPT_LABEL: str(attempt)} if attempt else found


def owner_reference(meta: Meta) -> Mapping[str, Any]:
    """Makes an object go with the job."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": meta.name,
        "uid": meta.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
