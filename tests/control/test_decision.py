from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from harness.examples import paper_job, placed_job, uneven_job
from recycle.control.membership.decision import Lost, Missing, Survey, common_report, decide, give_up
from recycle.control.membership.messages import NOTHING, Death, Report, Verdict
from recycle.control.membership.view import Member, View
from recycle.holding import own_layout, units_of, with_own_layout
from recycle.job import Server
from recycle.placement import Layout, PlacedPipeline, PlacedServer
from recycle.placing.spreading import assigned
from recycle.runtime.recover.restore import find_holders

JOB = paper_job(pipelines=3, stages=2)
MEMBERS = tuple(Member(server, 0) for server in JOB.servers())
VIEW = View(4, MEMBERS)


def report(member: Member, newest: int, oldest: int, checkpoint: int | None = None) -> Report:
    return Report(str(member), 4, newest, oldest, checkpoint)


def death(member: Member) -> Death:
    return Death(str(member), "died", "agent", 0.0)


@st.composite
def surveys(draw: st.DrawFn) -> Survey:
    """What a failure in iteration 7 can leave: some finished it, some are still at 7, some have nothing yet."""
    held = st.sampled_from([(7, 6), (8, 7), (8, 7), (NOTHING, NOTHING)])
    dead = draw(st.sets(st.sampled_from(MEMBERS), max_size=5))
    silent = draw(st.sets(st.sampled_from(MEMBERS), max_size=1)) if draw(st.booleans()) else set()
    reports = {each: report(each, *draw(held)) for each in MEMBERS if each not in silent}
    joiners = draw(st.sets(st.builds(Member, st.sampled_from(JOB.servers()), st.integers(1, 2)), max_size=4))
    return Survey(
        VIEW,
        {each: one for each, one in reports.items() if each not in dead or draw(st.booleans())},
        {each: death(each) for each in dead},
        {each: report(each, *draw(held)) for each in joiners},
    )


@given(st.lists(st.sampled_from([(7, 6), (7, 7), (8, 7), (8, 8), (NOTHING, NOTHING)]), min_size=1, max_size=4))
def test_a_server_holds_what_all_its_ranks_hold(held: list[tuple[int, int]]) -> None:
    reports = [msgspec.structs.replace(report(MEMBERS[0], *each), rank=rank) for rank, each in enumerate(held)]
    common = common_report(reports)
    assert common.versions == frozenset.intersection(*(each.versions for each in reports))
    assert common.member == str(MEMBERS[0])


def test_a_server_reads_the_checkpoint_that_all_its_ranks_read_and_stops_if_one_says_so() -> None:
    first = report(MEMBERS[0], 7, 6, checkpoint=6)
    second = msgspec.structs.replace(first, rank=1, checkpoint=4, stop="no")
    assert (common_report([first, second]).checkpoint, common_report([first, second]).stop) == (4, "no")
    assert common_report([first, msgspec.structs.replace(second, checkpoint=None)]).checkpoint is None


@given(surveys())
def test_a_verdict_is_what_every_survivor_can_follow(survey: Survey) -> None:
    outcome = decide(JOB, survey)
    unknown = {each for each in MEMBERS if each not in survey.reports and each not in survey.deaths}
    assert isinstance(outcome, Missing) == bool(unknown)
    if isinstance(outcome, Missing):
        assert set(outcome.members) == unknown
        return
    survivors = {each: survey.reports[each] for each in MEMBERS if each not in survey.deaths}
    if isinstance(outcome, Lost):
        return
    members = outcome.view.members
    assert outcome.epoch == 5
    assert set(survivors) <= set(members)
    assert not set(survey.deaths) & set(members)
    known = {**survivors, **survey.joiners}
    held = [{v for each in members if each.server.stage == stage for v in known[each].versions} for stage in range(2)]
    assert all(outcome.step in versions for versions in held)
    assert all(any(later not in versions for versions in held) for later in range(outcome.step + 1, 10))
    assert {each.server for each in members} == {each.server for each in known if each not in survey.deaths}
    assert outcome.joined == tuple(str(each) for each in members if each not in MEMBERS)


@given(surveys())
def test_a_run_is_lost_only_without_a_server_or_a_common_version(survey: Survey) -> None:
    outcome = decide(JOB, survey)
    if isinstance(outcome, Lost):
        live = {each.server.stage for each in (*survey.reports, *survey.joiners) if each not in survey.deaths}
        assert set(outcome.stages) == {0, 1} - live
        assert not outcome.checkpoint
        assert "no checkpoint" in give_up(JOB, survey, outcome).stop


