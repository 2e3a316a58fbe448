"""What a run takes over from its restore point beside state: the entry in the log, watermarks.

Called by the run when it begins, once its ranges are open.
"""

from moorage.driver.context import DriverContext
from moorage.driver.restore import VALUE_TIMES, Choice
from moorage.engine.event_time import JobClocks, Watermarks
from moorage_state.snapshots import Manifest, Run

__all__ = ["record_run", "watermarks_at"]


def record_run(context: DriverContext, number: int, choice: Choice) -> None:
    """Say in the log that this run begins, and from what: it holds after a crash, too."""
    policy = context.settings.restore
    followed = choice.explicit and not policy.explicit
    order_id = policy.order_id if followed else ""
    nonce = policy.nonce + 1 if followed and not order_id else 0
    manifest, own = choice.manifest, 0
    if choice.address and manifest is not None and manifest.lineage == context.writer.lineage:
        own = manifest.checkpoint_id
    fence = context.writer.fence
    claimed = choice.digest if policy.claim and choice.explicit else ""
    explicit = choice.explicit
    context.writer.append(Run(fence, number, choice.path, explicit, nonce, own, claimed, order_id))


def watermarks_at(clocks: JobClocks, manifest: Manifest | None) -> Watermarks:
    """The job's watermarks as the manifest has them; none yet without one."""
    if manifest is None:
        return Watermarks.at_first(clocks)
    stored = {uid: t for uid, t in manifest.watermarks.items() if t is not None}
    values = manifest.extra.get(VALUE_TIMES, {})
    return Watermarks.from_json(clocks, stored, manifest.idle_inputs, manifest.operators, values)
