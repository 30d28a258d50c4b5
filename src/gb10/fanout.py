"""Fan-out arithmetic: the order of the line, which process brings which file, whom to take from, how long it takes.

Nodes stand in a line, the source first (position 0); each takes chunks from the one before it and serves what it has.
Standard library only, for nodes import it too.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# A node this much slower than the middle one goes to the end of the line; less is what links of one kind differ by.
SLOW = 0.7
# Seconds between two looks at the others, and how many looks a speed is taken over.
LOOK = 1.0
LOOKS = 3
# Somebody this many times faster than we are is worth a trial, and a trial that brings this much more is kept.
FASTER = 2.0
GAIN = 1.3
# Seconds: length of a trial, its first time where nothing can be compared, and how often that wait is stretched.
TRIAL = 1.5
FIRST_TRIAL = 4.0
PATIENCE = 8.0
# A silent upstream is left alone for this long (s).
AVOID = 30.0


def line_order(source: str, nodes: Sequence[str], speeds: Mapping[str, float]) -> list[str]:
    """The line: source, the rest as given, those slower than SLOW times the middle speed last, the slowest at the end.

    ``speeds``: link speed by node in any one unit; a node without one counts as a usual one.
    """
    rest = [node for node in nodes if node != source]
    known = [speeds[node] for node in rest if speeds.get(node, 0) > 0]
    bound = SLOW * statistics.median(known) if known else 0.0
    slow = [node for node in rest if 0 < speeds.get(node, 0) < bound]
    slow.sort(key=lambda node: -speeds[node])
    return [source, *(node for node in rest if node not in slow), *slow]


def assign(sizes: Sequence[int], processes: int) -> list[list[int]]:
    """Numbers of the files each process brings: longest first to the least laden; the same on every node.

    Raises ValueError for less than one process. No more lists than files, and at least one.
    """
    if processes < 1:
        raise ValueError(f"processes={processes}: at least 1 is needed")
    shares: list[list[int]] = [[] for _ in range(max(1, min(processes, len(sizes))))]
    loads = [0] * len(shares)
    for number in sorted(range(len(sizes)), key=lambda n: (-sizes[n], n)):
        least = loads.index(min(loads))
        shares[least].append(number)
        loads[least] += sizes[number]
    return [sorted(share) for share in shares]


# --- progress --------------------------------------------------------------------------------------------------------


@dataclass
class Pace:
    """Rate over the last ``window`` seconds, and what it means for the rest."""

    window: float = 10.0
    seen: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, now: float, done: int) -> None:
        """``done`` bytes at ``now`` (s, any clock that only goes forward)."""
        self.seen.append((now, done))
        while len(self.seen) > 2 and self.seen[1][0] <= now - self.window:
            self.seen.popleft()

    @property
    def rate(self) -> float:
        """Bytes per second; 0 when nothing can be said."""
        if len(self.seen) < 2:
            return 0.0
        (began, before), (now, done) = self.seen[0], self.seen[-1]
        return max(0.0, (done - before) / (now - began)) if now > began else 0.0

    def left(self, rest: int) -> float | None:
        """Seconds for ``rest`` bytes more; None when nothing moves."""
        if rest <= 0:
            return 0.0
        return rest / self.rate if self.rate > 0 else None


def amount(count: float) -> str:
    """Bytes as a person reads them: ``510.0 GB`` (decimal units, as disks are sold)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def progress_line(node: str, status: Mapping[str, object]) -> str:
    """One line of a playbook's output for one node's status."""
    have, total = int(str(status.get("have", 0))), int(str(status.get("total", 0)))
    text = f"{node}: {status.get('phase', 'unknown')}, {amount(have)} of {amount(total)}"
    if status.get("phase") == "fetching":
        eta = status.get("eta")
        left = "no end in sight" if eta is None else f"{float(str(eta)):.0f} s left"
        text += f", {amount(float(str(status.get('rate', 0))))}/s, {left}, from {status.get('upstream', 'nobody')}"
    return text


# --- whom to take from -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Peer:
    """What a node says of itself: chunks it has, of how many, whom it takes from (-1: nobody), and if only on trial."""

    have: int
    upstream: int
    whole: bool = False
    trying: bool = False


Peers = Mapping[int, Peer]  # by position; only those that answered lately