def test_of_two_who_want_a_place_the_first_gets_it() -> None:
    gone = MEMBERS[0]
    reports = {each: report(each, 7, 6) for each in MEMBERS[1:]}
    joiners = {Member(server, life): report(Member(server, life), 7, 7) for life in (2, 1) for server in JOB.servers()}
    outcome = decide(JOB, Survey(VIEW, reports, {gone: death(gone)}, joiners))
    assert outcome.joined == ("W0_0#1",)


def test_a_lost_stage_is_restored_from_a_checkpoint_that_all_can_read() -> None:
    lost = [each for each in MEMBERS if each.server.stage == 1]
    reports = {each: report(each, 7, 6, 4 + each.server.pipeline) for each in MEMBERS if each not in lost}
    survey = Survey(VIEW, reports, {each: death(each) for each in lost}, {})
    assert decide(JOB, survey) == Lost((1,), checkpoint=True)
    new = Member(Server(1, 1), 1)
    outcome = decide(JOB, survey._replace(joiners={new: report(new, NOTHING, NOTHING, 9)}))
    assert (outcome.restore, outcome.step) == ("checkpoint", 4)
    assert isinstance(decide(JOB, survey._replace(joiners={new: report(new, NOTHING, NOTHING)})), Lost)


@given(
    st.lists(st.tuples(*[st.sets(st.integers(4, 9)).map(tuple)] * 2), min_size=1, max_size=3),
    st.sampled_from([None, 3, 6]),
    st.sets(st.integers(0, 2), min_size=1),
)
def test_what_keepers_have_counts_as_held(
    kept: list[tuple[tuple[int, ...], ...]], checkpoint: int | None, lost: set[int]
) -> None:
    """Servers of stage 1 died, and new ones have nothing but what keepers have."""
    dead = [each for each in MEMBERS if each.server.stage == 1 and each.server.pipeline in lost]
    reports = {
        each: Report(str(each), 4, 8, 7, checkpoint, kept=kept[place % len(kept)])
        for place, each in enumerate(MEMBERS)
        if each not in dead
    }
    survey = Survey(VIEW, reports, {each: death(each) for each in dead}, {})
    held = [{version for each in reports.values() for version in each.kept[stage]} for stage in range(2)]
    held[0] |= {8, 7}
    if len(lost) < 3:
        held[1] |= {8, 7}
    common = max(held[0] & held[1], default=NOTHING)
    outcome = decide(JOB, survey)
    if len(lost) == 3:
        assert outcome == Lost((1,), checkpoint is not None, common > NOTHING)
        new = Member(Server(1, 1), 1)
        outcome = decide(JOB, survey._replace(joiners={new: report(new, NOTHING, NOTHING, checkpoint)}))
    if checkpoint is None and common == NOTHING:
        assert isinstance(outcome, Lost)
        return
    assert isinstance(outcome, Verdict)
    # All from memory or all from disk, whichever is newer.
    durable = (NOTHING if checkpoint is None else checkpoint) > common
    assert (outcome.restore, outcome.step) == (("checkpoint", checkpoint) if durable else ("memory", common))
    lacking = {str(each) for each in outcome.view.members if each.incarnation or common not in (7, 8)}
    assert set(outcome.lacking) == (set() if durable else lacking)


def test_a_run_that_cannot_go_on_says_why() -> None:
    survey = Survey(VIEW, {}, {each: death(each) for each in MEMBERS[1:]}, {})
    stop = give_up(JOB, survey, Lost((1,), checkpoint=False))
    assert stop.stop.startswith("no live server of stage 1 is left, and there is no checkpoint")
    assert give_up(JOB, survey, Lost((0, 1), checkpoint=False)).stop.startswith("no live server of stages 0, 1 is left")
    assert give_up(JOB, survey, Lost((), checkpoint=False)).stop.startswith(
        "no version of the state is held in every stage"
    )
    assert (stop.epoch, stop.members) == (5, ("W0_0#0",))
    other = give_up(JOB, survey, Lost((1,), checkpoint=False), loads=False)
    assert other.stop == "no live server of stage 1 is left; go on from the last checkpoint, if there is one"


def test_nobody_is_let_in_while_a_survivor_is_where_its_state_is_not_all_that_there_is() -> None:
    gone, *left = MEMBERS
    joiner = Member(gone.server, 1)
    reports = {each: report(each, 7, 7) for each in left}
    joiners = {joiner: report(joiner, NOTHING, NOTHING)}
    verdict = decide(JOB, Survey(VIEW, reports, {gone: death(gone)}, joiners))
    assert joiner in verdict.view.members
    reports[left[0]] = Report(str(left[0]), 4, 7, 7, closed=True)
    verdict = decide(JOB, Survey(VIEW, reports, {gone: death(gone)}, joiners))
    assert verdict.view.members == tuple(left)


