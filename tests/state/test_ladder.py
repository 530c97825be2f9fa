from itertools import product
from random import Random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle.state.directory import place_copies
from recycle.state.ladder import MOST, Copy, StatePart, climb, find_outdated, find_whole, is_late

parts = st.builds(
    lambda stage, epoch, version, parts, place: StatePart(
        stage, epoch, version + epoch, place // 2 % parts, parts, epoch, rank=place % 2, ranks=2
    ),
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(0, 3),
    st.integers(1, 2),
    st.integers(0, 3),
)
pieces = st.builds(lambda part, piece: msgspec.structs.replace(part, piece=piece, needed=2), parts, st.integers(0, 3))
copies = st.lists(st.builds(Copy, parts, st.sampled_from(["a", "b", "c"]), st.integers(0, 9)), max_size=60)


def siblings(part):
    """All parts of its version, on all ranks."""
    places = product(range(part.parts), range(part.ranks))
    return {msgspec.structs.replace(part, number=number, rank=rank) for number, rank in places}


@given(copies, st.sets(st.sampled_from(["a", "b", "c"])))
def test_what_is_taken_is_whole_and_of_one_version_of_one_view(copies, lost):
    left = [each for each in copies if each.keeper not in lost]
    whole = find_whole(left)
    for stage, versions in whole.items():
        for version, found in versions.items():
            assert {(each.stage, each.version) for each in found} == {(stage, version)}
            assert len({(each.epoch, each.parts) for each in found}) == 1
            ranks, numbers = range(found[0].ranks), range(found[0].parts)
            assert [(each.rank, each.number) for each in found] == list(product(ranks, numbers))
            assert all(climb(left, each, "a") for each in found)
    # Nothing that could be had is overlooked, and no older view's where a newer one has the version.
    known = {copy.part for copy in left}
    for each in known:
        if any(each.epoch < other.epoch and other.began < each.version for other in known):
            # It was taken back, and made again.
            assert all(each not in found for found in whole.get(each.stage, {}).values())
            continue
        if siblings(each) <= known:
            assert whole[each.stage][each.version][0].epoch >= each.epoch


@given(copies, parts, st.sampled_from(["a", "b", "c"]))
def test_ones_own_hosts_keeper_is_the_first_rung_and_bad_copies_only_shorten_the_ladder(copies, part, near):
    rungs = climb(copies, part, near)
    assert {each.keeper for each in rungs} == {each.keeper for each in copies if each.part == part}
    assert all(each.keeper != near for each in rungs) or rungs[0].keeper == near
    if rungs:
        assert climb([each for each in copies if each != rungs[0]], part, near) == [
            each for each in rungs if each != rungs[0]
        ]


@given(st.lists(st.builds(Copy, pieces, st.sampled_from(["a", "b", "c"]), st.integers(0, 9)), max_size=60))
def test_a_part_is_there_where_enough_of_its_pieces_are(copies):
    whole = find_whole(copies)
    for versions in whole.values():
        for found in versions.values():
            for part in found:
                assert len({each.part.piece for each in copies if each.part.whole == part}) >= part.needed
                rungs = climb(copies, part, "b")
                near = [each.keeper == "b" for each in rungs]
                assert near == sorted(near, reverse=True)
                for there in (True, False):
                    numbers = [each.part.piece for each, is_near in zip(rungs, near, strict=True) if is_near == there]
                    assert numbers == sorted(numbers)
    # What is there as pieces is what would be there as copies of the parts that can be had.
    enough = {
        each.part.whole
        for each in copies
        if len({other.part.piece for other in copies if other.part.whole == each.part.whole}) >= 2
    }
    began = {(each.part.epoch, each.part.began) for each in copies}
    for stage, versions in whole.items():
        assert {part for found in versions.values() for part in found} <= enough, stage
    for part in enough:
        undone = any(part.epoch < epoch and part.version > first for epoch, first in began)
        if siblings(part) <= enough and not undone:
            assert whole[part.stage][part.version][0].epoch >= part.epoch


