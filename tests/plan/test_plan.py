"""What a plan says of itself."""

from harness.examples import paper_plan
from recycle.job import Server


def test_partners_are_those_of_every_transfer_at_both_of_its_ends():
    plan = paper_plan(failed=[Server(1, 2)])
    for server, program in plan.programs.items():
        partners = plan.partners(server)
        assert all(server in plan.partners(each) for each in partners)
        assert {str(each).partition(">")[2] for each in program if each.op.is_send} - {""} <= set(map(str, partners))
    assert plan.partners(Server(0, 0)) == {Server(0, 1)}
    # Whoever does the dead server's work hears from the dead one's pipeline.
    assert any(Server(1, 1) in plan.partners(Server(pipeline, 2)) for pipeline in (0, 2))
