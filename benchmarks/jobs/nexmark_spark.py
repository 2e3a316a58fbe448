"""Nexmark's queries as Spark's own streaming says them, where it can say them.

Each is a function of how to read an input. Windows that are open at the end of the input stay open.
"""

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

Read = Callable[[str], DataFrame]


def q0(read: Read) -> DataFrame:
    """All bids."""
    return read("bids").drop("time")


def q1(read: Read) -> DataFrame:
    """All bids in euros."""
    return read("bids").select("auction", "bidder", sf.expr("price * 908 div 1000"), "at")


def q2(read: Read) -> DataFrame:
    """Bids for some auctions."""
    return read("bids").where("auction % 123 = 0").select("auction", "price")


def q3(read: Read) -> DataFrame:
    """Who sells near; both inputs are kept for ever."""
    near = read("persons").drop("time").where("state in ('OR', 'ID', 'CA')")
    some = read("auctions").drop("time").where("category = 10").withColumnRenamed("id", "auction")
    return some.join(near, some.seller == near.id).select("name", "city", "state", "auction")


def q5(read: Read) -> DataFrame:
    """The auctions with the most bids of each window."""
    counts = read("bids").groupBy(sf.window("time", "10 seconds", "2 seconds"), "auction").count()
    together = counts.groupBy("window").agg(
        sf.max("count").alias("most"), sf.collect_list(sf.struct("auction", "count")).alias("all")
    )
    rows = together.select(sf.unix_millis("window.end"), "most", sf.explode("all").alias("one"))
    return rows.where("one.count = most").drop("most").select("*", "one.*").drop("one")


def q7(read: Read) -> DataFrame:
    """The highest bid of each window; of equal ones one."""
    bid = sf.struct("price", "auction", "bidder", "at")
    highest = read("bids").groupBy(sf.window("time", "10 seconds")).agg(sf.max(bid).alias("bid"))
    start = sf.unix_millis("window.start")
    return highest.select(start, "bid.auction", "bid.price", "bid.bidder", "bid.at")


def q8(read: Read) -> DataFrame:
    """Who registered and sold in a window."""
    selling = read("auctions").groupBy(sf.window("time", "10 seconds"), "seller").count()
    new = read("persons").withColumn("registered", sf.window("time", "10 seconds"))
    found = new.join(selling, (new.id == selling.seller) & (new.registered == selling["window"]))
    return found.select("id", "name", sf.unix_millis("registered.start"))


SPARK = {one.__name__: one for one in (q0, q1, q2, q3, q5, q7, q8)}
"""4 and 6 need an average that goes on, or the last ten, of what another operator found."""
