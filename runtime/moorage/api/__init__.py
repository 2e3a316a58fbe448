"""What a job's author imports, by way of `moorage`: all of it, and nothing that runs a job.

`functions`, `vectorized`, `broadcast` and `checkpointed` are what people write; `streams` is what
`build(env)` is given, and `graph` what that leaves behind for the engine. `sinks` says what a sink
is, `file_sink` and `foreach_sinks` are those that come with Moorage. Descriptors, handles and time
to live are the state layer's (`moorage_state.descriptors`, `.keyed`, `.timetolive`).
"""
