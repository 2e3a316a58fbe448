"""Store tasks: what the control plane has done in a store, by itself or by a pod of the job's.

Decides nothing about a job: each reads or does one thing and says what it found. Both ways of
running one (in the operator's process, and `python -m moorage.errand`) call `run_store_task`.
"""

from moorage_state.snapshots.store_tasks.dispatch import run_store_task as run_store_task
from moorage_state.snapshots.store_tasks.messages import Answer as Answer
from moorage_state.snapshots.store_tasks.messages import StoreTaskRequest as StoreTaskRequest
from moorage_state.snapshots.store_tasks.messages import decode_answer as decode_answer
from moorage_state.snapshots.store_tasks.messages import decode_request as decode_request
from moorage_state.snapshots.store_tasks.messages import encode_answer as encode_answer
from moorage_state.snapshots.store_tasks.messages import encode_request as encode_request