def test_who_takes_up_a_stage_that_only_keepers_have_is_let_in_wherever_the_others_are() -> None:
    lost = [each for each in MEMBERS if each.server.stage == 1]
    joiner = Member(lost[0].server, 1)
    reports = {
        each: Report(str(each), 4, 8, 8, kept=((7, 8), (6, 7)), closed=True) for each in MEMBERS if each not in lost
    }
    survey = Survey(VIEW, reports, {each: death(each) for each in lost}, {})
    assert decide(JOB, survey) == Lost((1,), checkpoint=False, kept=True)
    survey = survey._replace(joiners={joiner: Report(str(joiner), 4, NOTHING, NOTHING, kept=((7, 8), (6, 7)))})
    verdict = decide(JOB, survey)
    # The others are ahead of it, and get it from keepers as well.
    assert (verdict.step, set(verdict.lacking)) == (7, set(verdict.members))
    assert str(joiner) in verdict.joined
    alone = {each: msgspec.structs.replace(found, kept=((), ())) for each, found in reports.items()}
    assert isinstance(decide(JOB, survey._replace(reports=alone)), Lost)


SHARDS = st.one_of(st.none(), st.sets(st.integers(0, JOB.pipelines - 1)).map(lambda each: tuple(sorted(each))))


@given(st.data())
def test_a_version_counts_where_the_servers_of_each_stage_have_all_shards_of_it(data: st.DataObject) -> None:
    dead = data.draw(st.sets(st.sampled_from(MEMBERS), max_size=4))
    left = [each for each in MEMBERS if each not in dead]
    reports = {
        each: Report(
            str(each),
            4,
            *data.draw(st.sampled_from([(7, 6), (7, 7), (8, 7)])),
            shards=data.draw(SHARDS),
            older_shards=data.draw(SHARDS),
        )
        for each in left
    }
    outcome = decide(JOB, Survey(VIEW, reports, {each: death(each) for each in dead}, {}))

    def has_all(stage: int, version: int) -> bool:
        found: set[int] = set()
        for each, one in reports.items():
            if each.server.stage == stage and version in one.versions:
                shards = one.shards if version == one.newest else one.older_shards
                found |= set(range(JOB.pipelines) if shards is None else shards)
        return found == set(range(JOB.pipelines))

    common = [version for version in (6, 7, 8) if all(has_all(stage, version) for stage in range(JOB.depth))]
    if common:
        assert outcome.step == max(common)
    else:
        assert isinstance(outcome, Lost)


@given(st.lists(st.tuples(st.sampled_from([(7, 6), (7, 7), (8, 7)]), SHARDS, SHARDS), min_size=1, max_size=3))
def test_a_server_holds_the_shards_that_all_its_ranks_hold(
    held: list[tuple[tuple[int, int], tuple[int, ...] | None, tuple[int, ...] | None]],
) -> None:
    reports = [
        Report(str(MEMBERS[0]), 4, *versions, rank=rank, shards=shards, older_shards=older)
        for rank, (versions, shards, older) in enumerate(held)
    ]
    common = common_report(reports)
    for version in common.versions:
        every = set(range(JOB.pipelines))
        parts = [every if (found := each.shards_of(version)) is None else set(found) for each in reports]
        found = common.shards_of(version)
        assert (every if found is None else set(found)) == set.intersection(*parts)


def test_keepers_have_for_a_server_what_all_its_ranks_see_there() -> None:
    seen = (((4, 5), (5,)), ((5, 4), (4, 5)), ((4, 5, 6), (5, 6)))
    reports = [Report(str(MEMBERS[0]), 4, 7, 7, kept=kept, rank=rank) for rank, kept in enumerate(seen)]
    assert common_report(reports).kept == ((4, 5), (5,))
    assert common_report([*reports, Report(str(MEMBERS[0]), 4, 7, 7, rank=3)]).kept == ()


