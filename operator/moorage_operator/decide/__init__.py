"""What is to be done about a StatefulSparkJob: `decide_job(world) -> Plan`.

Pure: no I/O, and no clock but the world's. Called by the reconcile loop, once in each pass, with
everything that was observed; it answers with the status to write, the effects to carry out then,
and the events to tell. It must not know the API server, HTTP or a store. docs/operator-states.md
has the state machine and the table of everything that it says.
"""

from moorage_operator.decide.conditions import TYPES as CONDITION_TYPES
from moorage_operator.decide.dispatch import decide_job
from moorage_operator.decide.specs import revision_name

__all__ = ["CONDITION_TYPES", "decide_job", "revision_name"]
