"""A writer in a process of its own, driven by the tests.

claim URL HOLDER          claim, append one Run entry, and say how that ended
race URL HOLDER ENTRIES   once a line arrives on stdin: claim and append, again whenever another
                          process takes over, until the log has that many entries
"""

import random
import sys

from moorage_state.errors import Fenced
from moorage_state.snapshots import LineageLog, LogWriter, Owner, Run
from moorage_state.stores import open_store

OWNER = Owner("here", "default", "flights", "uid-1")


def claim(url: str, holder: str) -> None:
    writer = LogWriter.claim(open_store(url), OWNER, holder)
    sys.stdout.write(f"claimed {writer.fence}\n")
    try:
        writer.append(Run(writer.fence, 0))
    except Fenced as error:
        sys.stdout.write(f"fenced: {error}\n")
    else:
        sys.stdout.write("appended\n")


def race(url: str, holder: str, entries: str) -> None:
    chance = random.Random(holder)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    store = open_store(url)
    appended = fenced = 0
    while len(LineageLog.open(store).read()) < int(entries):
        writer = LogWriter.claim(store, OWNER, holder)
        try:
            for run in range(chance.randint(1, 30)):
                writer.append(Run(writer.fence, run))
                appended += 1
        except Fenced:
            fenced += 1
    sys.stdout.write(f"{appended} {fenced}\n")


if __name__ == "__main__":
    if sys.argv[1] == "claim":
        claim(*sys.argv[2:])
    else:
        race(*sys.argv[2:])
