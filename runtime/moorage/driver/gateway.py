"""The JVM that PySpark works through, which signals meant for this process must not end.

Decides how it is started: in a session of its own, so that neither Ctrl-C, nor a terminal that is
closed, nor a signal to our process group reaches it; and deaf to signals that every process of a
service gets. The last checkpoint needs it. It ends when our end of its stdin closes, which we take
with us however we end. Called when a session starts.
"""

import logging
import os
from collections.abc import Mapping

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

from moorage.engine.worker_daemon import SAFE_PATH

__all__ = ["start_jvm"]

_log = logging.getLogger(__name__)

_OURS = ("HUP", "INT", "TERM")


def start_jvm(conf: Mapping[str, str]) -> None:
    """Start the JVM with these settings on its command line, if this process has none yet.

    Raises:
        PySparkRuntimeError: it ended before it could be reached.
    """
    if SparkContext._gateway is not None:
        return
    settings = SparkConf(loadDefaults=False)
    settings.setAll(list(conf.items()))
    # Workers must not import from the directory we are in, which may be a job's.
    safe = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = safe or "1"
    try:
        gateway = launch_gateway(  # type: ignore[no-untyped-call]  # PySpark has no types here
            settings, {"start_new_session": True}
        )
    finally:
        if safe is None:
            del os.environ[SAFE_PATH]
    SparkContext._gateway, SparkContext._jvm = gateway, gateway.jvm
    misc = gateway.jvm.sun.misc
    try:
        for name in _OURS:
            misc.Signal.handle(misc.Signal(name), misc.SignalHandler.SIG_IGN)
    except Py4JError as error:  # -Xrs, say: then the JVM leaves signals as they are
        _log.info("jvm_takes_signals: %s", error)
