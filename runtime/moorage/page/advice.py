"""What to do about what went wrong, by its stable code. Pure.

Most errors say it themselves; these sentences are for those whose words are the field's.
"""

REWIND = "rewind"
STORAGE = "storage"

_ADVICE = {
    "CHECKPOINT_EXPIRED": (
        "It took longer than checkpoint.timeout. Open one that completed below and see which "
        "server was slowest; give the store more bandwidth, or raise checkpoint.timeout."
    ),
    "CHECKPOINT_ASYNC_EXCEPTION": (
        "State could not be brought to the store; the job goes on and the next one tries again. "
        "See whether the store answers: moorage store check DIR."
    ),
    "FINALIZE_CHECKPOINT_FAILURE": (
        "Its manifest or its entry in the log could not be written. See whether the store answers "
        "and may be written to: moorage store check DIR."
    ),
    "IO_EXCEPTION": "See whether the store answers: moorage store check DIR.",
    "TASK_CHECKPOINT_FAILURE": (
        "A state server could not copy its state. See whether its volume is full."
    ),
    "TASK_FAILURE": (
        "A state server or its executor was lost. See why it went: memory, eviction, its node."
    ),
    "TRIGGER_CHECKPOINT_FAILURE": (
        "It could not begin. See the words above for why; the next one is tried as usual."
    ),
    "UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE": (
        "Another run has taken state servers of this one. See whether the job runs twice."
    ),
    REWIND: (
        "Nothing is lost: the job went on from the last checkpoint. Where it happens often, cure "
        "what the words above name; more frequent checkpoints make each of them shorter."
    ),
    STORAGE: "The job goes on without checkpoints meanwhile. Try it: moorage store check DIR.",
}


def advice_for(code: str) -> str:
    """A sentence, or nothing where the error's own words are all there is."""
    return _ADVICE.get(code, "")
