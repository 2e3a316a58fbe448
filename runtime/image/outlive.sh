#!/bin/sh
# Runs an executor's Java, and stays for some seconds after it has ended well, and for a stop hook at work.
#
# Spark tells its executors to end and deletes their pods in one go. A stop hook that Kubernetes runs in
# a container which is just ending may leave the pod with the kubelet until its grace is over, and the
# job's next driver waits for that. So the container is there for the hook, and ends when it is told to.
java= told=0

tell() {
    told=$((told + 1))
    [ -z "$java" ] || kill -s TERM "$java" 2>/dev/null
}

trap tell TERM
"$@" &
java=$!
[ "$told" -eq 0 ] || tell
# A signal ends a wait, and not always Java.
while
    heard=$told
    wait "$java"
    code=$?
    [ "$told" -ne "$heard" ]
do :; done

if [ "$told" -eq 0 ]; then
    trap 'exit "$code"' TERM
    if [ "$code" -eq 0 ]; then
        sleep 3 &
        wait $!
    fi
    while [ -e "${TMPDIR:-/tmp}/moorage-stop-hook" ]; do
        sleep 1 &
        wait $!
    done
fi
exit "$code"
