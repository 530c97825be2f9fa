"""What ``recycle doctor`` finds out about a Megatron job: whether it runs, and which deaths it survives."""

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from recycle.errors import UserError
from recycle.megatron.flag.command.command_line import RAMP_UP, CommandLine, script_place
from recycle.megatron.flag.command.flags import STORE
from recycle.megatron.flag.command.megatron_options import Unread, find_unread
from recycle.megatron.flag.command.on_cpu import ON_CPU, settings_for_cpu
from recycle.megatron.flag.command.refusals import Advice, Refusal, refused, unsplit
from recycle.megatron.flag.command.server_ranks import (
    PIPELINES_LAST,
    hosts_of,
    lost_stages,
    servers_of,
    unprotected,
)
from recycle.megatron.flag.command.sizes import unfit

TORCHRUN = (
    *("--nnodes", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--standalone"),
    *("--max-restarts", "--monitor-interval", "--start-method", "--event-log-handler", "--role", "--module"),
    *("--no-python", "--run-path", "--log-dir", "--redirects", "--tee", "--local-ranks-filter", "--node-rank"),
    *("--duplicate-stdout-filters", "--duplicate-stderr-filters", "--master-addr", "--master-port", "--local-addr"),
    *("--logs-specs", "--numa-binding", "--signals-to-handle", "--shutdown-timeout", "--virtual-local-rank"),
)
"""Its options, each of which it takes with underscores as well."""

RANKS_PER_HOST = 8

BOTH_HOLDERS = "both servers that hold a shard of the optimizer's state"
_HAS_STORE = "which has the store"


class Diagnosis(NamedTuple):
    """What is to be said of a job.

    Attributes:
        line: its command line.
        refused: settings with which no plan can run.
        fused: settings that prevent a split backward pass.
        unread: words with which torchrun or Megatron ends: neither it nor the script knows them.
        ignored: options that Megatron takes and does not go by.
        release: of Megatron, whose options count.
        unprotected: why the death of a process ends the job; empty if it does not.
        exposed: the stages that lose all their servers with one host.
        torn: the stages that lose a shard of the optimizer's state with one host, and keep a server.
        ranks_per_host: that was judged by.
    """

    line: CommandLine
    refused: list[Refusal]
    fused: list[Refusal]
    unread: list[Unread]
    ignored: list[Unread]
    release: str
    unprotected: str
    exposed: list[int]
    torn: list[int]
    ranks_per_host: int

    @property
    def runs(self) -> bool:
        """Whether a plan can run."""
        return not (self.refused or self.unread)

    @property
    def survives_process(self) -> bool:
        """Whether the job outlives the death of any one process, if torchrun starts it."""
        return self.runs and not self.unprotected

    @property
    def survives_host(self) -> bool:
        """Whether every stage has a live server, and all its state, whichever host is lost.

        The store is not looked at: see ``survives_first_host``.
        """
        return self.survives_process and not (self.exposed or self.torn)

    @property
    def survives_first_host(self) -> bool:
        """Whether the job outlives the first host too, which has the store unless the store is etcd."""
        return self.survives_host and self.line.flags.store is not None


def diagnose(
    line: CommandLine,
    ranks_per_host: int | None,
    release: str,
    script: Path | None = None,
    launcher: Sequence[str] = (),
) -> Diagnosis:
    """Judge a command line on the machines that it is for: what it asks for, such as NCCL, is there.

    Args:
        line: which.
        ranks_per_host: processes on each host; None to take what the line says.
        release: of Megatron, whose options count.
        script: that is trained with; its options count if it can be read.
        launcher: the words before it.
    """
    unread = list(find_unread(line.arguments, release))
    ignored = [each for each in unread if each.word == RAMP_UP]
    if ignored:
        line = line._replace(growth=())
    if unread and script is not None:
        added = added_options(script)
        unread = [each for each in unread if each.word not in added]
    per_host = ranks_per_host or line.ranks_per_host or RANKS_PER_HOST
    exposed, torn = _lost_with_a_host(line, line.pipelines_last, per_host)
    return Diagnosis(
        line,
        [
            *refused(line.setting, line.flags),
            *(each for each in unfit(line.setting) if not ignored or line.option(each.name) != RAMP_UP),
            *_few_hosts(line, per_host),
        ],
        list(unsplit(line.setting)),
        [*unknown_to_torchrun(launcher), *(each for each in unread if each.word != RAMP_UP)],
        ignored,
        release,
        unprotected(line.shape),
        exposed,
        torn,
        per_host,
    )


def _lost_with_a_host(line: CommandLine, pipelines_last: bool, per_host: int) -> tuple[list[int], list[int]]:
    """The stages that lose all their servers with some host, and those that lose a shard with one."""
    servers = servers_of(line.shape, pipelines_last)
    hosts = hosts_of(servers, line.server_ranks.size, per_host)
    exposed, torn = lost_stages(servers, hosts)
    return exposed, torn if line.loses_shards else []


def _few_hosts(line: CommandLine, per_host: int) -> Iterator[Refusal]:
    """Why they cannot keep the state in memory, which a run that its servers end does not do."""
    kept = line.flags.keep_in_memory
    if kept is not None and not unprotected(line.shape) and (lack := kept.lacks_hosts(-(-line.ranks // per_host))):
        remedy = "use fewer copies or pieces, or more hosts; --ranks-per-host says how many ranks each has"
        yield Refusal("recycle_keep_in_memory", kept, Advice(lack, remedy))


def works(line: CommandLine) -> Iterator[str]:
    """What of the job's settings is known to work."""
    settings: Any = line.settings
    ranks, pipelines = line.server_ranks, line.shape.pipelines * line.server_ranks.pipelines
    yield f"data parallel {pipelines}"
    yield f"pipeline parallel {line.shape.stages}"
    if line.shape.virtual > 1:
        yield f"{line.shape.virtual} virtual stages of each rank"
    yield f"tensor parallel {settings.tensor_model_parallel_size}"
    if ranks.pipelines > 1:
        among = f"{ranks.pipelines} of Megatron's {pipelines} pipelines"
        yield f"experts among {ranks.size} ranks, which are lost together, of {among}"
    if not settings.untie_embeddings_and_output_weights:
        yield "tied embeddings"
    for name, words in (("bf16", "bf16"), ("fp16", "fp16"), ("calculate_per_token_loss", "per-token loss")):
        if getattr(settings, name):
            yield words
    if settings.recompute_granularity:
        yield f"recompute ({settings.recompute_granularity})"
    if settings.clip_grad:
        yield f"gradient clipping at {settings.clip_grad:g}"
    if line.growth:
        yield f"batches that grow from {line.growth[0]} to {line.growth[-1]} micro-batches per pipeline"
    if line.flags.stagger:
        yield "stages that step on their own"
    if line.flags.exact:
        yield "exact sums of gradients"
    if line.flags.keep_in_memory is not None:
        yield f"the state in memory, {line.flags.keep_in_memory}"
    if settings.hidden_dropout or settings.attention_dropout:
        yield "dropout, with other random numbers than stock: the same whatever is dead"


def survival(diagnosis: Diagnosis) -> str:
    """Which deaths the job survives, in words."""
    if not diagnosis.runs:
        return "nothing, as it does not run"
    if not diagnosis.survives_process:
        return f"no death of a process: {diagnosis.unprotected}"
    if diagnosis.survives_first_host:
        return "the death of a process, and the loss of a host"
    if diagnosis.survives_host:
        return f"the death of a process, and the loss of a host but the first, {_HAS_STORE}; {STORE} changes that"
    lost = "all servers" if diagnosis.exposed else BOTH_HOLDERS
    stages = ", ".join(map(str, diagnosis.exposed or diagnosis.torn))
    text = (
        f"the death of a process, but not the loss of a host: with {diagnosis.ranks_per_host} ranks on each, one has "
        f"{lost} of stage {stages}"
    )
    line = diagnosis.line
    may = not line.pipelines_last and line.server_ranks.take_pipelines_last(line.shape.stages)
    if not may or any(_lost_with_a_host(line, True, diagnosis.ranks_per_host)):
        return text
    text = f"{text}; {PIPELINES_LAST} changes that"
    return text if line.flags.store is not None else f"{text} but for the first host, {_HAS_STORE}"


def added_options(script: Path) -> set[str]:
    """The options that are named in a script, beside it, or in what it imports from there; none in what has no text."""
    folder = script.parent
    files = {script, *(folder.glob("*.py") if script.is_file() else ())}
    for modules in re.findall(r"^\s*(?:from|import)[ \t]+\.*(\w[\w., \t]*)", _text(script), re.MULTILINE):
        for module in re.findall(r"\w[\w.]*\w|\w", modules):
            place = folder.joinpath(*module.split("."))
            files |= {place.with_suffix(".py"), place / "__init__.py"}
    return {option for path in files for option in re.findall(r"""["'](--[^"']+)["']""", _text(path))}


def _text(path: Path) -> str:
    try:
        # A pipe would be waited for.
        return path.read_text(errors="replace") if path.is_file() else ""
    except OSError:
        return ""


def split_at_script(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """What is before the training script, and the rest from it on; nothing before if all words are options.

    Raises:
        UserError: no script is named behind what starts it, so that its options cannot be told from that one's.
    """
    place = script_place(words)
    if place is None and not words[0].startswith("-"):
        raise UserError(
            f"{words[0]}: no script's file (.py) is named behind it: name the file in the place of -m MODULE or of a "
            "program, or give --ranks, then -- and Megatron's options alone"
        )
    return words[: place or 0], words[place or 0 :]


def for_cpu(words: Sequence[str]) -> Sequence[str] | None:
    """The command line of a job that is started with ``--on-cpu``, with what that sets; None for any other job.

    Raises:
        UserError: an option has a value that needs CUDA, or no script is named.
    """
    before, job = split_at_script(words)
    if ON_CPU not in before:
        return None
    return [*(each for each in before if each != ON_CPU), *job, *settings_for_cpu(job[1:])]


def unknown_to_torchrun(before: Sequence[str]) -> Iterator[Unread]:
    """Its options that are misspelt, or shortened: it completes these, and here they would be passed over."""
    if not before or Path(before[0]).name != "torchrun":
        return
    for word in before[1:]:
        name = word.partition("=")[0].replace("_", "-")
        if name.startswith("--") and name not in TORCHRUN:
            close = get_close_matches(name, TORCHRUN, n=1, cutoff=0.8)
            yield Unread(word.partition("=")[0], f"did you mean {close[0]}?" if close else "torchrun does not know it")
