"""Stepping before the norm is known against waiting for it, and exact sums against each other, to the bit."""

import copy
import hashlib
import random
from contextlib import suppress
from functools import partial

import msgspec
import pytest
import torch

from harness.examples import paper_job, plan_around
from harness.threads import PROCESSES, threads
from recycle.control.membership.view import View
from recycle.plan.mode import Mode
from recycle.record.recorder import Recorder
from recycle.runtime.errors import ConnectionLost, NotFinite, ViewBroken
from recycle.runtime.execute.worker import Worker
from recycle.runtime.step.checkpoint import give_state, stage_state
from recycle.runtime.step.main_parameters import MainParameters
from recycle.runtime.step.method import Method
from recycle.runtime.step.optimizers import make_optimizer
from recycle.runtime.step.update import TorchUpdate
from scripts.plain_torch import TorchStage, cut
from tests.runtime.models import inputs, layers, stage_boundaries, targets

JOB = paper_job(pipelines=3, stages=2, micro_batches=3, released=0)


class Result(msgspec.Struct):
    """Of one server: losses of every iteration, a hash of its state, and how often it guessed right, wrong, or not.

    Where the run came to an early end, the state is that before the last iteration, and who knows it says why.
    """

    losses: list[tuple[float, ...]]
    state: str
    counts: tuple[int, int, int]
    versions: list[int]
    reason: str = ""


class SpoiledStage(TorchStage):
    """Some micro-batches leave something in a gradient that is no number, or far too great."""

    spoiled = {}  # noqa: RUF012 - by step and stage, what comes into its gradients

    def backward(self, micro_batch, received):
        result = super().backward(micro_batch, received)
        self._spoil(micro_batch)
        return result

    def weight_gradient(self, micro_batch):
        super().weight_gradient(micro_batch)
        if self.input is not None:
            self._spoil(micro_batch)

    def _spoil(self, micro_batch):
        value = self.spoiled.get((micro_batch.step, self._number))
        if value is not None and micro_batch[1:] == (1, 1):
            next(iter(self.parameters())).grad.view(-1)[0] += value


def fingerprint(update):
    content = hashlib.sha256()
    for parameter in update.main:
        content.update(parameter.detach().numpy().tobytes())
        for name, value in sorted(update.optimizer.state[parameter].items()):
            content.update(name.encode() + value.numpy().tobytes())
    return content.hexdigest()


def train(plan, steps, method, kind="adamw", spoiled=(), real=False, changes=(), breaks=False, lost=(), cut_off=()):
    """Every server's result; before some steps, all enter another view, with whatever is still to be found out.

    Where servers are real, they are processes over gloo, and have dropout.

    Some servers have begun to find out before these steps, and the peers of their sums are gone by then.
    Before some, all servers of stage 1 have lost everything, and others know what it was. If it breaks, the iteration
    that follows cannot be made.
    """
    view = View.of(plan)
    job = plan.job
    results = {}
    ranks, whole = PROCESSES if real else threads(), layers(job.depth, 0.1 if real else 0.0)

    def body(member):
        server = view.servers[member.rank]
        model = copy.deepcopy(whole)
        stage = SpoiledStage(
            cut(model, job.depth)[server.stage],
            server.stage,
            stage_boundaries(model, job.depth)[server.stage],
            inputs,
            targets,
            torch.nn.functional.mse_loss,
            1 / job.micro_batches,
        )
        stage.spoiled = dict(spoiled)

        def make_update():
            return TorchUpdate(
                MainParameters(stage.parameters()),
                lambda parameters: make_optimizer(kind, parameters, 0.01, 0.1, 0.9),
                job.pipelines,
                [server.stage],
                job.depth,
                method,
            )

        update = make_update()
        result = Result([], "", (0, 0, 0), [])
        store = member.store()
        epoch = -1
        for step in range(steps):
            if step in (0, *changes, *lost):
                epoch += 1
                if step and str(server) in cut_off:
                    update.sums.settle = lose_peers
                    with suppress(ConnectionLost):
                        update.validate()
                    del update.sums.settle
                network = ranks.connect(store, view._replace(epoch=epoch), server)
                update.drop()
                kept = None
                if step in lost and server.stage == 1:
                    update.undo()
                    named = {str(place): each for place, each in enumerate(update.main)}
                    kept = {name: each.clone() for name, each in stage_state(named, update.optimizer).items()}
                    update = make_update()
                first = update.enter(network, step)
                if kept is not None:
                    assert first == step - 1, "what was guessed is not taken back"
                    give_state(kept, named, update.optimizer)
                    update.adopt(first)
                update.connect(network)
                worker = Worker(plan, [stage], update, network, Recorder(server))
            while update.versions.newest < step:
                worker.run(update.versions.newest)
            result.losses.append(worker.run(step).losses)
        if breaks:
            # Who stepped on its own is one iteration ahead.
            with pytest.raises(ViewBroken) as caught:
                _ = [worker.run(step) for step in (steps, steps + 1)]
            if caught.type is NotFinite:
                result.reason = str(caught.value)
            # As in recovery, all go back to the version that the iteration starts from.
            if update.versions.newest > steps:
                update.undo()
        else:
            worker.settle()
        result.state = fingerprint(update)
        result.versions = [update.versions.newest, update.versions.oldest]
        if update.speculation is not None:
            past = update.speculation
            result.counts = (past.right, past.wrong, past.waits)
        if not breaks:
            network.barrier()
        member.report(msgspec.msgpack.encode(result))

    ranks.launch(
        len(view.servers),
        body,
        lambda rank, content: results.update({view.servers[rank]: msgspec.msgpack.decode(content, type=Result)}),
    )
    return results


