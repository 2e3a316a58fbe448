"""An errand's process: `python -m moorage.errand` does one thing in a store and says what it found.

The operator starts it as a pod under a job's service account. The request is in the environment,
the answer becomes the pod's termination message. It must not know Spark, nor any job's program.
"""

from moorage.errand.main import main

__all__ = ["main"]
