"""Sessions, the kernel and logind as they run have what is declared."""

import pytest
import yaml
from support import ROOT

testinfra_hosts = ["ansible://spark-153", "ansible://spark-148"]
LAB = yaml.safe_load((ROOT / "group_vars/lab.yml").read_text())
SETTINGS = yaml.safe_load((ROOT / "molecule/host_limits/settings.yml").read_text())


def test_a_login_session_has_the_open_files(host):
    assert host.check_output("ulimit -Hn") == str(LAB["host_limits_nofile"])
    assert host.check_output("ulimit -Sn") == str(LAB["host_limits_nofile"])


def test_the_pinned_memory_is_unlimited_for_all(host):
    """The machine cannot raise its own limit, so this is the file."""
    lines = host.file("/etc/security/limits.d/90-gb10.conf").content_string.splitlines()
    words = [line.split() for line in lines]
    assert ["*", "hard", "memlock", "unlimited"] in words
    assert ["root", "soft", "memlock", "unlimited"] in words


@pytest.mark.parametrize("name", SETTINGS["host_limits_sysctls"])
def test_kernel_parameters_are_set_and_kept(host, name):
    value = SETTINGS["host_limits_sysctls"][name]
    assert host.check_output(f"/usr/sbin/sysctl -n {name}").split() == value.split()
    assert f"{name}={value}" in host.file("/etc/sysctl.d/90-gb10.conf").content_string.splitlines()


def test_logind_runs_with_it(host):
    argv = "busctl get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager RemoveIPC"
    assert host.check_output(argv) == "b false"


def test_services_of_the_user_outlive_its_sessions(host):
    assert host.check_output("loginctl show-user nvidia --property=Linger --value") == "yes"
