"""What to do about what went wrong, by its stable code. Pure.

Most errors say it themselves; these sentences are for those whose words are the field's, or that
do not know the command line.
"""

REWIND = "rewind"
STORAGE = "storage"
UNREADABLE = "unreadable"
"""One checkpoint or savepoint among others."""

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
    # Of a store, without a job: codes of errors, and of warnings of its listing.
    "corrupt_state": (
        "See what is whole: moorage snapshots verify DIR. From a savepoint a job begins by its "
        "address: moorage run JOB.yaml --restore ADDRESS."
    ),
    "newer_format": "Look with the release that wrote it, or a later one.",
    "nothing_stored": (
        "The first checkpoint of a job comes here: moorage run JOB.yaml. If there should be some, "
        "see that this is its state.checkpointDir, at the same endpoint."
    ),
    "restore_point_retired": (
        "Begin from something that is listed below: moorage run JOB.yaml --restore NAME; or with "
        "nothing: restore.mode: Empty and restore.acknowledgeStateLoss: true."
    ),
    "savepoints_not_listed": (
        "Checkpoints are not affected. Mount the volume, or correct state.savepointDir."
    ),
    "store_denied": (
        "Give these credentials read, write, list and delete below the prefix, and see that the "
        "bucket is there. Try it: moorage store check DIR."
    ),
    "store_unavailable": "See whether the store answers: moorage store check DIR.",
    UNREADABLE: (
        "Begin from another one: moorage run JOB.yaml --restore NAME. Which are whole says "
        "moorage snapshots verify DIR."
    ),
    STORAGE: "The job goes on without checkpoints meanwhile. Try it: moorage store check DIR.",
}


def advice_for(code: str) -> str:
    """A sentence, or nothing where the error's own words are all there is."""
    return _ADVICE.get(code, "")
