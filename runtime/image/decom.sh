#!/bin/sh
# What Spark runs in an executor's container before Kubernetes ends it (spark.decommission.enabled):
# tell the executor to hand over its shuffle files, and give it half a minute for that.
for directory in /proc/[0-9]*; do
    pid=${directory#/proc/}
    if tr '\0' ' ' <"$directory/cmdline" 2>/dev/null | grep -q '^[^ ]*java .*KubernetesExecutorBackend'; then
        kill -s PWR "$pid" 2>/dev/null || continue
        seconds=0
        while [ -d "$directory" ] && [ "$seconds" -lt 35 ]; do
            sleep 1
            seconds=$((seconds + 1))
        done
    fi
done
exit 0
