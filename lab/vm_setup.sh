#!/bin/sh
# Completes the root of a virtual machine; mmdebstrap runs it with the root's path, after node_setup.sh.
# Leaves what QEMU boots from in the root's /boot: vmlinuz and initrd.
set -eu
root=$1

# The container's process 1 is not needed: this machine has a kernel of its own.
rm -f "$root/sbin/lab-init"
rm -rf "$root/srv/lab"
for unit in dev-hugepages.mount sys-kernel-debug.mount sys-kernel-tracing.mount; do
    rm -f "$root/etc/systemd/system/$unit"
done

# Nothing waits for these, and each costs seconds where every instruction is translated.
for unit in systemd-networkd-wait-online.service systemd-timesyncd.service apparmor.service serial-getty@ttyS0.service \
    ldconfig.service systemd-firstboot.service modprobe@drm.service modprobe@efi_pstore.service rdma-ndd.service \
    e2scrub_reap.service xfs_scrub_all.timer; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
rmdir "$root/data"

# Connections given up while the machine boots would shut everybody out for a while (OpenSSH 9.8 and later).
if chroot "$root" /usr/sbin/sshd -G -o PerSourcePenalties=no > /dev/null 2>&1; then
    echo 'PerSourcePenalties no' > "$root/etc/ssh/sshd_config.d/10-lab.conf"
fi

# A fabric loses nothing; the default queue drops what waits longer than 5 ms, which everything does here.
echo 'net.core.default_qdisc = pfifo' > "$root/etc/sysctl.d/60-lab.conf"

# Interfaces and HCAs are named as on a GB10: the management port, and the twins of the cabled QSFP port.
name=0
for interface in enP7s7 enp1s0f1np1 enP2p1s0f1np1; do
    cat > "$root/etc/systemd/network/10-lab-$name.link" <<CONF
[Match]
MACAddress=52:54:00:00:00:0$name 52:54:00:00:01:0$name
[Link]
Name=$interface
CONF
    name=$((name + 1))
done
cat > "$root/etc/systemd/system/lab-rdma.service" <<'CONF'
[Unit]
Description=Soft-RoCE devices on the fabric's interfaces, named as the HCAs of a GB10
After=sys-subsystem-net-devices-enp1s0f1np1.device sys-subsystem-net-devices-enP2p1s0f1np1.device
Wants=sys-subsystem-net-devices-enp1s0f1np1.device sys-subsystem-net-devices-enP2p1s0f1np1.device
Before=docker.service ssh.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/sbin/modprobe --all rdma_rxe ib_uverbs rdma_ucm
ExecStart=/usr/bin/rdma link add rocep1s0f1 type rxe netdev enp1s0f1np1
ExecStart=/usr/bin/rdma link add roceP2p1s0f1 type rxe netdev enP2p1s0f1np1
[Install]
WantedBy=multi-user.target
CONF
chroot "$root" systemctl --quiet enable lab-rdma.service systemd-networkd.service
# There for the roles to enable, as nothing can be installed from here.
chroot "$root" systemctl --quiet disable earlyoom.service

# What stands for the rank's image: a shell, to look around in a container.
mkdir -p "$root/usr/share/lab/rank/bin" "$root/usr/share/lab/rank/etc"
cp "$root/bin/busybox" "$root/usr/share/lab/rank/bin/"
for name in sh sleep cat ls df; do ln -s busybox "$root/usr/share/lab/rank/bin/$name"; done

# An initial file system of one program, the modules of disks and network, and a script. As on a node that boots from
# NVMe, its driver is there before systemd counts the time a disk has to appear.
release=$(basename "$root"/lib/modules/*)
early=$(mktemp -d)
trap 'rm -rf "$early"' EXIT
mkdir -p "$early/bin" "$early/dev" "$early/proc" "$early/root" "$early/modules"
cp "$root/bin/busybox" "$early/bin/busybox"
number=100
for module in $(chroot "$root" modprobe --set-version "$release" --all --show-depends virtio_pci virtio_blk ext4 nvme \
    virtio_net \
    | sed -n 's/^insmod //p' | awk '!seen[$0]++'); do
    number=$((number + 1))
    case $module in
        *.xz) xz --decompress --stdout "$root$module" ;;
        *.zst) zstd --decompress --stdout --quiet "$root$module" ;;
        *) cat "$root$module" ;;
    esac > "$early/modules/$number.ko"
done
cat > "$early/init" <<'INIT'
#!/bin/busybox sh
# Mounts the root disk; on the first boot the disk beside it is a tar of what makes this machine itself.
busybox=/bin/busybox
$busybox mount -t devtmpfs dev /dev
for module in /modules/*; do $busybox insmod $module; done
tries=0
until [ -b /dev/vda ] || [ $tries -gt 100 ]; do $busybox sleep 0.1; tries=$((tries + 1)); done
$busybox mount -t ext4 -o rw,noatime /dev/vda /root || exec $busybox sh
[ -e /root/etc/ssh/ssh_host_ed25519_key ] || $busybox tar -x -f /dev/vdb -C /root
$busybox mount --move /dev /root/dev
exec $busybox switch_root /root /sbin/init
INIT
chmod 0755 "$early/init"
(cd "$early" && find . | bin/busybox cpio -o -H newc) > "$root/boot/initrd"
cp "$root/boot/vmlinuz-$release" "$root/boot/vmlinuz"
