"""Fan-out arithmetic: order, shares, progress, and whom to take from, on a model of links without a network."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gb10 import fanout
from gb10.fanout import Chooser, Pace, Peer

NODES = [f"spark-{n}" for n in range(8)]


@pytest.mark.parametrize(
    ("speeds", "line"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6, 7]),
        (dict.fromkeys(NODES, 200.0), [0, 1, 2, 3, 4, 5, 6, 7]),
        (dict.fromkeys(NODES, 200.0) | {"spark-2": 13.0}, [0, 1, 3, 4, 5, 6, 7, 2]),
        (dict.fromkeys(NODES, 200.0) | {"spark-1": 50.0, "spark-3": 13.0}, [0, 2, 4, 5, 6, 7, 1, 3]),
        (dict.fromkeys(NODES, 200.0) | {"spark-1": 161.0}, [0, 1, 2, 3, 4, 5, 6, 7]),  # links of one kind differ
        ({"spark-3": 200.0, "spark-4": 200.0, "spark-5": 10.0}, [0, 1, 2, 3, 4, 6, 7, 5]),  # unknown is usual
    ],
)
def test_slow_nodes_go_last(speeds: dict[str, float], line: list[int]) -> None:
    assert fanout.line_order("spark-0", NODES, speeds) == [NODES[n] for n in line]


def test_the_source_is_first_whatever_its_speed() -> None:
    assert fanout.line_order("spark-3", NODES, {"spark-3": 1.0, "spark-1": 200.0})[0] == "spark-3"


@given(st.lists(st.integers(0, 10**10), max_size=60), st.integers(1, 9))
def test_every_file_has_one_process_and_none_is_idle(sizes: list[int], processes: int) -> None:
    shares = fanout.assign(sizes, processes)
    assert sorted(n for share in shares for n in share) == list(range(len(sizes)))
    assert len(shares) == max(1, min(processes, len(sizes)))
    loads = [sum(sizes[n] for n in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes, default=0)  # as even as whole files allow


def test_no_process_is_refused() -> None:
    with pytest.raises(ValueError, match="processes=0"):
        fanout.assign([1], 0)


@pytest.mark.parametrize(
    ("seen", "rest", "rate", "left"),
    [
        ([], 100, 0.0, None),
        ([(0.0, 0)], 100, 0.0, None),
        ([(0.0, 0), (2.0, 50)], 100, 25.0, 4.0),
        ([(0.0, 0), (1.0, 1000), (11.0, 1000), (21.0, 1000)], 100, 0.0, None),  # what was fast long ago is over
        ([(0.0, 0), (2.0, 50)], 0, 25.0, 0.0),
    ],
)
def test_pace(seen: list[tuple[float, int]], rest: int, rate: float, left: float | None) -> None:
    pace = Pace()
    for now, done in seen:
        pace.add(now, done)
    assert pace.rate == rate
    assert pace.left(rest) == left


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (
            {
                "phase": "fetching",
                "have": 5 * 10**9,
                "total": 510 * 10**9,
                "rate": 1.2e9,
                "eta": 421.0,
                "upstream": "a",
            },
            "n: fetching, 5.0 GB of 510.0 GB, 1.2 GB/s, 421 s left, from a",
        ),
        (
            {"phase": "fetching", "have": 0, "total": 999, "rate": 0, "eta": None, "upstream": "a"},
            "n: fetching, 0 B of 999 B, 0 B/s, no end in sight, from a",
        ),
        ({"phase": "done", "have": 2000, "total": 2000}, "n: done, 2.0 kB of 2.0 kB"),
        ({}, "n: unknown, 0 B of 0 B"),
    ],
)
def test_progress_line(status: dict[str, object], text: str) -> None:
    assert fanout.progress_line("n", status) == text


# --- whom to take from: a model of eight nodes with links of given speed ----------------------------------------------


BOOT = 5000.0  # s a node has been up when the transfer begins: clocks do not start at 0


@dataclass
class Node:
    """Chunks as a fluid; ``up`` and ``down`` are chunks per second."""

    chooser: Chooser
    up: float = 25.0
    down: float = 25.0
    have: float = 0.0
    sent: float = 0.0
    alive: bool = True
    done: float | None = None


@dataclass
class Model:
    """Eight nodes, ``total`` chunks; everybody looks once a second, each at its own moment, at what was said before."""

    total: float = 600.0
    step: float = 0.05
    now: float = 0.0
    nodes: list[Node] = field(default_factory=list)
    heard: dict[int, Peer] = field(default_factory=dict)
    moves: list[tuple[float, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.nodes = [Node(Chooser(me)) for me in range(8)]
        self.nodes[0].have = self.total

    def flow(self) -> None:
        """One step: an uplink is shared evenly, what a slow taker leaves goes to the others."""
        gains = [0.0] * 8
        for u, server in enumerate(self.nodes):
            if not server.alive:
                continue
            takers = [
                n
                for n, node in enumerate(self.nodes)
                if n and node.alive and node.chooser.upstream == u and node.have < min(self.total, server.have)
            ]
            room = server.up * self.step
            for k, n in enumerate(sorted(takers, key=lambda n: self.nodes[n].down)):
                node = self.nodes[n]
                take = min(node.down * self.step, room / (len(takers) - k), server.have - node.have)
                gains[n], room, server.sent = take, room - take, server.sent + take
        for n, gain in enumerate(gains):
            self.nodes[n].have += gain

    def say(self) -> None:
        self.heard = {
            n: Peer(
                int(node.have),
                node.chooser.upstream if n and not node.done else -1,
                n == 0 or node.done is not None,
                node.chooser.trying,
            )
            for n, node in enumerate(self.nodes)
            if node.alive
        }

    def look(self, n: int) -> None:
        node = self.nodes[n]
        peers = {p: peer for p, peer in self.heard.items() if p != n}
        before = node.chooser.upstream
        if not self.nodes[before].alive and before not in peers:
            node.chooser.failed(BOOT + self.now, peers)
        else:
            node.chooser.look(BOOT + self.now, int(node.have), peers)
        if node.chooser.upstream != before:
            self.moves.append((round(self.now, 2), n, node.chooser.upstream))

    def run(self, limit: float = 400.0, events: dict[float, object] | None = None) -> Model:
        pending = sorted((events or {}).items())
        count = 0
        while self.now < limit and any(n.done is None and n.alive for n in self.nodes[1:]):
            while pending and pending[0][0] <= self.now:
                pending.pop(0)[1]()  # type: ignore[operator]
            self.flow()
            count += 1
            self.now = count * self.step
            if count % 20 == 0:
                self.say()
            for n, node in enumerate(self.nodes):
                if n and node.alive and node.have >= self.total - 1e-6 and node.done is None:
                    node.done = self.now
                elif n and node.alive and node.done is None and count % 20 == 2 * n:
                    self.look(n)
        return self

    def times(self) -> list[float]:
        """Seconds of all receivers that live; those that never got whole fail here."""
        assert all(node.done for node in self.nodes[1:] if node.alive), [node.have for node in self.nodes]
        return [node.done or 0.0 for node in self.nodes[1:] if node.alive]


ALONE = 600 / 25


def test_without_a_fault_the_line_stands_and_the_source_sends_it_once() -> None:
    model = Model().run()
    assert max(model.times()) <= 1.2 * ALONE
    assert model.nodes[0].sent <= 1.1 * 600
    assert len(model.moves) <= 2  # one trial of the source, and back


def test_a_long_transfer_costs_few_trials() -> None:
    model = Model(total=15000.0).run(limit=2000)
    assert max(model.times()) <= 1.03 * 600
    assert model.nodes[0].sent <= 1.02 * 15000
    assert len(model.moves) <= 6


@pytest.mark.parametrize("slow", range(1, 8))
def test_a_slow_node_does_not_hold_back_those_after_it(slow: int) -> None:
    model = Model()
    model.nodes[slow].up = model.nodes[slow].down = 6.25
    model.run()
    times = model.times()
    others = [t for n, t in enumerate(times, 1) if n != slow]
    assert max(others) <= 1.5 * ALONE, (times, model.moves)  # the plain line: 4 times ALONE
    assert times[slow - 1] <= 1.1 * 600 / 6.25
    assert len(model.moves) <= 16


@pytest.mark.parametrize("slow", range(1, 8))
def test_a_slow_way_out_does_not_either(slow: int) -> None:
    model = Model()
    model.nodes[slow].up = 6.25
    model.run()
    assert max(model.times()) <= 1.7 * ALONE, (model.times(), model.moves)
    assert len(model.moves) <= 16


@pytest.mark.parametrize("lost", range(1, 8))
def test_a_node_gone_for_good_costs_the_others_little(lost: int) -> None:
    model = Model()

    def die() -> None:
        model.nodes[lost].alive = False

    model.run(events={6.0: die})
    assert max(model.times()) <= 1.5 * ALONE, (model.times(), model.moves)
    assert model.nodes[0].sent <= 1.1 * 600


@pytest.mark.parametrize("lost", range(1, 8))
def test_a_node_that_comes_back_joins_at_the_end(lost: int) -> None:
    model = Model()

    def die() -> None:
        model.nodes[lost].alive = False

    def rise() -> None:
        model.nodes[lost].alive = True
        model.nodes[lost].chooser = Chooser(lost)

    model.run(events={6.0: die, 10.0: rise})
    assert max(model.times()) <= 1.5 * ALONE, (model.times(), model.moves)
    assert len(model.moves) <= 10


@pytest.mark.parametrize("gone", [[1, 2], [2, 3, 4], [1, 3, 5, 7], [1, 2, 3, 4, 5, 6]])
def test_several_gone_at_once(gone: list[int]) -> None:
    model = Model()

    def die() -> None:
        for n in gone:
            model.nodes[n].alive = False

    model.run(events={6.0: die})
    assert max(model.times()) <= 1.6 * ALONE, (model.times(), model.moves)


@dataclass
class Busy(Model):
    """Nodes that now and then stand still for a while, and hear of each other late."""

    chance: random.Random = field(default_factory=lambda: random.Random(0))
    until: list[float] = field(default_factory=lambda: [0.0] * 8)

    def flow(self) -> None:
        links = [(node.up, node.down) for node in self.nodes]
        for n, node in enumerate(self.nodes):
            if self.chance.random() < 0.004:
                self.until[n] = self.now + self.chance.expovariate(1 / 0.6)
            if self.until[n] > self.now:
                node.up = node.down = 0.001
        super().flow()
        for node, (up, down) in zip(self.nodes, links, strict=True):
            node.up, node.down = up, down

    def say(self) -> None:
        old = dict(self.heard)
        super().say()
        self.heard |= {n: peer for n, peer in old.items() if n in self.heard and self.chance.random() < 0.4}


@pytest.mark.parametrize("slow", [0, 1, 3, 7])
@pytest.mark.parametrize("seed", range(5))
def test_busy_nodes_confuse_but_leave_nobody_behind(slow: int, seed: int) -> None:
    model = Busy(chance=random.Random(seed))
    if slow:
        model.nodes[slow].up = model.nodes[slow].down = 6.25
    model.run()
    others = [t for n, t in enumerate(model.times(), 1) if n != slow]
    assert max(others) <= 2.6 * ALONE, (others, model.moves)  # one left behind a slow node: 4 times
    assert model.nodes[0].sent <= 2 * 600


def test_two_that_take_from_each_other_part() -> None:
    model = Model()
    model.nodes[3].chooser.upstream, model.nodes[4].chooser.upstream = 4, 3
    model.run()
    assert max(model.times()) <= 2 * ALONE, (model.times(), model.moves)


def test_nobody_takes_from_those_below_it() -> None:
    chooser = Chooser(2)
    peers = {0: Peer(9, -1, True), 3: Peer(5, 2), 4: Peer(6, 3), 5: Peer(1, 0)}
    assert chooser.usable(0.0, peers) == [0, 5]


def test_one_that_sent_wrong_chunks_is_never_asked_again() -> None:
    chooser = Chooser(2)
    alone = {1: Peer(9, 0)}
    assert chooser.failed(0.0, {0: Peer(9, -1, True), **alone}, for_good=True) == 0
    assert chooser.failed(1.0, alone) == 0  # nobody else answers: back to the source, not to the one that lied
    assert 1 in chooser.banned


def test_a_silent_one_is_left_though_it_still_says_how_it_stands() -> None:
    chooser = Chooser(3)
    peers = {0: Peer(9, -1, True), 1: Peer(7, 0), 2: Peer(6, 1)}
    assert chooser.failed(0.0, peers) == 1
    assert chooser.failed(1.0, peers) == 0
    assert chooser.failed(fanout.AVOID + 2, peers) == 2  # after a while it may be well again


def test_the_first_look_moves_nobody() -> None:
    chooser = Chooser(2)
    assert chooser.look(BOOT, 0, {0: Peer(600, -1, True), 1: Peer(0, 0)}) == 1
