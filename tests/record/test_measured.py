from harness.examples import paper_job, paper_plan
from recycle.record.measured import held_memory, iteration_ends
from recycle.record.planned import timeline
from recycle.record.reading import load_recording
from tests.view.disturbed import DEATH, REJOIN, VICTIM, VIEW, write_disturbed


def test_of_a_run_that_followed_its_plan_the_memory_is_the_plans():
    line = timeline(paper_plan(), 2)

    def levels(samples):
        """The last level at each time, without what changes nothing."""
        found = {}
        for each in samples:
            found[each.server, each.time] = each.memory
        return found

    planned, derived = levels(line.samples), levels(held_memory(line, paper_job()))
    assert derived.items() >= planned.items()
    assert {derived[key] for key in derived.keys() - planned.keys()} <= {0}


def test_what_an_interrupted_iteration_held_is_forgotten(tmp_path):
    line = load_recording(write_disturbed(tmp_path / "run"))
    samples = [each for each in held_memory(line, paper_job()) if each.server == str(VICTIM)]
    assert max(each.memory for each in samples if each.time < DEATH) > 0
    assert next(each.memory for each in samples if each.time > REJOIN) == 0
    assert all(0 <= each.memory <= 4 for each in held_memory(line, paper_job()))


def test_an_iteration_that_was_made_again_ended_the_second_time(tmp_path):
    line = load_recording(write_disturbed(tmp_path / "run"))
    ends = iteration_ends(line)
    assert sorted(ends) == list(range(4))
    assert ends[0] < DEATH < VIEW < ends[1] < ends[2] < REJOIN < ends[3]
