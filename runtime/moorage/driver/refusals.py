"""Why a job does not start: each reason with a stable code.

Whoever starts jobs (a person, the operator) decides by the code what to do: another start changes
none of these, only a person, or time for a store that is away.
"""

from moorage_state.errors import CorruptState, UserError


class StoreRefused(UserError):
    """The checkpoint directory cannot be used by this run.

    It is missing, unreadable, held by another run or owned by another job; the message says which.
    """

    code = "store_refused"


class StoreAccessRefused(StoreRefused):
    """The store of the checkpoint directory refuses: permissions, credentials, no such bucket."""

    code = "store_denied"


class DirectoryConflict(StoreRefused):
    """The checkpoint directory belongs to another job."""

    code = "checkpoint_dir_conflict"


class AdoptRequired(StoreRefused):
    """It belongs to another object of the job's name; a person must say that it may be taken."""

    code = "adopt_required"


class RestorePointNotFound(UserError):
    """There is nothing to restore where the job was told to begin."""

    code = "restore_point_not_found"


class RestorePointIncompatible(UserError):
    """The restore point is not one that this job can continue from."""

    code = "restore_point_incompatible"


class RestorePointChanged(StoreRefused):
    """Another snapshot lies where the chosen one lay."""

    code = "restore_point_changed"


class RestorePointCorrupt(CorruptState):
    """The restore point is damaged, and no older one may take its place."""

    code = "restore_point_corrupt"