def lose_peers():
    """In place of waiting for sums over peers of which one is dead."""
    raise ConnectionLost("a peer is gone")


plan_of = partial(plan_around, JOB)


def summary(results):
    """Losses of each iteration, and each stage's state; peers must agree."""
    states, losses = {}, set()
    for server, result in results.items():
        assert states.setdefault(server.stage, result.state) == result.state, f"peers of stage {server.stage} differ"
        if any(result.losses):
            losses.add(tuple(map(tuple, result.losses)))
    (curve,) = losses
    return curve, states


NAN, INF = float("nan"), float("inf")
STEPS = 23


def spoil(seed):
    """What comes into which stage's gradients at six of the steps."""
    choose = random.Random(seed)
    return {
        (step, choose.randrange(JOB.depth)): choose.choice([NAN, INF, -INF])
        for step in choose.sample(range(1, STEPS), 6)
    }


SOME, ANY = range(1, STEPS + 1), range(STEPS + 1)
NOT_FINITE = (1e9, {(0, 0): NAN, (10, 0): INF, (11, 0): -INF, (21, 1): NAN}, {3})
SOMETIMES_CLIPPED = (0.25, {(5, 0): 1e6, (14, 0): NAN}, ANY)


@pytest.mark.parametrize(
    ("kind", "clip", "spoiled", "wrong", "real"),
    [
        pytest.param("adamw", 1e9, {}, {0}, False, id="calm"),
        pytest.param("adamw", *NOT_FINITE, False, id="not finite", marks=pytest.mark.long),
        pytest.param("adamw", 1e-3, {}, {1}, False, id="always clipped"),
        pytest.param("adamw", *SOMETIMES_CLIPPED, False, id="sometimes clipped"),
        # Where steps are taken back.
        pytest.param("sgd", *NOT_FINITE, False, id="not finite, SGD"),
        pytest.param("sgd", *SOMETIMES_CLIPPED, True, id="sometimes clipped, SGD, by processes"),
        # Whichever server is spoiled, and whenever.
        pytest.param("adamw", 1e9, spoil("adamw 1000000000.0 0"), SOME, False, id="spoiled"),
        pytest.param("sgd", 0.25, spoil("sgd 0.25 0"), ANY, False, id="spoiled, SGD clips"),
        pytest.param("adamw", 0.25, spoil("adamw 0.25 0"), ANY, False, id="spoiled, clips", marks=pytest.mark.long),
        pytest.param("sgd", 1e9, spoil("sgd 1000000000.0 0"), SOME, False, id="spoiled, SGD", marks=pytest.mark.long),
    ],
)
def test_stepping_at_once_ends_as_waiting_does(kind, clip, spoiled, wrong, real):
    plan = plan_of("W1_1")
    waited = train(plan, STEPS, Method(clip, staggered=False), kind, spoiled, real)
    guessed = train(plan, STEPS, Method(clip, staggered=True), kind, spoiled, real)
    assert summary(guessed) == summary(waited)
    for result in guessed.values():
        assert result.versions == [STEPS, STEPS - 1]
        assert sum(result.counts) == STEPS
        assert result.counts[1] in wrong
        if wrong == {0}:
            assert result.counts == (STEPS, 0, 0), "nobody waits where nothing clips"
        assert result.counts == next(iter(guessed.values())).counts
    assert all(result.counts == (0, 0, STEPS) for result in waited.values())


