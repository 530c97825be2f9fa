"""How every member of a new view comes to hold the version that it begins with."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from recycle.control.messages import Verdict
from recycle.control.view import Member
from recycle.runtime.join.handover import receive_state, send_state
from recycle.runtime.keep.layout import held_by_all, shard_of
from recycle.runtime.net.network import Network
from recycle.runtime.step.trainee import Trainee


def find_holders(verdict: Verdict, stage: int) -> dict[Member, bool]:
    """Which of a stage's members have the version that a view begins with, as they reported before it."""
    members = (each for each in verdict.view.members if each.server.stage == stage)
    return {each: str(each) not in verdict.lacking for each in members}


class Restoration(NamedTuple):
    """How a view's members come to hold the version that it begins with.

    Attributes:
        step: the version.
        source: memory, of members or of keepers, or the checkpoint of this step.
        holders: who of the stage has the version itself; if nobody has, keepers have it.
    """

    step: int
    source: Literal["memory", "checkpoint"]
    holders: Mapping[Member, bool]


def restore_state(trainee: Trainee, member: Member, network: Network, restoration: Restoration) -> None:
    """Go back to a version, get it from a peer that has it or from keepers, or give it to those that lack it.

    Args:
        trainee: whose state it is.
        member: who this is.
        network: of the new view.
        restoration: which version, and from where.

    Raises:
        ViewBroken: somebody is gone, or a copy is not as it was.
    """
    step, source, holders = restoration
    versions = trainee.versions
    if source == "checkpoint":
        assert trainee.durable is not None, f"nobody has said that there is a checkpoint of step {step}"
        trainee.durable.load(step)
    elif holders[member]:
        if versions.newest > step:
            versions.undo()
        assert versions.newest == step, f"{member} is at {versions.newest}, and said that it has {step}"
    step = versions.enter(network, step)
    if source == "checkpoint":
        return
    lacking = [each for each, holds in holders.items() if not holds]
    sources = [each for each, holds in holders.items() if holds]
    if not sources:
        assert trainee.kept is not None, f"nobody has said that version {step} of stage {member.server.stage} is held"
        state = trainee.kept.fetch(step)
        versions.adopt(step, held_by_all(state))
        if trainee.shards is not None:
            for shard in range(trainee.shards.count):
                trainee.shards.take_pieces(shard, shard_of(state, shard))
        return
    pairs = [(sources[place % len(sources)], each) for place, each in enumerate(lacking)]
    for sender, receiver in pairs:
        if sender == member:
            # The state is at rest here, so a peer that lacks it can have it.
            send_state(network.link(receiver.server), step, versions.state())
        elif receiver == member:
            received, state = receive_state(network.link(sender.server))
            assert received == step, f"{sender} sent version {received} instead of {step}"
            versions.adopt(step, state)
