import math
from collections import Counter
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle.record.recording import DeathLine, EvaluationLine, IterationLine, Line, ViewLine
from recycle.record.totals import StepTotal, Totals

STAGES = 2


def view(epoch, servers, step=0, restore="memory"):
    return ViewLine(epoch, float(epoch), list(servers), [], step, "", restore, 30, 1.0, "catalogue")


def told(lines):
    seen = []
    totals = Totals(seen.append)
    for line in lines:
        totals.add(line)
    totals.skip()
    return seen


def iteration(server, step, losses=(), epoch=0, seconds=1.0):
    return IterationLine(server, step, seconds, list(losses), 1, epoch)


TWO = view(0, ["W0_0", "W0_1"])


def test_losses_that_several_servers_tell_count_once():
    four = view(0, ["W0_0", "W0_1", "W1_0", "W1_1"])
    lines = [iteration(server, 0, [1.0, 2.0] if server[-1] == "1" else ()) for server in four.servers]
    assert told([four, *lines]) == [StepTotal(0, 1.5, 1.0)]
    evaluations = [EvaluationLine(server, 0, [3.0, 1.0] if server[-1] == "1" else []) for server in four.servers]
    seen = told([four, *evaluations, *lines])
    assert seen == [StepTotal(0, 2.0, None), StepTotal(0, 1.5, 1.0)]
    assert seen[0].held_out


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_read_back_and_makes_that_of_its_step_nan(loss):
    lines = [TWO, iteration("W0_0", 0), iteration("W0_1", 0, [1.0, math.inf, loss]), EvaluationLine("W0_1", 1, [loss])]
    for each in (lines, [msgspec.json.decode(msgspec.json.encode(line), type=Line) for line in lines]):
        seen = told(each)
        assert [(total.step, total.held_out) for total in seen] == [(0, False), (1, True)]
        assert all(math.isnan(total.loss) for total in seen)


def test_a_step_that_was_finished_needs_no_word_of_the_dead():
    lines = [TWO, iteration("W0_1", 0, [5.0]), DeathLine("W0_0", 0, 1.0, "died", "agent", 1)]
    assert told(lines) == []
    assert told([*lines, view(1, ["W1_0", "W0_1"], step=1)]) == [StepTotal(0, 5.0, 1.0)]


def test_at_the_end_a_step_whose_losses_nobody_can_tell_is_left_out():
    seen = []
    totals = Totals(seen.append)
    for line in (
        TWO,
        iteration("W0_0", 0),
        view(1, ["W0_0", "W1_1"], step=1),
        iteration("W0_0", 1, epoch=1),
        iteration("W1_1", 1, [3.0], epoch=1),
        iteration("W1_1", 2, [2.0], epoch=1),
    ):
        totals.add(line)
    assert seen == []
    totals.finish()
    assert seen == [StepTotal(1, 3.0, 1.0), StepTotal(2, 2.0, 1.0)]


def test_where_a_line_is_missing_the_step_is_passed_on_when_all_have_reported_a_later_one():
    lines = [TWO, iteration("W0_1", 0, [5.0]), iteration("W0_1", 1, [6.0])]
    assert told(lines) == []
    assert told([*lines, iteration("W0_0", 1)]) == [StepTotal(0, 5.0, 1.0), StepTotal(1, 6.0, 1.0)]


def test_steps_that_nobody_makes_are_left_out():
    # Megatron skips an iteration; it goes on from a checkpoint behind all that was recorded.
    lines = [TWO]
    for epoch, step in ((0, 0), (0, 2), (1, 10**15), (1, 10**15 + 1)):
        if step == 10**15:
            lines.append(view(1, ["W0_0", "W0_1"], step, restore="checkpoint"))
        lines += [iteration("W0_0", step, epoch=epoch), iteration("W0_1", step, [float(step)], epoch)]
    assert [each.step for each in told(lines)] == [0, 2, 10**15, 10**15 + 1]


def test_steps_behind_a_checkpoint_are_passed_on_again_and_say_so():
    lines = [TWO]
    for step in range(3):
        lines += [EvaluationLine("W0_1", step, [7.0]), iteration("W0_0", step), iteration("W0_1", step, [float(step)])]
    lines.append(view(1, ["W0_0", "W0_1"], step=1, restore="checkpoint"))
    for step in range(1, 4):
        lines += [iteration("W0_0", step, epoch=1), iteration("W0_1", step, [float(step)], epoch=1)]
        lines.append(EvaluationLine("W0_1", step + 1, [7.0], epoch=1))
    seen = [(each.step, each.held_out, each.again) for each in told(lines)]
    first = [(0, True), (0, False), (1, True), (1, False), (2, True), (2, False)]
    second = [
        (1, False, True),
        (2, True, True),
        (2, False, True),
        (3, True, False),
        (3, False, False),
        (4, True, False),
    ]
    assert seen == [(*each, False) for each in first] + second


