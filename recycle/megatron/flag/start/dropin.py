"""The flag on a stock training script: what is replaced of ``megatron.training`` when it is on, and nothing else."""

import math
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from functools import partial, wraps
from typing import Any

from megatron.core import parallel_state
from torch.distributed import HashStore, Store
from torch.utils.data import DataLoader

from recycle.control.membership.view import Member
from recycle.control.store.tcp_store import TorchStore
from recycle.errors import UserError
from recycle.job import Server
from recycle.megatron.flag.command.flags import REFUSED, Flags
from recycle.megatron.flag.command.planning import Make, Shape, Source
from recycle.megatron.flag.command.refusals import refused, unsplit
from recycle.megatron.flag.command.server_ranks import ServerRanks
from recycle.megatron.flag.data.script_data import OtherData, ScriptData
from recycle.megatron.flag.device.accelerator import cannot_delay, keep_groups_on_host, lacks_nccl, transport_of
from recycle.megatron.flag.device.torch_optimizers import take_torch_optimizers
from recycle.megatron.flag.run.ending import Ending
from recycle.megatron.flag.run.notes import PATIENCE, Notes
from recycle.megatron.flag.run.protected import ProtectedExecution, ProtectedTraining
from recycle.megatron.flag.run.recording import Recording, begin_recordings
from recycle.megatron.flag.run.restarted_rank import RestartedRank
from recycle.megatron.flag.run.schedule import PlanSchedule
from recycle.megatron.flag.start.protection import Protection
from recycle.megatron.flag.state.saving import save_by_the_living
from recycle.megatron.flag.state.training_code import TrainingCode
from recycle.megatron.flag.steps.shard_optimizers import keep_what_optimizers_are_made_of
from recycle.megatron.flag.steps.stage_steps import StageSteps, Stepping
from recycle.megatron.flag.steps.vote import StepOutcome, Vote, as_told
from recycle.megatron.flag.world.sealed_objects import seal_objects
from recycle.megatron.flag.world.stub_groups import make_stub_groups, meet_own_ranks
from recycle.megatron.shared.patching import replace
from recycle.megatron.shared.rank_collectives import RankCollectives
from recycle.megatron.shared.release import module_with, require_known_release
from recycle.megatron.shared.stage import MegatronStage
from recycle.plan.catalogue import Catalogue
from recycle.plan.document import decode_plan, encode_plan
from recycle.plan.plan import Plan
from recycle.runtime.errors import RunError
from recycle.runtime.net.gloo.devices import share_devices
from recycle.runtime.net.meeting_store import MeetingStore
from recycle.runtime.net.process_groups import ReplaceableGroup, make_replaceable_groups
from recycle.runtime.recover.plans import Plans
from recycle.saying import say

LENGTHS, NORMS = "consume_seqlen_stats_in_iteration", "MegatronOptimizer.has_grad_norm_group"
"""Functions that some releases have; the table says where."""


