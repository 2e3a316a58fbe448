"""The control plane: watches StatefulSparkJob objects and keeps each job at what its spec says.

Runs on Kopf, one reconcile loop per object. It decides when a job is deployed, recovered,
upgraded, rescaled and deleted; `kubectl`, Helm and GitOps are its callers. It must not know Spark,
and of the state layer only snapshots, stores and errors. `python -m moorage_operator` starts it;
docs/operator.md says how a pass goes.
"""