def test_where_pipelines_are_not_alike_a_chunk_is_lost_with_the_last_who_holds_it() -> None:
    job = uneven_job()
    members = tuple(Member(server, 0) for server in job.servers())

    def decided(*dead: str, newest: tuple[str, ...] = ()) -> Verdict | Missing | Lost:
        gone = {each: death(each) for each in members if str(each.server) in dead}
        reports = {
            each: report(each, 8 if str(each.server) in newest else 7, 7) for each in members if each not in gone
        }
        return decide(job, Survey(View(4, members), reports, gone, {}))

    # W1_1 holds chunks 1 and 2, of which W0_0 and W0_1 hold one each.
    assert isinstance(decided("W1_1"), Verdict)
    assert decided("W1_1", "W0_0") == Lost((1,), checkpoint=False)
    assert decided("W1_1", "W0_0", "W0_1") == Lost((1, 2), checkpoint=False)
    forward = decided("W1_1", newest=("W0_0", "W0_1"))
    assert (forward.step, forward.lacking) == (8, ("W1_0#0", "W1_2#0"))
    back = decided("W1_1", newest=("W0_0", "W1_2"))
    assert (back.step, back.lacking) == (7, ())


MOVABLE = with_own_layout(placed_job("consecutive:2", pipelines=2, servers=3))
HOME = own_layout(MOVABLE)
GONE = Server(1, 1)
THERE = tuple(Member(server, 0) for server in MOVABLE.servers() if server != GONE)
"""Who is left without W1_1, whose chunks 2 and 3 go to W1_0 and W1_2."""
CHUNKS = {"W1_0": (0, 1, 2), "W1_2": (3, 4, 5)}
AWAY = (
    HOME[0],
    PlacedPipeline(
        HOME[1].micro_batches,
        tuple(
            PlacedServer(CHUNKS.get(str(Server(1, place)), ()), server.limit)
            for place, server in enumerate(HOME[1].servers)
        ),
    ),
)


def movable_report(member: Member, chunks: tuple[int, ...] | None = None, newest: int = 7) -> Report:
    held = units_of(MOVABLE, member.server) if chunks is None else chunks
    return msgspec.structs.replace(report(member, newest, newest), chunks=held)


def empty_report(member: Member) -> Report:
    return msgspec.structs.replace(report(member, NOTHING, NOTHING, checkpoint=6), chunks=())


def movable_survey(**changes: Any) -> Survey:
    reports = {each: movable_report(each) for each in THERE}
    return Survey(View(4, THERE), reports, {}, {})._replace(**changes)


def test_chunks_move_as_the_leader_wishes_where_nothing_else_has_happened() -> None:
    verdict = decide(MOVABLE, movable_survey(wish=AWAY))
    assert isinstance(verdict, Verdict)
    # Who has got its copy before the pause holds more than its place.
    copied = dict.fromkeys(THERE, None) | {THERE[3]: (0, 1, 2)}
    assert (verdict.layout, verdict.lacking) == (AWAY, ())
    assert verdict.held == {"W1_0#0": (0, 1), "W1_2#0": (4, 5)}
    reports = {each: movable_report(each, chunks) for each, chunks in copied.items()}
    verdict = decide(MOVABLE, movable_survey(wish=AWAY, reports=reports))
    assert verdict.held == {"W1_2#0": (4, 5)}


def test_nothing_moves_where_somebody_has_died_or_is_ahead() -> None:
    died = movable_survey(wish=AWAY, deaths={THERE[0]: death(THERE[0])})
    ahead = movable_survey(wish=AWAY, reports={each: movable_report(each) for each in THERE[1:]})
    ahead = ahead._replace(reports={**ahead.reports, THERE[0]: movable_report(THERE[0], newest=8)})
    for survey in (died, ahead):
        verdict = decide(MOVABLE, survey)
        assert verdict.layout is None


def test_who_comes_back_without_chunks_gets_its_own_ones_but_not_in_a_recovery() -> None:
    back = Member(GONE, 1)
    joiners = {back: empty_report(back)}
    reports = {each: movable_report(each, CHUNKS.get(str(each.server))) for each in THERE}
    survey = movable_survey(reports=reports, joiners=joiners, layout=AWAY)
    verdict = decide(MOVABLE, survey)
    assert (verdict.layout, verdict.joined, verdict.lacking) == (None, ("W1_1#1",), ("W1_1#1",))
    assert verdict.held == {"W1_0#0": (0, 1, 2), "W1_2#0": (3, 4, 5)}
    holders = find_holders(verdict, MOVABLE, GONE)
    # Those who hold its chunks and are to give them away are asked for them as well.
    assert holders[2] == {THERE[1]: True, THERE[3]: True, back: False}
    waits = decide(MOVABLE, survey._replace(deaths={THERE[0]: death(THERE[0])}))
    assert (waits.layout, waits.joined) == (AWAY, ())


