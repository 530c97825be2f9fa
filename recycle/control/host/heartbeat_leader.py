"""The leader: the agent that gives its host's signs of life, and notices whose signs have stopped.

One key of the store for each host, and one writer. Within the host, the leader hears the signs of all agents and
workers. Of other hosts it watches the next ones in the ring, and if one of them falls silent, all its servers are dead.
If all that it watches fall silent at once, or a stage would have no server left, it is rather the network, which may
come back: then it waits longer.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from recycle.control.board.board import Board
from recycle.control.host.direct_heartbeats import DirectHeartbeatSocket
from recycle.control.host.heartbeats import Watchlist
from recycle.control.host.neighbours import HostPlace, Neighbours, ring, watched
from recycle.control.host.signs import HostSocket, Sign
from recycle.control.membership.durations import Durations
from recycle.control.membership.messages import Death, Opening, Verdict
from recycle.control.membership.participant import Participant, members_of, participants_of
from recycle.control.membership.view import Member, ServerRank, View


class Sender(NamedTuple):
    """Who gives signs of life within a host.

    Attributes:
        giver: whose.
        agent: the process of its agent; 0 for one that was never heard.
    """

    giver: Participant
    agent: int


class HeartbeatLeader:
    """What one agent of a host does for all.

    Args:
        socket: that takes the host's signs.
        host: what it is called.
        durations: after which silence somebody is dead.
        ranks: of each server.
        direct: how hosts hear each other directly; None where they do not.
    """

    def __init__(
        self,
        socket: HostSocket,
        host: str,
        durations: Durations,
        ranks: int = 1,
        direct: DirectHeartbeatSocket | None = None,
    ) -> None:
        self._socket = socket
        self._host = host
        self._silence = durations.silence
        self._doubt = durations.doubt
        self._ranks = ranks
        self._agents: dict[Sender, int] = {}
        self._workers: dict[Sender, int] = {}
        # Who is not to be missed here: it has said so, or was missed.
        self._excused: set[Participant] = set()
        self._silent_agents = Watchlist[Sender](durations.silence)
        self._silent_workers = Watchlist[Sender](durations.hang)
        self._neighbours = Neighbours(host, durations, direct)
        self._silent_hosts = Watchlist[str](durations.silence)
        self._silent_strays = Watchlist[Participant](durations.answer)
        self._board: Board | None = None
        self._settled: set[Participant] = set()
        self._begun: Verdict | Opening | None = None
        self._epoch: int | None = None
        # All ranks of all members of the view: there may be thousands, and they are looked through at every beat.
        self._everybody: tuple[Participant, ...] = ()
        self._homes: dict[Participant, str] = {}
        self._look_for_homes, self._pause = 0.0, 0.0
        self._ring: tuple[str, ...] = ()
        self._gone: set[str] = set()
        self._doubted, self._returning = float("-inf"), durations.silence

    def hear(self) -> None:
        """Take the signs that have come."""
        for sign in self._socket.take():
            self.note(sign)

    def note(self, sign: Sign) -> None:
        """Take note of one."""
        giver = Participant(Member.parse(sign.member), ServerRank(sign.rank, self._ranks))
        sender = Sender(giver, sign.agent)
        heard = self._agents if sign.role == "agent" else self._workers
        if not sign.over:
            heard[sender] = sign.count
            return
        self._workers.pop(sender, None)
        if sign.role == "agent":
            self._agents.pop(sender, None)
            self._excused.add(sender.giver)

    def look(self, board: Board, now: float) -> None:
        """Give the host's sign of life, and declare those dead who have given none.

        Args:
            board: to tell it.
            now: the time in seconds, on a clock that never goes back and is the same for all processes of the host.

        Raises:
            StoreLost: there is no store.
        """
        if board is not self._board:
            # It may be another store.
            self._board, self._epoch, self._begun = board, None, None
            self._settled.clear()
            self._neighbours.forget()
        givers = {each.giver for each in self._agents}
        has_guests = not (isinstance(self._begun, Verdict) and givers <= self._homes.keys())
        suspects = len(self._silent_hosts.suspects)
        place = HostPlace(self._view.epoch, self._ring, frozenset(self._gone), suspects, has_guests)
        # Its numbers are no count: who speaks for the host next would have to go on with it.
        glance = self._neighbours.glance(board, now, place)
        if glance is not None and glance.uncalled is not None:
            board.failures.call_to(glance.uncalled)
        for giver in givers - self._settled:
            board.beats.settle(giver, self._host)
            self._settled.add(giver)
        self._follow(board, now, self._epoch if glance is None else glance.epoch, givers)
        self._look_here(board, now)
        self._look_elsewhere(board, now)

    @property
    def due(self) -> float:
        """When another host will have been silent for the limit, if it is; in seconds, on the clock of ``look``."""
        return self._silent_hosts.due

    def leave(self) -> None:
        """Speak for the host no more."""
        self._neighbours.close()

    @property
    def _view(self) -> View:
        return View(-1, ()) if self._begun is None else self._begun.view

    def _follow(self, board: Board, now: float, epoch: int | None, here: Collection[Participant]) -> None:
        """Know the newest view, and the host of each of its members; it is this one of those heard here."""
        if self._begun is None or epoch != self._epoch:
            self._epoch = epoch
            self._begun = board.verdicts.newest() or board.verdicts.opening()
            self._everybody = participants_of(self._view.members, self._ranks)
            everybody = set(self._everybody)
            self._excused &= everybody
            self._gone.clear()
            # A stranger may have taken away what was said, and others look for it now.
            self._settled.clear()
            self._homes = {each: home for each, home in self._homes.items() if each in everybody}
            self._pause = self._silence / 4
            # Who is in a view has been somewhere; at the start, all are still on their way.
            self._look_for_homes = now if isinstance(self._begun, Verdict) else now + self._pause
            self._ring = ring(self._everybody, self._homes)
        if found := [each for each in here if each not in self._homes and self._view.names(each.member)]:
            self._homes |= dict.fromkeys(found, self._host)
            self._ring = ring(self._everybody, self._homes)
        unknown = self._strays() if now >= self._look_for_homes else ()
        if unknown:
            self._homes |= board.beats.homes(unknown)
            # Thousands may be on their way, and as many hosts look for them.
            self._look_for_homes, self._pause = now + self._pause, 2 * self._pause
            self._ring = ring(self._everybody, self._homes)

    def _strays(self) -> list[Participant]:
        return [each for each in self._everybody if each not in self._homes]

    def _look_here(self, board: Board, now: float) -> None:
        heard = {each.giver for each in self._agents}
        here = (each for each, home in self._homes.items() if home == self._host)
        # An agent may have died with the last one that spoke.
        unheard = {Sender(each, 0): 0 for each in here if each not in heard and each not in self._excused}
        silent = self._silent_agents.observe(now, self._agents | unheard)
        # One that waits for its store gives no sign, and lives.
        silent = {each: at for each, at in silent.items() if now - at > self._doubt or not self._lives(each)}
        silent |= self._silent_workers.observe(now, self._workers)
        for sender, since in silent.items():
            # If the store is lost now, it is silent at the next look, too.
            self._declare_dead(board, [sender.giver], now, since)
            self._agents.pop(sender, None)
            self._workers.pop(sender, None)
            self._excused.add(sender.giver)

    def _lives(self, agent: Sender) -> bool:
        return self._socket.door_of_agent(agent.giver).is_held()

    def _look_elsewhere(self, board: Board, now: float) -> None:
        begun = isinstance(self._begun, Verdict)
        suspects = len(self._silent_hosts.suspects)
        counts = self._neighbours.counts(board, watched(self._ring, self._host, self._gone, suspects))
        expected = {each: count for each, count in counts.items() if count}
        heard_at, deaf = self._neighbours.heard_at(), self._neighbours.deaf(now)
        silent = self._silent_hosts.observe(now, expected, heard_at, deaf)
        for host, since in self._surely_gone(silent, now).items():
            self._gone.add(host)
            self._declare_dead(board, [each for each, home in self._homes.items() if home == host], now, since)
        # While a run starts, some may still be on their way.
        unseen = [each for each, home in self._homes.items() if counts.get(home) == 0]
        strays = self._silent_strays.observe(now, dict.fromkeys([*self._strays(), *unseen], 0) if begun else {})
        if strays:
            # That nothing is in the store proves nothing: a stranger may delete it. Who lives answers an alarm.
            name, seconds = min(strays).member, now - min(strays.values())
            cause = f"which host {name} is on was not said, or that host gave no sign of life, for {seconds:.1f} s"
            board.failures.raise_alarm(self._view.epoch, cause, f"host {self._host}")
            self._homes |= dict.fromkeys(strays, "")

    def _surely_gone(self, silent: Mapping[str, float], now: float) -> Mapping[str, float]:
        """Those of the silent hosts that are dead, as far as can be told from here, and since when each is silent.

        Args:
            silent: all of them, and since when.
            now: the time in seconds.
        """
        pause, unheard = self._silent_hosts.pause, self._neighbours.unheard(now)
        if self._neighbours.waits_for_store and self._silence < pause < float("inf"):
            # It may have been the network, and others are not back yet.
            self._doubted, self._returning = now, pause
        if not silent:
            return {}
        others = [each for each in self._ring if each != self._host and each not in self._gone]
        hears_nobody = len(others) > 1 and not all(map(self._silent_hosts.hears_since, silent.values()))
        # After a pause, those that were heard since may only be the first ones.
        was_unsure = now - pause - self._doubted <= self._returning
        hears_first = pause > self._silence / 2 and (was_unsure or (len(others) > 1 and unheard > self._silence / 2))
        lost = self._gone | silent.keys() | self._silent_hosts.suspects
        dead = {each.member for each, home in self._homes.items() if home in lost}
        stages = {each.server.stage for each in self._view.members}
        lacks_stage = stages != {each.server.stage for each in self._view.members if each not in dead}
        if hears_nobody or hears_first or lacks_stage:
            self._doubted = now
            # If it is the network, not all are back at the same moment: TCP tries again after as long as it was away.
            self._returning = max(self._silence, now - min(silent.values()))
        sure = now - self._silence if self._doubted < now - self._returning else now - self._doubt
        return {each: since for each, since in silent.items() if since < sure}

    def _declare_dead(self, board: Board, silent: Iterable[Participant], now: float, since: float) -> None:
        if board.end.is_reached(self._view):
            return
        reason = f"has given no sign of life for {now - since:.1f} s"
        deaths = [Death(str(member), reason, "heartbeat", since) for member in sorted(members_of(silent))]
        board.declare_dead(deaths, f"host {self._host}")
