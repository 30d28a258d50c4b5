"""Preflight changed nothing: no container, no file of ours."""

testinfra_hosts = ["ansible://spark-153", "ansible://spark-148"]


def test_no_rank_runs(host):
    with host.sudo():
        assert host.check_output("docker ps -aq --filter name=gb10-rank") == ""
