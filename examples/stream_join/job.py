"""Two streams by key and time: each click with the ads that were shown within ten minutes before.

No function is written: the join keeps rows of both streams for as long as others may belong to
them. Rows that come too late for that are counted and dropped.
Arguments: the folders with shown ads and with clicks as JSON lines, and the folder for the output.
"""

from moorage import FileSink, StreamEnvironment

SHOWN = "visit string, ad string, at timestamp"
CLICKS = "visit string, page string, at timestamp"


def build(env: StreamEnvironment) -> None:
    """Describe the job."""
    shown_files, click_files, target = env.args
    shown = env.read_stream("shown", "json", schema=SHOWN, path=shown_files)
    clicks = env.read_stream("clicks", "json", schema=CLICKS, path=click_files)
    # Time goes on as the slower of the two does; one that is silent is not waited for.
    shown = shown.with_event_time("at", max_delay="1m", idle_after="1m")
    clicks = clicks.with_event_time("at", max_delay="1m", idle_after="1m")
    pairs = shown.key_by("visit").interval_join(clicks.key_by("visit")).between("0s", "10m")
    pairs.select(
        uid="pairs", visit="left.visit", ad="left.ad", page="right.page", clicked="right.at"
    ).sink_to(FileSink(target), uid="out")