@dataclass
class Chooser:
    """Whose chunks this node takes. Starts with the one before it; every change is for a reason that lasts.

    - ``failed``: the upstream is silent, refuses or sends wrong chunks, or nothing came for PATIENCE seconds while
      others have more: the nearest before us that has.
    - ``look``, a trial: our upstream, or its upstream, gets chunks FASTER than we do. Take from the latter for TRIAL
      seconds, stay if that brought GAIN times as much, else go back and wait longer. The first receiver has nobody to
      be compared with, so the one after it tries the source once in a while.
    - ``look``, to the end: whom we take from also feeds another branch, and nobody takes from us, or that branch begins
      with an earlier node. Then we go behind its last node, whose way out is idle. So the line closes again, and a slow
      or a restarted node ends up last.
    """

    me: int
    upstream: int = -1
    hold: float = 0.0
    patience: float = PATIENCE
    probe_after: float = FIRST_TRIAL
    began: float | None = None
    before: tuple[int, float] | None = None  # on trial: whom we left, and our rate then
    trial: tuple[float, int] = (0.0, 0)
    slow_looks: int = 0
    avoid: dict[int, float] = field(default_factory=dict)
    banned: set[int] = field(default_factory=set)
    past: deque[tuple[float, dict[int, int]]] = field(default_factory=lambda: deque(maxlen=LOOKS + 1))
    fed: set[int] = field(default_factory=set)  # who ever took from us: one that left does not want us before it
    last: tuple[float, int] = (0.0, -1)  # when our chunks last grew, and to how many
    stepped_back: bool = False  # we went to the end, and it has less than we have
    moves: int = 0

    def __post_init__(self) -> None:
        if self.upstream < 0:
            self.upstream = self.me - 1

    @property
    def trying(self) -> bool:
        """On trial: others must not rearrange themselves for us yet."""
        return self.before is not None

    def below(self, position: int, peers: Peers) -> bool:
        """Whether ``position`` takes from us, over however many others."""
        seen: set[int] = set()
        while position in peers and position not in seen:
            seen.add(position)
            position = peers[position].upstream
            if position == self.me:
                return True
        return False

    def usable(self, now: float, peers: Peers) -> list[int]:
        """Who may be taken from: alive, not below us, not left lately. Nearest before us first."""
        fit = [
            p
            for p in peers
            if p != self.me and p not in self.banned and self.avoid.get(p, 0) <= now and not self.below(p, peers)
        ]
        return sorted(fit, key=lambda p: (p > self.me, abs(self.me - p)))

    def failed(self, now: float, peers: Peers, for_good: bool = False, more_than: int = -1) -> int:
        """The upstream failed; ``for_good``: it sent what is wrong; ``more_than``: who has no
        more chunks comes last. Returns whom to take from now (may be the same)."""
        lost = self.upstream
        if for_good:
            self.banned.add(lost)
        self.avoid[lost] = now + AVOID
        self.before, self.stepped_back = None, False
        if usable := self.usable(now, peers):
            return self._move(now, min(usable, key=lambda p: peers[p].have <= more_than))
        # Nobody answers: come back to the one that was left longest ago rather than stand still.
        again = sorted((until, p) for p, until in self.avoid.items() if p not in self.banned)
        if again:
            self.avoid.pop(again[0][1])
            return self._move(now, again[0][1])
        return self.upstream

    def look(self, now: float, have: int, peers: Peers) -> int:
        """Once every LOOK seconds: whom to take from, ``have`` being our own chunks."""
        if self.began is None and have:
            self.began = now
        self.past.append((now, {self.me: have} | {p: peer.have for p, peer in peers.items()}))
        if have != self.last[1]:
            self.last = (now, have)
        elif now - self.last[0] >= PATIENCE and any(peers[p].have > have for p in self.usable(now, peers)):
            self.last = (now, have)
            return self.failed(now, peers, more_than=have)
        if self.before:
            return self._end_of_trial(now, have, peers)
        last = self._last_of_branch(now, have, peers)
        if last is not None and now >= self.hold:
            self.stepped_back, self.began, self.probe_after = True, None, FIRST_TRIAL
            return self._move(now, last)
        faster = self._faster(now, have, peers)
        self.slow_looks = self.slow_looks + 1 if faster is not None else 0
        if faster is not None and self.slow_looks >= 2 and now >= self.hold:
            return self._try(now, have, faster)
        if self._blind(now, have, peers):
            self.probe_after *= PATIENCE
            return self._try(now, have, peers[self.upstream].upstream)
        return self.upstream

    def speed(self, position: int) -> float | None:
        """Chunks per second over the last looks; None before there are LOOKS of them."""
        if len(self.past) <= LOOKS:
            return None
        (began, first), (now, last) = self.past[0], self.past[-1]
        if position not in first or position not in last or now <= began:
            return None
        return (last[position] - first[position]) / (now - began)

    def _move(self, now: float, to: int) -> int:
        if to != self.upstream:
            self.upstream, self.moves = to, self.moves + 1
            self.hold, self.slow_looks = now + 2 * LOOK, 0
            self.past.clear()
        return self.upstream

    def _try(self, now: float, have: int, to: int) -> int:
        self.before, self.trial = (self.upstream, self.speed(self.me) or 0.0), (now, have)
        return self._move(now, to)

    def _end_of_trial(self, now: float, have: int, peers: Peers) -> int:
        assert self.before
        (began, had), (old, rate) = self.trial, self.before
        if now - began < TRIAL:
            return self.upstream
        self.before = None
        if (have - had) / (now - began) >= GAIN * max(rate, 1e-9) or old not in self.usable(now, peers):
            self.avoid[old] = now + AVOID
            return self.upstream
        self._move(now, old)
        self.hold, self.patience = now + self.patience, min(2 * self.patience, 4 * PATIENCE)
        return self.upstream

    def _faster(self, now: float, have: int, peers: Peers) -> int | None:
        """Whom to try because our link, or our upstream's, is slow; None when it is not.

        Only the next one up is compared, so that a slow node is left by the one after it and not by all behind.
        """
        parent = peers.get(self.upstream)
        if parent is None:
            return None
        if self.stepped_back:  # nothing is to be had until it has caught up
            self.stepped_back = parent.have <= have
            self.past.clear()
        mine = self.speed(self.me)
        if mine is None:
            return None
        usable = self.usable(now, peers)
        line = [self.upstream] + ([parent.upstream] if not peers.get(parent.upstream, parent).whole else [])
        fastest = max(self.speed(p) or 0.0 for p in line)
        if fastest >= max(FASTER * mine, 1 / LOOK) and parent.upstream in usable and not parent.trying:
            return parent.upstream
        return None

    def _blind(self, now: float, have: int, peers: Peers) -> bool:
        """Our upstream takes from a node that was whole all along: only a trial tells whether it is slow."""
        parent = peers.get(self.upstream)
        if parent is None or parent.whole or self.began is None or now < self.hold or not self.speed(self.me):
            return False
        above = parent.upstream
        fed = [p for p, peer in peers.items() if peer.upstream == above and not peer.whole]
        if now - self.began < self.probe_after or fed != [self.upstream]:
            return False  # one trial at a time
        return above in self.usable(now, peers) and peers[above].whole

    def _last_of_branch(self, now: float, have: int, peers: Peers) -> int | None:
        """The end of the branch that shares our upstream, if that branch and not we should have its uplink."""
        children: dict[int, list[int]] = {}
        for p, peer in peers.items():
            if p != self.me and not peer.whole:
                children.setdefault(peer.upstream, []).append(p)
        mine, speed = bool(children.get(self.me)), self.speed(self.me) or 0.0
        self.fed.update(children.get(self.me, []))
        # One far slower than we are is no one to stand behind.
        fit = {p for p in peers if not peers[p].trying and (not speed or (self.speed(p) or 0.0) >= SLOW * speed)}
        for sibling in sorted(fit.intersection(children.get(self.upstream, []))):
            theirs = bool(children.get(sibling))
            lead, even = peers[sibling].have - have, 2 * LOOK * max(speed, self.speed(sibling) or 0.0)
            first = lead > even or (lead >= -even and speed > 0 and sibling < self.me) or sibling in self.fed
            if theirs < mine or (theirs == mine and not first):
                continue  # it goes behind us
            last, seen = sibling, {sibling}
            while below := [p for p in children.get(last, []) if p in fit and p not in seen]:
                last = max(below)
                seen.add(last)
            soon = have - peers[last].have <= 2 * PATIENCE * (self.speed(last) or 0.0)  # it has what we lack
            if soon and last in self.usable(now, peers):
                return last
        return None