def test_a_server_may_tell_of_steps_behind_a_checkpoint_before_the_view_is_known():
    lines = [TWO]
    for step in range(3):
        lines += [iteration("W0_0", step), iteration("W0_1", step, [float(step)])]
    lines += [iteration("W0_0", 1, epoch=1), iteration("W0_1", 1, [1.5], epoch=1)]
    lines[-4:-4] = [lines.pop(-2)]
    lines.append(view(1, ["W0_0", "W0_1"], step=1, restore="checkpoint"))
    seen = [(each.step, each.loss, each.again) for each in told(lines)]
    assert seen == [(0, 0.0, False), (1, 1.0, False), (2, 2.0, False), (1, 1.5, True)]


@dataclass
class Story:
    """A run as its servers tell it: what each says in its own order, and what must come of it."""

    streams: dict[str, list] = field(default_factory=dict)
    expected: list = field(default_factory=list)

    def say(self, server, line):
        self.streams.setdefault(server, []).append(line)


@st.composite
def stories(draw):
    """Runs in which servers die in the middle of an iteration or come back between two, each stage keeping one."""
    pipelines = draw(st.integers(1, 3))
    everybody = [(pipeline, stage) for pipeline in range(pipelines) for stage in range(STAGES)]
    members = list(everybody)
    story = Story()
    step = 0

    def finish(server, epoch):
        losses = [1000.0 * epoch + step] * pipelines if server[1] == STAGES - 1 else []
        name = f"W{server[0]}_{server[1]}"
        if draw(st.booleans()) and losses:
            story.say(name, EvaluationLine(name, step, losses, epoch))
        story.say(name, IterationLine(name, step, 1.0, losses, 1, epoch))

    epochs = draw(st.integers(1, 4))
    for epoch in range(epochs):
        line = view(epoch, [f"W{pipeline}_{stage}" for pipeline, stage in members], step)
        for reporter in ["launcher", *(f"W{pipeline}_{stage}" for pipeline, stage in members if epoch == 0)]:
            story.say(reporter, line)
        for _ in range(draw(st.integers(1, 3))):
            for server in members:
                finish(server, epoch)
            story.expected.append((step, 1000.0 * epoch + step))
            step += 1
        if epoch == epochs - 1:
            break
        gone = [each for each in everybody if each not in members]
        if gone and draw(st.booleans()):
            members.append(draw(st.sampled_from(gone)))
            continue
        # Of the iteration in flight each server has told or not when the view ends; the dead are among both.
        done = [each for each in members if draw(st.booleans())]
        for server in done:
            finish(server, epoch)
        stays = {draw(st.sampled_from([each for each in members if each[1] == stage])) for stage in range(STAGES)}
        members = [each for each in members if each in stays or draw(st.booleans())]
        if all(any(each[1] == stage for each in members if each in done) for stage in range(STAGES)):
            story.expected.append((step, 1000.0 * epoch + step))
            step += 1
    return story


@given(story=stories(), chance=st.randoms(use_true_random=False))
def test_every_step_is_passed_on_once_in_order_however_the_servers_words_mix(story, chance):
    streams = [list(stream) for stream in story.streams.values()]
    lines = [story.streams["launcher"][0]]
    while streams := [stream for stream in streams if stream]:
        lines.append(chance.choice(streams).pop(0))
    seen = told(lines)
    training = [each for each in seen if not each.held_out]
    assert [(each.step, each.loss) for each in training] == story.expected
    assert not any(each.again for each in seen)
    assert max(Counter(each.step for each in seen if each.held_out).values(), default=1) == 1


def test_what_a_server_told_in_its_first_life_may_be_read_last():
    """Its file stands behind that of its later life."""
    one = view(0, ["W0_0", "W0_1"])
    lines = [one, view(1, ["W0_0", "W0_1"], step=2)]
    for server in ("W0_0", "W0_1"):
        later = [iteration(server, step, [1.0] if server == "W0_1" else (), epoch=1) for step in (2, 3)]
        first = [iteration(server, step, [1.0] if server == "W0_1" else ()) for step in (0, 1)]
        lines += [*first, *later] if server == "W0_0" else [*later, *first]
    assert [each.step for each in told(lines)] == [0, 1, 2, 3]
