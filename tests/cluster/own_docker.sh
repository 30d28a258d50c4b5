#!/bin/bash
# A Docker of its own beside the node's: own_docker.sh start|stop classic|containerd DIRECTORY
set -eu
act=$1 store=$2 place=$3
if [ "$act" = stop ]; then
    for name in docker containerd; do
        [ ! -f "$place/$name.pid" ] || kill "$(cat "$place/$name.pid")" 2>/dev/null || :
    done
    for _ in $(seq 100); do [ -e "/proc/$(cat "$place/docker.pid" 2>/dev/null || echo none)" ] || break; sleep 0.1; done
    awk -v place="$place/" 'index($2, place) == 1 { print $2 }' /proc/mounts | sort -r | xargs -r umount --lazy
    rm -rf "$place"
    exit
fi
mkdir -p "$place"
features=false
[ "$store" = classic ] || features=true
cat > "$place/containerd.toml" <<C
version = 2
root = "$place/containerd"
state = "$place/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "$place/containerd.sock"
C
cat > "$place/daemon.json" <<C
{"features": {"containerd-snapshotter": $features}, "bridge": "none", "iptables": false, "ip6tables": false,
 "data-root": "$place/data", "exec-root": "$place/exec", "pidfile": "$place/docker.pid",
 "containerd": "$place/containerd.sock", "hosts": ["unix://$place/docker.sock"]}
C
setsid containerd --config "$place/containerd.toml" > "$place/containerd.log" 2>&1 9>&- &
echo $! > "$place/containerd.pid"
for _ in $(seq 100); do [ ! -S "$place/containerd.sock" ] || break; sleep 0.1; done
setsid dockerd --config-file "$place/daemon.json" > "$place/docker.log" 2>&1 9>&- &
for _ in $(seq 300); do
    docker -H "unix://$place/docker.sock" info > /dev/null 2>&1 && exit
    sleep 0.1
done
tail -5 "$place/docker.log" >&2
exit 1
