"""What preparation changed is as it was; the file system that was made stays, with its data."""

import json

from vm_run import NODE, declared, disk_of, play, recap

from lab import vm

MOUNT = declared("storage_mounts")[0]
GONE = (
    "/etc/systemd/system/docker.service.d/50-gb10-mounts.conf",
    "/etc/security/limits.d/90-gb10.conf",
    "/etc/sysctl.d/90-gb10.conf",
    "/etc/systemd/logind.conf.d/90-gb10.conf",
    "/etc/netplan/60-gb10-fabric.yaml",
    "/etc/systemd/system/gb10-firewall.service",
    "/etc/gb10/rank.env",
)


def test_files_are_gone(host):
    with host.sudo():
        assert [path for path in GONE if host.file(path).exists] == []


def test_mount_is_gone_and_the_file_system_stays(host):
    assert not host.mount_point(MOUNT["path"]).exists
    assert MOUNT["path"] not in host.file("/etc/fstab").content_string.split()
    disk = disk_of(host, MOUNT["disk"])
    assert host.check_output(f"lsblk --nodeps --noheadings --output FSTYPE,LABEL /dev/{disk}").split() == [
        "ext4",
        "gb10",
    ]


def test_docker_is_as_it_was(host):
    settings = json.loads(host.file("/etc/docker/daemon.json").content_string)
    assert sorted(settings) == ["default-address-pools", "storage-driver"]
    assert host.service("docker").is_running


def test_kernel_parameters_are_as_they_were(host):
    held = {name: host.sysctl(name) for name in declared("host_limits_sysctls")}
    assert held["vm.watermark_scale_factor"] == 10  # the kernel's own default
    assert held["vm.min_free_kbytes"] != int(declared("host_limits_sysctls")["vm.min_free_kbytes"])


def test_services_are_as_they_were(host):
    guard = host.service("earlyoom")
    assert not guard.is_running
    assert not guard.is_enabled
    assert host.check_output("ls /var/lib/systemd/linger") == ""
    with host.sudo():
        assert "gb10" not in host.check_output("nft list tables")


def test_network_is_as_it_was(host):
    for name, address in vm.rail_addresses(vm.named(NODE)).items():
        assert address in host.interface(name).addresses


def test_again_there_is_nothing_to_do():
    done = play("unprepare")
    assert done.returncode == 0, done.stdout + done.stderr
    assert recap(done)["changed"] == 0, done.stdout
