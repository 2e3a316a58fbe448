"""The operator's way to its jobs' stores: by itself, or by a pod under the job's own account.

Implements the port `Lineages` twice, and chooses. What is done in a store is in
`moorage_state.snapshots.errands`; here it is decided with whose credentials, for how long, and how
a crash in between is survived. It decides nothing about jobs. Nothing read is kept for later
decisions, and no secret is ever shown.
"""

from moorage_operator.lineages.choosing import ChosenLineages, LineageSettings
from moorage_operator.lineages.direct import DirectLineages
from moorage_operator.lineages.pods import ErrandLineages

__all__ = ["ChosenLineages", "DirectLineages", "ErrandLineages", "LineageSettings"]
