from recycle.plan.recording import EvaluationLine, IterationLine
from recycle.runtime.totals import StepTotal, Totals


def test_a_total_is_passed_on_when_the_last_server_has_told():
    seen = []
    totals = Totals(2, 3, seen.append)
    totals.add(IterationLine("W0_0", 0, 1.0, [], 1))
    totals.add(IterationLine("W0_0", 1, 1.0, [], 1))
    assert seen == []
    totals.add(IterationLine("W0_1", 0, 2.0, [1.0, 2.0, 6.0], 1))
    assert seen == [StepTotal(0, 3.0, 2.0)]
    totals.add(IterationLine("W0_1", 1, 0.5, [1.0, 1.0, 1.0], 1))
    assert seen[1:] == [StepTotal(1, 1.0, 1.0)]


def test_held_out_losses_are_counted_by_micro_batch():
    seen = []
    totals = Totals(2, 3, seen.append)
    totals.add(EvaluationLine("W0_0", 4, []))
    totals.add(EvaluationLine("W0_1", 4, [3.0]))
    totals.add(EvaluationLine("W1_1", 4, [1.0, 2.0]))
    assert seen == [StepTotal(4, 2.0, None)]
    assert seen[0].held_out


def test_the_order_of_servers_does_not_change_a_sum():
    losses = ([0.1, 0.7], [0.3, 1e9], [0.2, -1e9])
    means = set()
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        seen = []
        totals = Totals(3, 6, seen.append)
        for server in order:
            totals.add(IterationLine(f"W{server}_0", 0, 1.0, losses[server], 1))
        means.add(seen[0].loss)
    assert len(means) == 1
