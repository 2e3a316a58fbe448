"""The preflight of an upgrade: which pod tries the new version, and what that has come to. Pure."""

from moorage_operator.decide.draft import Draft
from moorage_operator.decide.specs import policy
from moorage_operator.plan import StoreTask
from moorage_operator.world import StoreTaskView


def preflight_task(draft: Draft) -> StoreTask:
    """The task of the operation under way."""
    spec = policy(draft)
    stateless = spec is not None and spec.upgrade.mode == "Stateless"
    name = f"preflight-{draft.operation.id}-{draft.tag}"
    return StoreTask(name, "Preflight", source="Empty" if stateless else "")


def preflight_view(draft: Draft) -> StoreTaskView | None:
    """How far it is; None before anything is known."""
    return draft.world.store_tasks.get(preflight_task(draft).id)


def preflight_text(draft: Draft) -> str:
    """What a person should know while it goes on."""
    view = preflight_view(draft)
    held = f": {view.message}" if view is not None and view.message else ""
    return f"the new version is tried, and the old one runs{held}"
