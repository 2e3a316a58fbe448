"""One of Nexmark's queries as a job.

Arguments: which one (q0 to q8), the folder with the inputs, and the one for the output.
"""

from queries import QUERIES

from moorage import StreamEnvironment


def build(env: StreamEnvironment) -> None:
    """Describe the job."""
    query, *env.args = env.args
    QUERIES[query](env)