def test_chunks_stay_with_who_holds_them_if_who_comes_back_for_them_dies_at_once() -> None:
    back, left = Member(GONE, 1), tuple(each for each in THERE if each.server != Server(0, 1))
    joiners = {back: empty_report(back)}
    reports = {each: movable_report(each, CHUNKS.get(str(each.server))) for each in left}
    verdict = decide(MOVABLE, Survey(View(4, left), reports, {}, joiners, AWAY))
    assert (verdict.layout, verdict.joined) == (None, ("W1_1#1",))
    survey = Survey(verdict.view, reports, {back: death(back)}, {})
    verdict = decide(MOVABLE, survey)
    assert (verdict.layout, verdict.held, verdict.lacking) == (AWAY, {}, ())
    heavy = tuple(msgspec.structs.replace(each, state=1) for each in MOVABLE.stages)
    first = decide(msgspec.structs.replace(MOVABLE, stages=heavy), survey).layout[1].servers[0]
    assert (first.chunks, first.limit) == (CHUNKS["W1_0"], HOME[1].servers[0].limit - 1)


LONE = with_own_layout(paper_job(pipelines=1, stages=3))
FIRST, SECOND, THIRD = (Member(server, 0) for server in LONE.servers())


def test_who_comes_back_with_nothing_waits_for_who_else_is_lost() -> None:
    """The joiner holds its place, admitted or not, and the chunk that is still lost stays lost."""
    first = msgspec.structs.replace(report(FIRST, 7, 7, checkpoint=6), chunks=(0,))
    deaths = {each: death(each) for each in (SECOND, THIRD)}
    joined = Member(SECOND.server, 1)
    empty = empty_report(joined)
    survey = Survey(View(4, (FIRST, SECOND, THIRD)), {FIRST: first}, deaths, {})
    assert decide(LONE, survey) == Lost((1, 2), checkpoint=True)
    assert decide(LONE, survey._replace(joiners={joined: empty})) == Lost((2,), checkpoint=True)
    loading = Survey(View(5, (FIRST, joined, THIRD)), {FIRST: first, joined: empty}, {THIRD: death(THIRD)}, {})
    assert decide(LONE, loading) == Lost((2,), checkpoint=True)


def test_who_dies_before_anybody_holds_anything_ends_a_start_with_the_remedy() -> None:
    reports = {each: empty_report(each) for each in (FIRST, SECOND)}
    survey = Survey(View(-1, (FIRST, SECOND, THIRD)), reports, {THIRD: death(THIRD)}, {})
    lost = decide(LONE, survey)
    assert isinstance(lost, Lost)
    assert give_up(LONE, survey, lost).stop == (
        "no live server of chunk 2 is left; there is a checkpoint: go on from it with --resume"
    )


def test_who_comes_back_where_its_pipeline_is_given_up_computes_in_another_one() -> None:
    held = {"W0_0": (0,), "W1_0": (1,), "W0_1": (2, 3), "W1_2": (4,), "W0_2": (5,)}

    def layout(chunks: dict[str, tuple[int, ...]]) -> Layout:
        return assigned(MOVABLE, HOME, {Server.parse(name): (0, mine) for name, mine in chunks.items()}, (8, 0))

    back = Member(GONE, 1)
    joiners = {back: empty_report(back)}
    reports = {each: movable_report(each, held[str(each.server)]) for each in THERE}
    verdict = decide(MOVABLE, movable_survey(reports=reports, joiners=joiners, layout=layout(held)))
    assert verdict.layout == layout(held | {"W0_1": (2,), "W1_1": (3,)})
    assert (verdict.joined, verdict.lacking) == (("W1_1#1",), ("W1_1#1",))
    died = Survey(verdict.view, reports, {back: death(back)}, {}, verdict.layout)
    assert decide(MOVABLE, died).layout == layout(held)


def test_a_chunk_counts_where_it_is_held_and_not_where_its_place_is() -> None:
    # The view with the new layout could not be built: W1_0 has its new chunk, W1_2 has not, and W0_1 has died.
    lost = Member(Server(0, 1), 0)
    reports = {each: movable_report(each) for each in THERE if each != lost}
    reports[Member(Server(1, 0), 0)] = movable_report(Member(Server(1, 0), 0), (0, 1, 2))
    survey = movable_survey(reports=reports, deaths={lost: death(lost)}, layout=AWAY)
    # Nobody has chunk 3 any more.
    assert decide(MOVABLE, survey) == Lost((), checkpoint=False)
    aside = movable_report(Member(Server(1, 2), 0), (3, 4, 5))
    verdict = decide(MOVABLE, survey._replace(reports={**reports, Member(Server(1, 2), 0): aside}))
    assert (verdict.layout, verdict.held) == (AWAY, {})
