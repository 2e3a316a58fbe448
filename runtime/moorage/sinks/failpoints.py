"""The named places where a test may stop, kill or interrupt a sink; see `failpoints`."""

__all__ = ["PLACES"]

PLACES = {
    "sink.staged": "a file is staged durably and not acknowledged",
    "sink.before_publish": "the checkpoint exists, a file sink has done nothing for it",
    "sink.recorded": "the record names the files (or what was handed over), nothing else is done",
    "sink.renamed": "one file of a directory is visible",
    "sink.before_commit": "the list of visible files does not have the entry",
    "sink.committed": "the list has the entry",
    "sink.before_call": "the function was not called",
    "sink.after_call": "the function was called, nothing says so",
    "sink.dropped": "one file of rows for a function is gone",
    "sink.marked": "a run has left its mark on a store, older marks are there",
    "sink.moved": "a restore moved one file of a directory, to or from where readers look",
    "sink.taken_back": "all files that the restore point does not cover are out of sight",
    "sink.brought_back": "all files that it covers are in sight",
    "sink.unread": "a retirement found no newer run, and has read no record",
    "sink.forgotten": "taken-back files, or a record of what was handed over, are gone",
    "sink.swept": "one file that nothing can ask for is gone from a store",
    "sink.compacted": "the records are written together, the single ones are there",
}
