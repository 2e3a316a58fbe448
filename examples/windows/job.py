"""Taxi trips by the hour, the busy spells of each taxi, and its three dearest trips.

Arguments: the folder with trips as JSON lines, and the folder for the output.
"""

from moorage import FileSink, OutputTag, Session, StreamEnvironment, Tumbling, count, max_, sum_

TRIPS = "id string, taxi string, at timestamp, fare double"
LATE = OutputTag("late")


def build(env: StreamEnvironment) -> None:
    """Describe the job."""
    source, target = env.args
    trips = env.read_stream("trips", "json", schema=TRIPS, path=source, maxFilesPerTrigger=1)
    once = trips.key_by("id").deduplicate(uid="once", ttl="1d")
    by_taxi = trips.with_event_time("at", max_delay="10m").key_by("taxi")

    hourly = by_taxi.window(Tumbling("1h"), allowed_lateness="30m", late=LATE).aggregate(
        uid="hourly", trips=count(), fares=sum_("fare"), dearest=max_("fare")
    )
    hourly.sink_to(FileSink(f"{target}/hourly"), uid="hourly-out")
    hourly.get_side_output(LATE).sink_to(FileSink(f"{target}/late"), uid="late-out")

    spells = by_taxi.window(Session("20m")).aggregate(uid="spells", trips=count())
    spells.sink_to(FileSink(f"{target}/spells"), uid="spells-out")

    best = once.key_by("taxi").top_n(3, by="fare", uid="dearest")
    best.sink_to(FileSink(f"{target}/dearest"), uid="dearest-out")
