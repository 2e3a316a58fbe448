"""Tools on a store alone: no Spark, no running job, no driver, and no terminal.

Decides what is in a checkpoint directory or savepoint, whether it is whole, what differs between
two, what may be deleted, and how one becomes a directory of its own; and reads single keys, counts
and exports state. Called by the command line; every function takes an address and returns plain
values. What only looks at manifests and logs imports neither RocksDB nor Arrow.
"""
