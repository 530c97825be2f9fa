"""A run of the project's own trainer that survives nothing: what protection is measured against."""

import msgspec

from harness.local import LocalProcess, launch
from recycle.control.membership.view import ServerRank, View
from recycle.megatron.gpt.device import prepare_device
from recycle.megatron.gpt.forward import load_text
from recycle.megatron.gpt.run_settings import Run
from recycle.megatron.gpt.server import GptServer
from recycle.megatron.gpt.training import Watch
from recycle.record.reporting import Event, FileReporter
from recycle.runtime.net.connect import connect
from recycle.runtime.net.network import NetworkOptions


def train_unprotected(run: Run, watch: Watch) -> None:
    """Train with a process per live server, without agents, heartbeats, and copies to take a step back with.

    Args:
        run: what to do; its servers have one rank each.
        watch: called with every event of every server.

    Raises:
        ProcessFailed: a process failed.
    """
    view = View.of(run.plan)
    text = load_text(run.text, run.model)
    run.folder.mkdir(parents=True, exist_ok=True)

    def work(process: LocalProcess) -> None:
        server, rank = view.servers[process.rank], ServerRank(0, 1)
        device = prepare_device(run, server, rank)
        reporter = FileReporter(run.events, str(server), f"{run.plan.job.name}, trained", process.report)
        trained = GptServer(run, server, text, reporter, keep=False, rank=rank, device=device)
        network = connect(process.store(), view, server, NetworkOptions(transport=run.transport), rank)
        trained.training.enter(network, 0)
        trained.connect(run.plan, network, (), None)
        for step in range(run.iterations):
            trained.iterate(step)
            trained.between(step + 1, save=False, settle=False)
        network.barrier()

    launch(len(view.servers), work, lambda _, content: watch(msgspec.json.decode(content, type=Event)))
