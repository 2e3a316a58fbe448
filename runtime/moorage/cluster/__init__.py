"""The driver of a job in a cluster: started with files, watched and asked over HTTP.

`python -m moorage.cluster` reads what the operator mounted, runs the job, answers its endpoint, and
leaves one line of JSON when it ends. It must not know Kubernetes' API: pods, services and secrets
are the operator's, executors are Spark's.
"""
