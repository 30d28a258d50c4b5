#!/bin/sh
# Completes the root of a node image; mmdebstrap runs it with the root's path.
set -eu
root=$1

# The login user of DGX OS: sudo without a password, no password of its own, not in the docker group.
chroot "$root" useradd --create-home --shell /bin/bash --uid 1000 nvidia
printf 'nvidia ALL=(ALL) NOPASSWD: ALL\n' > "$root/etc/sudoers.d/nvidia"
chmod 0440 "$root/etc/sudoers.d/nvidia"

# Each node gets its own host key when it is made.
rm -f "$root"/etc/ssh/ssh_host_*
cat > "$root/etc/ssh/sshd_config.d/lab.conf" <<'CONF'
HostKey /etc/ssh/ssh_host_ed25519_key
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin no
CONF

mkdir -p "$root/etc/docker"
cat > "$root/etc/docker/daemon.json" <<'CONF'
{
  "storage-driver": "overlay2",
  "default-address-pools": [{"base": "172.30.0.0/16", "size": 24}]
}
CONF

# Process 1 of a node. /proc/sys/vm belongs to the whole machine: the node gets copies of its own, as files, which
# like real settings hold until the next start.
cat > "$root/sbin/lab-init" <<'INIT'
#!/bin/sh
set -eu
mkdir -p /run/lab-sysctl/vm
cp /proc/sys/vm/* /run/lab-sysctl/vm/ 2>/dev/null || :  # some can only be written
touch /run/lab-sysctl/vm/drop_caches /run/lab-sysctl/vm/compact_memory
mount --bind /run/lab-sysctl/vm /proc/sys/vm
# Each start is a boot of its own, which is how a reboot is told from a pause.
cat /proc/sys/kernel/random/uuid > /run/lab-sysctl/boot_id
mount --bind /run/lab-sysctl/boot_id /proc/sys/kernel/random/boot_id
# With cgroup version 2 Docker mounts the node's own tree read-only.
[ ! -e /sys/fs/cgroup/cgroup.controllers ] || mount -o remount,bind,rw /sys/fs/cgroup
exec /sbin/init "$@"
INIT
chmod 0755 "$root/sbin/lab-init"

# Nothing to do for these in a container, or the machine's business.
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer \
    getty@tty1.service console-getty.service dev-hugepages.mount sys-kernel-debug.mount sys-kernel-tracing.mount; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
: > "$root/etc/machine-id"
mkdir -p "$root/data" "$root/srv/lab/engine"