@pytest.mark.parametrize("kind", [pytest.param("adamw", marks=pytest.mark.long), "sgd"])
def test_where_nobody_looks_at_the_norm_both_end_alike(kind):
    spoiled = spoil(f"{kind} 0")
    last, stage = min(spoiled)
    # Who raises ends, and only of a process do others hear that.
    waited = train(plan_of("W1_1"), last, Method(keep=True), kind, spoiled, real=True, breaks=True)
    stepped = train(plan_of("W1_1"), last, Method(staggered=True, keep=True), kind, spoiled, real=True, breaks=True)
    assert summary(stepped) == summary(waited)
    for results in (waited, stepped):
        for server, result in results.items():
            assert result.reason == (f"the gradient of stage {stage} is not finite" if server.stage == stage else "")


def test_what_is_still_to_be_found_out_is_found_out_in_the_next_view():
    plan = plan_of("W1_1", mode=Mode("fused"))
    addends = JOB.pipelines * JOB.micro_batches
    spoiled = {(5, 0): NAN, (12, 0): 1e6}
    waited = train(plan, 16, Method(0.25, addends=addends), spoiled=spoiled)
    # Of the first iteration and of step 12 the sums are not fit, of step 5 the gradient is not finite.
    # Nobody is cut off, one server of either stage, two of different pipelines, and all of a pipeline.
    for cut_off in ("", "W0_1", "W0_0", "W1_0 W2_1", "W0_0 W0_1"):
        method, names = Method(0.25, True, addends), cut_off.split()
        guessed = train(plan, 16, method, spoiled=spoiled, changes=[1, 3, 6, 13], cut_off=names)
        assert summary(guessed) == summary(waited)
        assert all(result.versions == [16, 15] for result in guessed.values())


def test_what_only_the_dead_knew_is_taken_back_and_made_again():
    """What all have guessed before step 3 was right, and before step 6 not."""
    spoiled = {(5, 0): NAN}
    waited = train(plan_of("W1_1"), 13, Method(1e9), spoiled=spoiled, real=True)
    guessed = train(plan_of("W1_1"), 13, Method(1e9, staggered=True), spoiled=spoiled, real=True, lost=[3, 6])
    assert summary(guessed) == summary(waited)


@pytest.mark.parametrize("kind", ["adamw", pytest.param("sgd", marks=pytest.mark.long)])
def test_exact_sums_make_every_plan_end_with_the_same_bits(kind):
    addends = JOB.pipelines * JOB.micro_batches
    spoiled = {
        (4, 0): NAN,
        (7, 0): 1e4,
        (9, 0): 1e30,
    }  # the second is far above all bounds, and the third above those of the second
    ways = [
        (plan_of(mode=Mode("fused", "global")), Method(0.05, addends=addends)),
        (plan_of("W1_1", mode=Mode("fused")), Method(0.05, staggered=True, addends=addends)),
        (plan_of("W0_0", "W2_0", mode=Mode("fused", routing="free")), Method(0.05, staggered=True, addends=addends)),
    ]
    expected, *others = [summary(train(plan, 15, method, kind, spoiled)) for plan, method in ways]
    for other in others:
        assert other == expected