class Trained:
    """Ranks that train, put their parts and die, in any order that the rules allow; with a keeper on each host.

    A rank of a server, (stage, pipeline, rank), is at a version, and has begun and finished to put versions in the
    present view. All ranks of a server are on one host, and die together.
    """

    def __init__(self, random, stages, pipelines, ranks, hosts, copies, every):
        self.random = random
        self.every, self.written = every, 0
        self.servers = list(product(range(stages), range(pipelines), range(ranks)))
        self.stages, self.ranks = stages, ranks
        placed = place_copies(hosts, copies)
        homes = {each[:2]: random.randrange(hosts) for each in self.servers}
        self.on = {each: homes[each[:2]] for each in self.servers}
        self.feeds = {server: placed[host] for server, host in self.on.items()}
        self.held = {host: set() for host in range(hosts)}
        self.start(0, 0, self.servers)

    def start(self, epoch, version, servers):
        self.epoch, self.base = epoch, version
        self.at = dict.fromkeys(servers, version)
        self.coming, self.put = {}, set()
        self.reduced = dict.fromkeys(servers, version - 1)

    def part(self, server, version):
        peers = self.peers(server)
        durable = self.every > 0 and version > 0 and version % self.every == 0
        place = peers.index(server), len(peers), self.base
        return StatePart(server[0], self.epoch, version, *place, durable=durable, rank=server[2], ranks=self.ranks)

    def peers(self, server):
        """Those who have the same rank of the same stage."""
        return [each for each in sorted(self.at) if (each[0], each[2]) == (server[0], server[2])]

    def actions(self, server):
        """What a server can do next."""
        version = self.at[server]
        part = self.part(server, version)
        peers = self.peers(server)
        if part in self.coming:
            yield lambda: self.finish(server, part)
        elif part not in self.put:
            yield lambda: self.begin(server, part)
        # The gradients of an iteration pass through all servers, which begin with putting a view's first version.
        everywhere = all(self.at[each] >= version and self.part(each, self.base) in self.put for each in self.at)
        if everywhere and part in self.put and self.reduced[server] < version:
            yield lambda: self.reduced.update({server: version})
        if all(self.reduced[each] >= version for each in peers):
            yield lambda: self.at.update({server: version + 1})

    def begin(self, server, part):
        self.coming[part] = server
        for host in set(self.feeds[server]) & set(self.held):
            held = self.held[host]
            assert not is_late(held, part)
            outdated = find_outdated(held, part, self.written)
            # What is to be written stays, unless it was taken back, or a newer view has the same.
            waiting = {
                each for each in held if each.stage == part.stage and each.durable and each.version > self.written
            }
            oldest = min((each.version for each in waiting), default=0)
            newest = max((each.epoch for each in waiting if each.version == oldest), default=0)
            for each in outdated & waiting:
                undone = each.epoch < part.epoch and each.version > part.began
                assert undone or each.version > oldest or each.epoch < newest
            held -= outdated
            coming = {each for each, owner in self.coming.items() if host in self.feeds[owner]}
            versions = {(each.epoch, each.version) for each in held | coming if each.stage == part.stage}
            assert len(versions) <= MOST + (self.every > 0)

    def finish(self, server, part):
        del self.coming[part]
        self.put.add(part)
        for host in set(self.feeds[server]) & set(self.held):
            self.held[host].add(part)

    def write(self):
        """Whoever leads has found the oldest version that is to be written on disk, or has given it up."""
        self.written = min(self.written + self.every, max(self.at.values()))

    def train(self, steps):
        servers = sorted(self.at)
        speeds = [self.random.choice([1, 1, 20]) for _ in servers]
        for server in self.random.choices(servers, speeds, k=steps):
            if self.every and self.random.random() < 0.05:
                self.write()
            possible = list(self.actions(server))
            if possible:
                self.random.choice(possible)()

    def die(self, crashed):
        """Some servers and hosts die, and others go on from what is left; gives how many iterations back they go."""
        for host in crashed:
            del self.held[host]
        unlucky = {each[:2] for each in self.servers if self.random.random() < 0.8}
        dead = {each for each in self.at if self.on[each] in crashed or each[:2] in unlucky}
        whole = find_whole([Copy(each, str(host), 0) for host, held in self.held.items() for each in held])
        held = [set(whole.get(stage, {})) for stage in range(self.stages)]
        for server in {each[:2] for each in set(self.at) - dead}:
            # A rank can take back the step that it has made in this view.
            there = [{self.at[each], max(self.at[each] - 1, self.base)} for each in self.at if each[:2] == server]
            held[server[0]] |= set.intersection(*there)
        newest = max(self.at.values())
        living = {each[:2] for each in self.servers if each[1] == 0 or self.random.random() < 0.7}
        servers = [each for each in self.servers if each[:2] in living]
        self.start(self.epoch + 1, max(set.intersection(*held)), servers)
        return newest - self.base


@given(
    st.integers(0, 2**32),
    st.integers(2, 3),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 5),
    st.integers(1, 3),
    st.sampled_from([0, 0, 1, 3]),
)
@settings(max_examples=300)
def test_whoever_dies_there_is_a_version_for_all_at_most_one_whole_iteration_back(
    seed, stages, pipelines, ranks, hosts, copies, every
):
    random = Random(seed)
    trained = Trained(random, stages, pipelines, ranks, hosts, min(copies, hosts), every)
    trained.train(20 * stages * pipelines * ranks)
    # So many hosts may crash, with their keepers, as copies are left.
    crashes = sorted(random.sample(range(hosts), min(copies, hosts) - 1))
    for _ in range(6):
        if trained.epoch == 0 and not all(trained.part(each, 0) in trained.put for each in trained.servers):
            return  # the first version of a run is nowhere yet
        crashed, crashes = (crashes, []) if random.random() < 0.3 else ([], crashes)
        # One iteration is lost, and the one in flight made again.
        over_early = min(trained.at.values()) == trained.base
        assert trained.die(crashed) <= 2
        trained.train(random.randint(0, 80))
        # Of three views in a row that end in their first iteration, keepers may have forgotten what was whole.
        while over_early and min(trained.at.values()) == trained.base:
            trained.train(1)