class DropIn:
    """A plan in the place of Megatron's schedule, for the training that Megatron has just set up.

    Args:
        arguments: Megatron's, validated.
        make: makes plans that no catalogue has.
        protection: what this rank needs to outlive others.
        groups: all process groups of this rank.

    Raises:
        UserError: the job cannot be run by a plan; on the first rank only, the others exit.
    """

    def __init__(self, arguments: Any, make: Make, protection: Protection, groups: Sequence[ReplaceableGroup]) -> None:
        from megatron.training.training import num_floating_point_operations

        self._arguments = arguments
        notes = notes_of(protection)
        source = partial(plan_source, arguments, protection.flags, protection.catalogue, make)
        least = protection.meeting.epoch if protection.meeting else 0
        self._plan = plan = share_plan(notes, arguments, protection.flags, source, least)
        self._flags = flags = protection.flags
        server, rank = protection.place(arguments.rank)
        self._layout = layout = layout_of(arguments)
        # Pipelines through one server have the same micro-batches in the plan, and dropout of their own.
        self._pipeline = pipeline = layout.pipeline(rank.number)
        require_place(server, pipeline, layout)
        epoch = int(notes.read("epoch"))
        self._recording = Recording.open(
            flags.record, plan, epoch, Member(server, protection.life), rank, arguments.train_iters
        )
        self._data = ScriptData(server.pipeline, lambda: int(arguments.consumed_train_samples))
        self._ending = Ending(arguments)
        self._code = TrainingCode(arguments, self._data, num_floating_point_operations)
        alone = protection.life > 0
        arrives = alone or protection.resumes
        self._restarted_rank = RestartedRank(arguments, self._code, notes, alone=alone, arrives=arrives)
        training = ProtectedTraining(
            plan,
            Plans(plan, protection.catalogue, source().make),
            iteration=lambda: int(arguments.iteration),
            minutes=float(arguments.distributed_timeout_minutes),
            code=self._code,
            ending=self._ending,
            epoch=epoch,
            recording=self._recording,
            layout=layout,
            transport=transport_of(arguments.distributed_backend),
            moments=moments_of(arguments, flags),
            notes=notes.known,
            means=arguments.sft,
        )
        make_steps = self._make_stage_steps if flags.owns_steps else self._make_vote
        self._execution = ProtectedExecution(training, protection, groups, make_steps)
        self._schedule = PlanSchedule(
            plan,
            server,
            self._data,
            steps=lambda: int(arguments.curr_iteration),
            seed=arguments.seed + pipeline,
            execution=self._execution,
        )

    def install(self, training: Any) -> None:
        """Replace what has to be.

        Args:
            training: Megatron's module of this name.
        """
        replace(training, "get_forward_backward_func", lambda *_, **__: self._schedule)
        self._keep_loaders(training)
        leave_out_of_step_calls()
        if self._recording is not None:
            self._recording.install(training, self._arguments, self._execution.recorder)
        self._restarted_rank.install(training, self._schedule)
        self._ending.install(training)
        arguments, ranks = self._arguments, self._arguments.profile_ranks
        if ranks:
            # Megatron asks again in each iteration, and a rank that speaks for a dead one has no profiler.
            ranks[:] = range(arguments.world_size) if arguments.rank in ranks else [-1]
        save = save_by_the_living(training.save_checkpoint, self._execution, self._arguments, self._ending.note_save)
        replace(training, "save_checkpoint", save)
        if self._flags.owns_steps:
            self._take_over_steps(training)

    def leave(self) -> None:
        """At the end of the script: help others as long as they need it."""
        try:
            self._execution.leave()
        finally:
            if self._recording is not None:
                self._recording.close()

    def _keep_loaders(self, training: Any) -> None:
        """Know with each of the script's iterators where the data of other pipelines is."""
        loaders: list[Any] = []
        build_loaders = training.build_train_valid_test_data_loaders
        build_iterators = training.build_train_valid_test_data_iterators

        @wraps(build_loaders)
        def build_train_valid_test_data_loaders(provider: Any) -> Any:
            built = build_loaders(provider)
            loaders[:] = [each[0] if isinstance(each, list) and len(each) == 1 else each for each in built]
            return self._restarted_rank.take(built)

        @wraps(build_iterators)
        def build_train_valid_test_data_iterators(provider: Any) -> Any:
            iterators = build_iterators(provider)
            # It trains on the first of them.
            firsts = (int(self._arguments.iteration), None, None)
            for iterator, loader, first in zip(iterators, loaders, firsts, strict=True):
                # Ranks that read no data have none.
                if isinstance(loader, DataLoader):
                    self._data.add(iterator, self._other_data(loader, first or 0), first)
            return iterators

        replace(training, "build_train_valid_test_data_loaders", build_train_valid_test_data_loaders)
        replace(training, "build_train_valid_test_data_iterators", build_train_valid_test_data_iterators)

    def _other_data(self, loader: DataLoader[Any], first: int) -> OtherData:
        through, mine = self._layout.pipelines, self._pipeline
        return OtherData(
            loader,
            self._plan.job.pipelines * through,
            first,
            repeats=self._arguments.dataloader_type == "cyclic",
            home=lambda pipeline: pipeline * through + mine,
        )

    def _take_over_steps(self, training: Any) -> None:
        from megatron.core.rerun_state_machine import RerunMode, get_rerun_state_machine

        take_torch_optimizers()
        # A schedule that has stepped cannot be run again to see whether its result is the same.
        get_rerun_state_machine().set_mode(RerunMode.DISABLED)
        # All servers know the same already, and would wait for each other.
        replace(training, "logical_and_across_model_parallel_group", lambda value, **_: value)
        replace(training, "reduce_max_stat_across_model_parallel_group", as_told)

    def _make_stage_steps(
        self, execution: ProtectedExecution, stages: Sequence[MegatronStage], version: int
    ) -> StageSteps:
        (stage,) = stages
        return StageSteps(execution, stage, version, stepping_of(self._arguments, self._flags, self._code))

    def _make_vote(self, execution: ProtectedExecution, stages: Sequence[MegatronStage], version: int) -> Vote:
        from megatron.training import training

        arguments, optimizer = self._arguments, self._code.optimizer
        repeats = self._flags.keep_in_memory is not None
        # Keepers' copies, and a norm of all parameters, are taken right after the step.
        overlaps = arguments.overlap_param_gather and not (repeats or arguments.log_params_norm)
        vote = Vote(execution, stages, version, optimizer, repeats=repeats, overlaps=overlaps)
        StepOutcome(optimizer, bool(arguments.log_num_zeros_in_grad), training)
        return vote


