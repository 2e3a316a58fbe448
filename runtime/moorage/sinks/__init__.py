"""How output files are staged, made visible and taken back, in a directory and on an object store.

What a sink is says `moorage.api.sinks`; `moorage.api.file_sink` and `foreach_sinks` are made of
what is here. Must not know what an epoch's plan looks like.
"""
