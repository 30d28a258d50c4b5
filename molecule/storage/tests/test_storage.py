"""The weights have a mount of their own and compiled kernels a place."""

testinfra_hosts = ["ansible://spark-153", "ansible://spark-148"]


def test_cache_directory(host):
    place = host.file("/var/cache/gb10")
    assert place.is_directory
    assert place.mode == 0o755


def test_weights_mount(host):
    assert host.mount_point("/data").exists