def switch_on(make: Make, protection: Protection) -> Callable[[], None]:
    """Replace what has to be, in the ``megatron.training`` that a script is about to use.

    Args:
        make: makes plans that no catalogue has.
        protection: what this rank needs to outlive others.

    Returns:
        What has to be called when the script has ended as it should.

    Raises:
        RunError: this release of Megatron is not known.
    """
    require_known_release()
    from megatron.training import training
    from megatron.training.global_vars import get_args

    set_up = training.initialize_megatron
    share_devices(protection.endpoint.address)
    seal_objects(protection.endpoint.token)
    keep_groups_on_host()
    groups = make_groups(protection)
    keep_what_optimizers_are_made_of()
    store = torch_store(protection)
    leaving = ExitStack()

    @wraps(set_up)
    def initialize_megatron(*positional: Any, **keywords: Any) -> Any:
        result = set_up(*positional, **keywords | {"store": store})
        arguments = get_args()
        drop_in = DropIn(arguments, make, protection, groups)
        drop_in.install(training)
        leaving.callback(drop_in.leave)
        return result

    replace(training, "initialize_megatron", initialize_megatron)
    return leaving.close


def make_groups(protection: Protection) -> list[ReplaceableGroup]:
    """Have torch make the groups that a rank needs; gives the list in which they will be."""
    if not protection.life:
        return make_replaceable_groups()
    server, rank = protection.place(int(os.environ["RANK"]))
    if rank.size == 1:
        return make_stub_groups(server, RankCollectives(rank))
    return make_stub_groups(server, meet_own_ranks(Member(server, protection.life), rank, protection.endpoint))


def torch_store(protection: Protection) -> Store:
    """Where torch's groups meet at the start of a run that outlives its ranks.

    It has to be kept as long as they connect. What lacks the run's seal is no address of a rank.
    """
    # Where the others have met, there is no place for one more.
    if protection.life:
        return HashStore()
    sealed = MeetingStore(job_store(), protection.endpoint.token)
    sealed.set_timeout(timedelta(seconds=PATIENCE))
    return sealed


def job_store() -> TorchStore:
    """The store where torchrun's processes have found each other, in a corner of this start's own."""
    corner = f"recycle/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    return TorchStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), PATIENCE, corner)


def notes_of(protection: Protection) -> Notes:
    """What the first rank tells all others."""
    return Notes(protection.endpoint.board().notes, say, returns=protection.life > 0)


def share_plan(notes: Notes, arguments: Any, flags: Flags, source: Callable[[], Source], least: int) -> Plan:
    """Choose a plan and the number of the first view on the first rank, for all of them.

    Args:
        notes: what the first rank tells.
        arguments: Megatron's.
        flags: recycle's.
        source: where plans come from; it raises UserError if nothing there can be used.
        least: the number that the first view has at least.

    Raises:
        UserError: there is none; on the first rank only, the others exit.
    """
    if arguments.rank == 0 and not notes.returns:
        try:
            plan = choose_plan(arguments, flags, source)
            epoch = max(least, begin_recordings(flags.record, plan))
        except UserError as error:
            notes.tell("plan", b"")
            raise RunError(str(error)) from error
        notes.tell("epoch", str(epoch).encode())
        notes.tell("plan", encode_plan(plan))
        return plan
    content = notes.read("plan")
    if not content:
        sys.exit(REFUSED)
    return decode_plan(content, "the first rank's plan")


