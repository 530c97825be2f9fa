"""The dependency rule: what must have ended before a phase of a micro-batch may start. It stands here only."""

from typing import NamedTuple

from recycle.plan.instruction import Op


class Dependency(NamedTuple):
    """A phase of the same micro-batch that must have ended, and the stage (the chunk, in general) it ran on.

    A dependency on another stage adds the latency of that boundary where it reaches across servers; one on the same
    stage is on the same server, because the server that ran F holds the activation that I and W need.
    """

    phase: Op
    stage: int


def dependencies(phase: Op, stage: int, depth: int) -> tuple[Dependency, ...]:
    """What a phase (F, I or W) of a micro-batch at a stage needs, in a model of ``depth`` stages: chunks, in general.

    A fused B is its phases I and W back to back, and its results exist when it ends.
    """
    match phase:
        case Op.F:
            return (Dependency(Op.F, stage - 1),) if stage > 0 else ()
        case Op.I:
            own = Dependency(Op.F, stage)
            return (own, Dependency(Op.I, stage + 1)) if stage < depth - 1 else (own,)
        case Op.W:
            return (Dependency(Op.I, stage),)
        case _:
            raise AssertionError(f"{phase} is no phase of a micro-batch")


def other_server_need(op: Op, stage: int, depth: int) -> Dependency | None:
    """The one result that a compute instruction needs from another stage, and so mostly from another server, if any."""
    needs = [need for phase in op.phases for need in dependencies(phase, stage, depth) if need.stage != stage]
    assert len(needs) <= 1, f"{op} needs {needs}: the clock follows one result from another server"
    return needs[0] if needs else None
