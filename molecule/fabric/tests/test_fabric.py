"""What the role proved, proved again by hand: full MTU, unfragmented."""

testinfra_hosts = ["ansible://spark-153", "ansible://spark-148"]


def test_a_peer_answers_at_full_mtu(host):
    assert host.run("ping -n -c 1 -W 5 -M do -s 8972 10.77.1.161").rc == 0


def test_one_byte_more_does_not_fit(host):
    assert host.run("ping -n -c 1 -W 5 -M do -s 8973 10.77.1.161").rc != 0