def choose_plan(arguments: Any, flags: Flags, source: Callable[[], Source]) -> Plan:
    """The plan of all servers, with which training begins by some arguments of Megatron's.

    Raises:
        UserError: a setting prevents it, there is none, or the dead among the flags are none of its servers.
    """
    for problem in refused(lambda name: getattr(arguments, name, None), flags, lacks_nccl()):
        raise RunError(str(problem))
    found = source()
    found.job.dead_servers(flags.dead).require_peers()
    return found.plan(())


def stepping_of(arguments: Any, flags: Flags, code: TrainingCode) -> Stepping:
    """How stages step, by Megatron's arguments."""

    def looks(iterations: int) -> bool:
        # All servers look at the same time, those that have come back included.
        first = iterations == code.began + 1
        intervals = [arguments.log_interval]
        if arguments.tensorboard_dir:
            intervals.append(arguments.tensorboard_log_interval)
        # A release may lack it.
        intervals += filter(None, [getattr(arguments, "save_params_interval", None)])
        return first or bool(arguments.log_params_norm) or any(iterations % each == 0 for each in intervals)

    return Stepping(
        code.optimizer,
        flags.stagger,
        arguments.clip_grad or math.inf,
        flags.exact,
        looks,
        bool(arguments.check_for_nan_in_loss_and_grad),
        repeats=flags.keep_in_memory is not None,
    )


def moments_of(arguments: Any, flags: Flags) -> int | None:
    """How many the optimizer has of each parameter, where the state is kept in memory; None where it is not."""
    if flags.keep_in_memory is None:
        return None
    return 2 if arguments.optimizer == "adam" else int(arguments.sgd_momentum > 0)


def layout_of(arguments: Any) -> ServerRanks:
    """How the ranks of a server divide its work, by Megatron's arguments."""
    return ServerRanks.of(lambda name: getattr(arguments, name, None))


def require_place(server: Server, pipeline: int, layout: ServerRanks) -> None:
    """Check that this rank is where Megatron's groups have it.

    Args:
        server: to which it belongs by the command line.
        pipeline: which of those through its server it is in.
        layout: how the ranks of a server divide its work.
    """
    number = parallel_state.get_data_parallel_rank()
    found = number, parallel_state.get_pipeline_model_parallel_rank()
    assert found == (server.pipeline * layout.pipelines + pipeline, server.stage), f"{server} is at {found}"


def plan_source(arguments: Any, flags: Flags, catalogue: Catalogue | None, make: Make) -> Source:
    """Where plans come from that some arguments of Megatron's ask for.

    Raises:
        UserError: the catalogue cannot be used.
    """
    micro_batches = arguments.global_batch_size // (arguments.micro_batch_size * arguments.data_parallel_size)
    pipelines = arguments.data_parallel_size // layout_of(arguments).pipelines
    virtual = arguments.virtual_pipeline_model_parallel_size or 1
    shape = Shape(pipelines, arguments.pipeline_model_parallel_size, micro_batches, virtual)
    fused = [str(each) for each in unsplit(lambda name: getattr(arguments, name, None))] + cannot_delay(arguments)
    return Source(flags, catalogue, shape, fused, make)


def leave_out_of_step_calls() -> None:
    """Leave out calls of all ranks to which some would not come, in the releases that make them."""
    training = module_with(LENGTHS)
    if training is not None:
        # Lengths of packed sequences are counted where they are computed: on other servers than Megatron believes, or
        # on none. Without them, the throughput that is printed counts what sequences are filled up with.
        replace(training, LENGTHS, lambda: (None, None))
    optimizers = module_with(NORMS)
    if optimizers is not None:
        # Asked once by each rank: one that comes back would ask alone. Only multi-token prediction has such a group.
        replace(optimizers.MegatronOptimizer, "has_grad_norm_group", lambda *_: False)
