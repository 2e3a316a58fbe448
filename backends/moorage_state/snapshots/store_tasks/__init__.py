"""Store tasks: what the control plane has done in a store, by itself or by a pod of the job's.

Decides nothing about a job: each reads or does one thing and says what it found. Both ways of
running one (in the operator's process, and `python -m moorage.errand`) call `run_store_task`.
"""

from moorage_state.snapshots.store_tasks.dispatch import run_store_task
from moorage_state.snapshots.store_tasks.messages import (
    ANSWER_BYTES,
    Answer,
    StoreTaskRequest,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)

__all__ = [
    "ANSWER_BYTES",
    "Answer",
    "StoreTaskRequest",
    "decode_answer",
    "decode_request",
    "encode_answer",
    "encode_request",
    "run_store_task",
]
