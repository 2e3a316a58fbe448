#!/bin/sh
# What Spark runs in an executor's container before Kubernetes ends it (spark.decommission.enabled).
#
# Where the driver is told to end as well, as on a node that is drained, the executor goes on as it is: the driver's
# last checkpoint needs it, and Spark ends it after that. Both may hear of it a little apart, so the driver is asked
# for some seconds, and as long as it says so; its time to end is no longer than this pod's. Else the executor is told
# to take no more tasks and to hand over its shuffle files, and has 20 seconds for that.

# Whether it does, by its status: 0 yes, 1 no, or there was no answer in time, 2 it is gone.
driver_ends() {
    python -ISc '
import http.client, os, ssl, sys, urllib.parse
host = urllib.parse.urlsplit(os.environ["SPARK_DRIVER_URL"]).hostname
kind, more = http.client.HTTPConnection, {}
if os.path.isdir("/etc/moorage/tls"):
    # Believed unseen, as the kubelet does: whoever lies here only has a pod end later.
    kind, more = http.client.HTTPSConnection, {"context": ssl._create_unverified_context()}
driver = kind(host, 7780, timeout=2, **more)
try:
    driver.request("GET", "/healthz")
    sys.exit(driver.getresponse().read() != b"ends\n")
except TimeoutError:
    sys.exit(1)
except OSError:
    sys.exit(2)' 2>/dev/null
}

# The container does not end before (outlive.sh): a hook in one that ends may leave the pod there for a minute.
hook=${TMPDIR:-/tmp}/moorage-stop-hook
true 2>/dev/null >"$hook"
trap 'rm -f "$hook"' EXIT

for directory in /proc/[0-9]*; do
    pid=${directory#/proc/}
    if tr '\0' ' ' <"$directory/cmdline" 2>/dev/null | grep -q '^[^ ]*java .*KubernetesExecutorBackend'; then
        ends=no left=5
        while [ -d "$directory" ] && [ "$left" -gt 0 ]; do
            driver_ends
            case $? in
                0) ends=yes left=5 ;;
                1) left=$((left - 1)) ;;
                *) break ;;
            esac
            sleep 1
        done
        # A Java that just starts does not see that its driver is gone: Kubernetes ends it.
        [ "$ends" = no ] && kill -s PWR "$pid" 2>/dev/null || continue
        seconds=0
        while [ -d "$directory" ] && [ "$seconds" -lt 20 ]; do
            sleep 1
            seconds=$((seconds + 1))
        done
    fi
done
exit 0
