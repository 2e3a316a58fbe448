"""Asks the ticker while it runs: its counters, and whether one of them ever met a wrong tick.

    python ask.py job.yaml

Prints one line of JSON and ends with status 1 if a tick was lost or counted twice.
"""

import json
import sys

from job import COUNTERS

from moorage.queryable import QueryableStateClient


def main(manifest: str) -> int:
    """Print what all counters have come to."""
    with QueryableStateClient.of_local_job(manifest) as client:
        # One question for all of them; those that had no tick yet have nothing.
        seen = [one for one in client.get_many("counters", list(range(COUNTERS))) if one]
    found = {"ticks": sum(one["ticks"] for one in seen), "wrong": sum(one["wrong"] for one in seen)}
    print(json.dumps(found))
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
