"""Errands: what the control plane has done in a store, by itself or by a pod of the job's.

Decides nothing about a job: each errand reads or does one thing and says what it found. Both forms
of running one (in the operator's process, and `python -m moorage.errand`) call `run_errand`.
"""

from moorage_state.snapshots.errands.messages import (
    ANSWER_BYTES,
    ERRAND_FORMAT,
    Answer,
    ErrandKind,
    Request,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)
from moorage_state.snapshots.errands.places import Opener
from moorage_state.snapshots.errands.running import run_errand

__all__ = [
    "ANSWER_BYTES",
    "ERRAND_FORMAT",
    "Answer",
    "ErrandKind",
    "Opener",
    "Request",
    "decode_answer",
    "decode_request",
    "encode_answer",
    "encode_request",
    "run_errand",
]
