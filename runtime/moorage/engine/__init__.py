"""The epoch engine: how one micro-batch of Spark becomes one exactly-once step of keyed state.

`plan` turns the job graph into the DataFrames of one epoch, `subtask` runs on executors, `acks`
says what came back and whether it agrees, `epoch` drives prepare, acknowledge and commit.
`placement` puts each subtask where its state is; `sparklog` captures and re-lays Spark's own
offset log. Called by the driver. Knows nothing of manifests, fences or the command line.
"""
