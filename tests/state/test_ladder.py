from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from recycle.state.ladder import MOST, Copy, StatePart, climb, find_outdated, find_whole, is_late

parts = st.builds(
    lambda stage, epoch, version, parts, number: StatePart(stage, epoch, version, number % parts, parts),
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(0, 3),
    st.integers(1, 3),
    st.integers(0, 2),
)
copies = st.lists(st.builds(Copy, parts, st.sampled_from(["a", "b", "c"]), st.integers(0, 9)), max_size=60)


@given(copies, st.sets(st.sampled_from(["a", "b", "c"])))
def test_what_is_taken_is_whole_and_of_one_version_of_one_view(copies, lost):
    left = [each for each in copies if each.keeper not in lost]
    whole = find_whole(left)
    for stage, versions in whole.items():
        for version, found in versions.items():
            assert {(each.stage, each.version) for each in found} == {(stage, version)}
            assert len({(each.epoch, each.parts) for each in found}) == 1
            assert [each.number for each in found] == list(range(found[0].parts))
            assert all(climb(left, each, "a") for each in found)
    # Nothing that could be had is overlooked, and no older view's where a newer one has the version.
    for each in {copy.part for copy in left}:
        siblings = {StatePart(each.stage, each.epoch, each.version, number, each.parts) for number in range(each.parts)}
        if siblings <= {copy.part for copy in left}:
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


class Trained:
    """Servers that train, put their parts and die, in any order that the rules allow; with one keeper.

    A server is at a version, and has begun and finished to put versions in the present view.
    """

    def __init__(self, random, stages, pipelines):
        self.random = random
        self.servers = [(stage, number) for stage in range(stages) for number in range(pipelines)]
        self.stages, self.pipelines = stages, pipelines
        self.held, self.coming = set(), set()
        self.start(epoch=0, version=0)

    def start(self, epoch, version):
        self.epoch, self.base = epoch, version
        self.coming = set()
        self.at = dict.fromkeys(self.servers, version)
        self.reduced = dict.fromkeys(self.servers, version - 1)

    def part(self, server, version):
        return StatePart(server[0], self.epoch, version, server[1], self.pipelines)

    def actions(self, server):
        """What a server can do next."""
        version = self.at[server]
        part = self.part(server, version)
        peers = [each for each in self.servers if each[0] == server[0]]
        if part in self.coming:
            yield lambda: (self.coming.discard(part), self.held.add(part))
        elif part not in self.held:
            yield lambda: self.put(part)
        # The gradients of an iteration pass through all servers, which begin with putting a view's first version.
        everywhere = all(self.at[each] >= version and self.part(each, self.base) in self.held for each in self.servers)
        if everywhere and part in self.held and self.reduced[server] < version:
            yield lambda: self.reduced.update({server: version})
        if all(self.reduced[each] >= version for each in peers):
            yield lambda: self.at.update({server: version + 1})

    def put(self, part):
        assert not is_late(self.held, part)
        self.held -= find_outdated(self.held, part)
        self.coming.add(part)
        versions = {(each.epoch, each.version) for each in self.held | self.coming if each.stage == part.stage}
        assert len(versions) <= MOST

    def train(self, steps):
        speeds = [self.random.choice([1, 1, 20]) for _ in self.servers]
        for server in self.random.choices(self.servers, speeds, k=steps):
            possible = list(self.actions(server))
            if possible:
                self.random.choice(possible)()

    def die(self):
        """Some servers die, and the others go on from what is left; gives how many iterations back they go."""
        dead = {each for each in self.servers if self.random.random() < 0.8}
        whole = find_whole([Copy(each, "a", 0) for each in self.held])
        held = [set(whole.get(stage, {})) for stage in range(self.stages)]
        for server in set(self.servers) - dead:
            # A server can take back the step that it has made in this view.
            held[server[0]] |= {self.at[server], max(self.at[server] - 1, self.base)}
        newest = max(self.at.values())
        self.start(self.epoch + 1, max(set.intersection(*held)))
        return newest - self.base


@given(st.integers(0, 2**32), st.integers(2, 3), st.integers(1, 3))
@settings(deadline=None, max_examples=300)
def test_whoever_dies_there_is_a_version_for_all_at_most_one_whole_iteration_back(seed, stages, pipelines):
    trained = Trained(Random(seed), stages, pipelines)
    trained.train(20 * stages * pipelines)
    for _ in range(4):
        if not all(trained.part(each, 0) in trained.held for each in trained.servers) and trained.epoch == 0:
            return  # the first version of a run is nowhere yet
        # One iteration is lost, and the one in flight made again.
        assert trained.die() <= 2
        trained.train(trained.random.randint(0, 80))
