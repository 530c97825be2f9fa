"""Make docs/reference/compatibility.md: which settings run and survive with which others, as the code decides it.

Usage: python scripts/make_compatibility.py [FILE]
"""

import re
import shlex
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec
from click import Command

from recycle.cli.diagnosis import Diagnosis, diagnose
from recycle.cli.doctor import TRIED
from recycle.cli.train import command as train_command
from recycle.errors import UserError
from recycle.megatron.flag.command import refusals
from recycle.megatron.flag.command.command_line import read_command_line
from recycle.megatron.flag.command.megatron_options import LEFT_OUT, options_of
from recycle.megatron.flag.command.refusals import read_only
from recycle.megatron.gpt.model import transformer_config
from recycle.megatron.shared.release import RELEASES
from recycle.runtime.model_keys import ModelKeys

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "compatibility.md"
RELEASE = "0.17.1"

JOB = (
    "torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py --pipeline-schedule recycle "
    "--pipeline-model-parallel-size 2 --num-layers 8 --hidden-size 64 --num-attention-heads 8 --seq-length 64 "
    "--max-position-embeddings 64 --micro-batch-size 1 --global-batch-size 16 "
)
PEERS_APART = "--use-tp-pp-dp-mapping"
"""It puts peers on different hosts. Megatron does not have it for all sizes."""
LOCAL = "--transformer-impl local --no-gradient-accumulation-fusion "
ENGINE = "--transformer-impl transformer_engine --no-gradient-accumulation-fusion "
ENGINE_FUSED = "--transformer-impl transformer_engine "
EXPERTS = "--num-experts 4 "
GROUPED = EXPERTS + "--moe-grouped-gemm"


class Row(NamedTuple):
    """A setting that is accepted.

    Attributes:
        name: for people.
        words: of the command line.
        layers: whose the model's are, and whether gradients are added up in the kernels.
    """

    name: str
    words: str
    layers: str = LOCAL


ROWS: Mapping[str, tuple[Row, ...]] = {
    "How the model is divided": (
        Row("data and pipeline parallelism", ""),
        Row("tensor parallelism", "--tensor-model-parallel-size 2"),
        Row("sequence parallelism", "--tensor-model-parallel-size 2 --sequence-parallel"),
        Row("context parallelism, Transformer Engine", "--context-parallel-size 2", ENGINE),
        Row(
            "context and tensor parallelism, Transformer Engine",
            "--context-parallel-size 2 --tensor-model-parallel-size 2 --sequence-parallel",
            ENGINE,
        ),
        Row("virtual stages, by layers", "--num-layers-per-virtual-pipeline-stage 2"),
        Row("virtual stages, by number", "--num-virtual-stages-per-pipeline-rank 2"),
        Row("uneven stages", "--pipeline-model-parallel-layout Ettt|tttttL"),
    ),
    "Mixtures of experts": (
        Row("experts", EXPERTS),
        Row("experts divided among ranks", EXPERTS + "--expert-model-parallel-size 2"),
        Row(
            "experts split as well",
            EXPERTS + "--expert-model-parallel-size 2 --tensor-model-parallel-size 2 --sequence-parallel "
            "--expert-tensor-parallel-size 2",
        ),
        Row("dispatch by alltoall", EXPERTS + "--moe-token-dispatcher-type alltoall"),
        Row("dispatch by DeepEP", EXPERTS + "--expert-model-parallel-size 2 --moe-token-dispatcher-type flex"),
        Row("balancing by sequence", EXPERTS + "--moe-router-load-balancing-type seq_aux_loss"),
        Row("grouped GEMM, Transformer Engine, fused gradient accumulation (both default)", GROUPED, ENGINE_FUSED),
        Row("grouped GEMM, Transformer Engine", GROUPED + " --no-gradient-accumulation-fusion", ENGINE_FUSED),
    ),
    "Numbers": (
        Row("bf16", "--bf16"),
        Row("fp16", "--fp16"),
        Row("fixed loss scale", "--fp16 --loss-scale 1024"),
        *(
            Row(f"fp8, {recipe}, Transformer Engine", f"--fp8-format hybrid --fp8-recipe {recipe}", ENGINE + "--bf16")
            for recipe in ("tensorwise", "blockwise", "mxfp8")
        ),
        Row("gradients summed in bf16", "--bf16 --grad-reduce-in-bf16"),
        Row("loss per token", "--calculate-per-token-loss"),
    ),
    "Optimizer": (
        Row("Adam (default)", "--optimizer adam"),
        Row("SGD", "--optimizer sgd"),
        Row("Muon", "--optimizer muon"),
        Row("adaptive Muon", "--optimizer adaptive_muon"),
        Row("Lion", "--optimizer lion"),
        Row("distributed optimizer", "--use-distributed-optimizer"),
        Row("sums of gradients in the last backward pass", "--overlap-grad-reduce"),
        Row(
            "parameters in the next forward pass",
            "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
        ),
        Row("counting zeros in gradients", "--log-num-zeros-in-grad"),
    ),
    "Model and data": (
        Row("dropout", "--hidden-dropout 0.1 --attention-dropout 0.1"),
        Row("untied embeddings", "--untie-embeddings-and-output-weights"),
        Row("normalised queries and keys", "--qk-layernorm"),
        Row("recomputed activations", "--recompute-granularity full"),
        Row("cyclic data loader", "--dataloader-type cyclic"),
        Row("batches that grow", "--rampup-batch-size 8 8 64"),
        Row("skipped iterations", "--iterations-to-skip 3"),
    ),
    "Checkpoints": (
        Row("format torch_dist", "--save /run --save-interval 5 --ckpt-format torch_dist"),
        Row("format torch", "--save /run --save-interval 5 --ckpt-format torch"),
        Row("non-persistent, global", "--non-persistent-ckpt-type global"),
    ),
    "Layers and links": (
        Row(
            "Transformer Engine and fused gradient accumulation (both default)",
            "",
            ENGINE_FUSED,
        ),
        Row("Megatron's own layers, fused gradient accumulation", "", "--transformer-impl local"),
        Row("gloo between servers", "--distributed-backend gloo"),
        Row("NCCL between servers", "--distributed-backend nccl"),
        Row(
            "communicators inside a server",
            "--distributed-backend nccl --high-priority-stream-groups tp "
            "--nccl-communicator-config-path communicators.yaml",
        ),
    ),
}
"""What a plan can run with; the rest is refused, or left out."""

BESIDE = {
    "dist. opt.": "--use-distributed-optimizer",
    "fp16": "--fp16",
    "memory": "--recycle-keep-in-memory copies=2 --recycle-record run",
    "stagger": "--recycle-stagger",
    "exact": "--recycle-exact",
}
"""What each setting is tried with."""

APART = (
    *(("--bf16", "--fp16"), ("--fp8-format", "--fp16"), ("--use-distributed-optimizer", "--use-distributed-optimizer")),
    ("--fp16", "--fp16"),
)
"""What Megatron itself takes one of, or what is one thing."""

GIVEN = {"--save", "--save-interval", "--optimizer adam", "--distributed-backend gloo", "--ckpt-format torch_dist"}
"""What runs with kills have, and their table does not say in these words."""

CONDITIONAL = {
    "with --use-distributed-optimizer": refusals.SHARDED,
    "with --distributed-backend nccl": refusals.OVER_NCCL,
    "with --iterations-to-skip": refusals.SKIPPING,
    "with --fp8-format": refusals.EIGHT_BITS,
    "with --context-parallel-size": refusals.CONTEXT,
}

TRAINING = {
    "tensor parallelism": "tensor_parallel=2",
    "sequence parallelism": "tensor_parallel=2 sequence_parallel=true",
    "bf16": "bf16=true",
    "exact sums": "exact=true",
    "distributed optimizer": "distributed_optimizer=true",
    "state in memory": "--keep-in-memory copies=1",
    "chunks": 'placement="interleaved:2"',
    "moving layers": 'placement="consecutive:2" --move-layers on',
    "catalogue": "--catalogue plans.zip",
}
"""What ``recycle train`` is asked for: options, and keys of its job file and of its model file."""

MODEL_KEYS = ("bf16", "exact", "tensor_parallel", "sequence_parallel", "distributed_optimizer")
"""The keys of these that are the model file's."""

ONE_OF = (("chunks", "moving layers"), ("tensor parallelism", "sequence parallelism"))
"""Of these, one implies the other."""

FROM_CHECKPOINT = "--use-mp-args-from-checkpoint-args"
"""With it, the number of stages is not on the command line."""

NO = "no"
"""What is accepted where nothing is."""

NOTES = {
    "--fp8-format": "runs with an `--fp8-recipe`: the default one, `delayed`, is refused",
    "--recompute-granularity": "runs, with `full` and with `selective`",
}
"""What becomes of options that depend on the default of another one, or have several values."""

AS_IN_STOCK = ("--attention-backend", "--cross-entropy-loss-fusion")
"""Options that are looked for, and of which nothing else is to be said."""

HEAD = """\
# Compatibility

This page is made from the code by `scripts/make_compatibility.py`, and a test holds that it is up to date. Each row
is one setting, judged as `recycle doctor` would judge it. If you look for one option, go to
[every option by its name](#every-option-by-its-name). For your own job, run the doctor: it reads all your settings
together.

```bash
recycle doctor torchrun --nproc-per-node 8 pretrain_gpt.py ...
```

## Megatron: settings that run

The Megatron integration is `--pipeline-schedule recycle`. The rows are for megatron-core {release}, with two stages
and at least two pipelines, so that each stage has peers. Unless a row names Transformer Engine, layers are Megatron's
own: `--transformer-impl local --no-gradient-accumulation-fusion`. Other releases that it knows: {releases}.

- **backward**: whether the plan can compute weight gradients later than input gradients (*split*). If not (*fused*),
  a failure costs more throughput.
- **death**: *yes*: the job survives the death of any process. On two hosts with `--use-tp-pp-dp-mapping`, it also
  survives the loss of one (the first one [with etcd](store.md#a-store-that-outlives-any-host)).
- **death**: *process; host?*: the job survives the death of any process. Whether it survives the loss of a host
  depends on the job's sizes: it does, unless that host holds all servers of a stage. If a server fills one host or
  more, no host holds two servers, so the job survives: for example TP x CP = 8 on hosts of 8 GPUs. See the doctor's
  line `survives` ([other sizes](#is-the-loss-of-a-host-survived)).
- **dist. opt.**, **fp16**, **memory**, **stagger**, **exact**: whether the setting also runs with
  `--use-distributed-optimizer`, `--fp16`, `--recycle-keep-in-memory`, `--recycle-stagger` and `--recycle-exact`. A
  number is the reason why not, listed below.
- **tried**: *killed*: a CPU test kills servers of a job with this setting. That test mostly ran without the options of
  the other columns (distributed optimizer, fp16 and so on). Losses stay the same, up to rounding. For the distributed
  optimizer, kills were also tested with virtual stages, and with tensor and sequence parallelism, but never with all of
  these at once. *never run*: the code was only read. *no*: it is accepted, and in no such test.

On GPUs, {tried}. Sums over NCCL ran there without Megatron. Nothing else of these tables
has run on a GPU ([what ran where](gpu.md)).

### The default GPU job

A GPU job has Transformer Engine's layers and fused gradient accumulation, unless you say otherwise. From Transformer
Engine 2.3 on, both together are split:

| layers | fused gradient accumulation | backward |
| --- | --- | --- |
| Transformer Engine (default) | on (default) | **split** |
| Transformer Engine | off: `--no-gradient-accumulation-fusion` | split from Transformer Engine 2.7 on; \
fused with `--moe-grouped-gemm` |
| Transformer Engine with `--use-transformer-engine-op-fuser` | either | fused |
| Megatron's own: `--transformer-impl local` | on (default) | fused |
| Megatron's own | off | split |

In the first row, a few weight gradients are still computed with the input gradients: those of the head, of norms
and of embeddings.

While all servers live, layers compute their weight gradients as in stock Megatron. As soon as a plan splits the
backward pass, layers put off their weight gradients to a later instruction, W. No GPU has run this. On CPUs, it was
tried with plain torch in the place of Transformer Engine's kernels.

### Experts and expert parallelism

Mixtures of experts (MoE) were tested on CPUs with kills: 4 experts with EP 1 and EP 2, and EP 2 with TP 2 and expert
TP 2 ([rows](#mixtures-of-experts)). Larger sizes and GPUs never ran.

- **With EP, give `--expert-tensor-parallel-size 1`.** The default is TP: with TP 8 and EP 8, a
  server is 64 ranks on 8 hosts. With 1, it is 8 ranks.
- **Your own sizes:** [a rule](cluster.md#servers-of-several-ranks) says how many ranks a server has, and how many
  pipelines are left. [64 experts, step by step](examples.md#a-worked-example-64-experts-ep-8-tp-1-pp-4).

### FP8 and grouped GEMM

None of this has run, because Transformer Engine needs CUDA. By the code, such a job is accepted with:

| you want | give | why |
| --- | --- | --- |
| FP8 | `--fp8-format hybrid --fp8-recipe blockwise`, or `tensorwise`, or `mxfp8` | Megatron's default recipe, \
`delayed`, is refused, and so is `--fp8-param-gather` |
| grouped GEMM | `--moe-grouped-gemm`, and not `--no-gradient-accumulation-fusion` | Transformer Engine's experts \
split their backward pass only with fused gradient accumulation. Without it, a failure costs more |
| the distributed optimizer, copies in memory | nothing more | neither excludes FP8 or experts. \
`--recycle-stagger` and `--recycle-exact` do |

### Packed sequences, fine-tuning, inference

All micro-batches of a job have one shape: `--micro-batch-size` x `--seq-length`. Stages exchange tensors of this shape.

| you want | with ReCycle | tried |
| --- | --- | --- |
| pretraining on documents that Megatron's `GPTDataset` joins to samples of `--seq-length` | runs | killed |
| `--reset-position-ids`, `--reset-attention-mask`, `--eod-mask-loss` | run as in stock, by the code | no |
| sequence packing, supervised fine-tuning: `--sft` | accepted. Megatron pads each sample to `--seq-length`, and its \
packed attention is Transformer Engine's | never run with packed data. A test with kills gave the option to a job with \
ordinary data |
| sequences of variable length | pad them to `--seq-length`. Transfers of other lengths (`variable_seq_lengths`), \
`--hybrid-context-parallel` and sequence packing of reinforcement learning are refused | |
| losses of micro-batches with different numbers of tokens | run, with `--calculate-per-token-loss` too | killed |
| fine-tuning from a checkpoint: `--finetune`, `--pretrained-checkpoint` | runs as in stock, by the code, if the \
script calls `pretrain` | no |
| LoRA, frozen layers | not refused | no |
| inference, evaluation alone (`--skip-train`) | no: ReCycle protects training | |

A plan takes all micro-batches of a stage to be equally long. If packed ones are not, iterations may take longer than
planned.

### Is the loss of a host survived?

For example, Megatron refuses `--use-tp-pp-dp-mapping` with
[most sizes of context parallelism](cluster.md#ranks-and-hosts). Rows of such settings have *process; host?* under
*death*. Without that option, Megatron numbers ranks by stage and then pipeline. So one host may have all servers of
a stage. Whether it does depends on the job:

| servers | the loss of a host |
| --- | --- |
| a server fills one host or more: it has at least as many ranks as a host has GPUs. The row `job` of the doctor has \
that number; without experts it is TP x CP | one server: survived |
| a host holds fewer servers than there are pipelines | some servers of a stage: survived |
| a host holds all servers of a stage | not survived |

The row `survives` of `recycle doctor` says which one is yours. For example, TP 4 and CP 2 on hosts of 8 GPUs is one
server for each host, and the doctor prints `a host is one server`. TP 2 and CP 2 on four such hosts, with two stages,
survives as well: four pipelines, and two servers of a stage on a host.

### Batches that grow, and other numbers of micro-batches

A plan is for M micro-batches for each pipeline: `--global-batch-size` / (`--micro-batch-size` x pipelines). Smaller
batches run the same plan.

| question | answer |
| --- | --- |
| what happens when `--rampup-batch-size` takes its next step? | A batch of the ramp has m micro-batches for each \
pipeline. Each server follows the same plan, and skips the instructions of the other M - m. \
No new plan is searched for, no view changes, nothing pauses |
| does one catalogue serve the whole ramp? | yes: the one that was made for the M of `--global-batch-size`. \
A catalogue for another M is refused |
| which batch is the doctor's table for? | that of `--global-batch-size`. Smaller ones have a larger share of idle \
time |
| which batches are legal? | each from the start of the ramp to the end is a multiple of `--micro-batch-size` x \
pipelines, and the steps lead exactly to `--global-batch-size`. Others are refused before training |
| what else does a ramp need? | `--train-samples` instead of `--train-iters`; neither `--recycle-stagger` nor \
`--recycle-exact` |
| and evaluations? | They have M micro-batches, also during the ramp |
| what if M does not divide by the D - 1 peers of a dead server? | Nothing is refused: some peers compute one \
micro-batch more than others. So the iteration may be a little longer |
| and in a smaller batch of the ramp? | the same plan. Of a dead server's work, some peers may compute \
one micro-batch more than others, and some none |

For example, with 4 pipelines and M of 16, the 16 micro-batches of a dead server go to its three peers as 5, 6 and 5.
Of the first eight, they have 2, 3 and 3; of the first four, 1, 2 and 1.

`--decrease-batch-size-if-needed` is another thing: it makes Megatron round a batch down
to a multiple of `--micro-batch-size` x pipelines.
ReCycle refuses it, because it reads the number of micro-batches from the options
before Megatron rounds.
"""

USUAL = """\
What a usual large GPU job may have:

| you use | with ReCycle |
| --- | --- |
| FSDP: `--use-megatron-fsdp`, `--use-torch-fsdp2` | refused |
| CUDA graphs: `--cuda-graph-impl`, `--enable-cuda-graph`, `--external-cuda-graph` | refused |
| overlap inside a layer: `--tp-comm-overlap` | refused |
| overlap of gradients and parameters: `--overlap-grad-reduce`, `--overlap-param-gather` | [runs](#optimizer) |
| `--overlap-param-gather-with-optimizer-step`, `--overlap-moe-expert-parallel-comm`, `--delay-wgrad-compute` \
| [left out](#megatron-options-that-are-left-out) |
| fp16 with the distributed optimizer | refused: use `--bf16` |
| FP8 | [accepted with three recipes](#fp8-and-grouped-gemm), refused with the default one; never run |
| experts (MoE) | [run](#experts-and-expert-parallelism). Refused: `--moe-router-enable-expert-bias` and \
`--moe-expert-rank-capacity-factor` |
| multi-token prediction: `--mtp-num-layers` | refused |
| a lighter optimizer: `--use-precision-aware-optimizer`, `--optimizer-cpu-offload` | refused with the distributed \
optimizer |
| NVRx: `--inprocess-restart`, `--enable-ft-package`, `--non-persistent-ckpt-type local` | refused |
| `--async-save` | [left out](#megatron-options-that-are-left-out) |

All settings that are refused:

"""

TAIL = """\
## `recycle train`: what goes together

`recycle train` trains a GPT of its own. *No* is refused before a process starts.

{train}

- Pipelines that are not alike: not with `--keep-in-memory` and `distributed_optimizer`.
- On GPUs: one H100 has run `--device cuda` and `cuda+nccl`, with all servers on it. Several GPUs have not been tried.
- Faults on purpose: on one machine only.
- Exact sums: not where one stage uses a tied embedding twice.

## What a job needs in any case

- Two pipelines or more. With one, every server is the only one of its stage, and any death ends the job.
- A live server for each stage. If a stage loses all servers, only `--keep-in-memory` or a checkpoint brings it back.
- Linux. The runtime uses pidfds, robust futexes and `/proc`.
- etcd (`--store`, `--recycle-store`), if the first host may die. See [Slurm](../howto/slurm.md),
  [Kubernetes](../howto/kubernetes.md) and [torchrun](../howto/torchrun.md).
- Under Megatron, layers do not move to other servers. They do in `recycle train`, with `--move-layers on`.
"""


class Reasons:
    """Numbers for reasons, in the order in which they come up."""

    def __init__(self) -> None:
        self._found: list[str] = []

    def number(self, text: str) -> int:
        """That of a reason."""
        if text not in self._found:
            self._found.append(text)
        return self._found.index(text) + 1

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return iter(enumerate(self._found, 1))


def judged(*words: str) -> Diagnosis:
    """What the doctor says of a job."""
    job = shlex.split(" ".join((JOB, *words)))
    try:
        line = read_command_line([*job, PEERS_APART], None)
    except UserError:
        line = read_command_line(job, None)
    return diagnose(line, 8, RELEASE)


def options_in(text: str) -> set[str]:
    """The options in a text, with their values where these are words."""
    return set(re.findall(r"--[a-z0-9][\w-]*(?: [a-z]\w*)?", text))


def killed() -> set[str]:
    """The options that runs have in whose tests servers are killed."""
    table = (
        (ROOT / "docs" / "internals" / "megatron.md")
        .read_text()
        .partition("Settings with which servers were killed")[2]
        .partition("\n## ")[0]
    )
    return options_in("\n".join(re.findall(r"`([^`]+)`", table))) | GIVEN


def row_of(row: Row, reasons: Reasons, in_kills: set[str]) -> list[str]:
    """The cells of a setting."""
    diagnosis = judged(row.layers, row.words)
    assert diagnosis.runs, f"{row}: {[str(each) for each in diagnosis.refused]} {diagnosis.unread}"
    cells = []
    for words in BESIDE.values():
        if any(one in f"{row.layers} {row.words}" and other in words for one, other in APART):
            cells.append("-")
            continue
        refused = judged(row.layers, row.words, words).refused
        texts = dict.fromkeys(f"{each.advice.reason}; {each.advice.remedy}" for each in refused)
        cells.append(", ".join(f"no {reasons.number(text)}" for text in texts) or "yes")
    # What is no layer of Megatron's own, or adds gradients up in its kernels, needs CUDA.
    never = row.layers != LOCAL or any(read_only(diagnosis.line.setting))
    in_test = all(each in in_kills or each.partition(" ")[0] in in_kills for each in options_in(row.words))
    tried = "never run" if never else "killed" if in_test else "no"
    shown = " ".join(shlex.split(row.words))
    return [
        f"{row.name} <code>{shown.replace('|', '&#124;')}</code>" if shown else row.name,
        "fused" if diagnosis.fused else "split",
        "yes" if diagnosis.survives_host else "process; host?" if diagnosis.survives_process else "no",
        *cells,
        tried,
    ]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def accepted() -> Iterator[str]:
    """The part on settings that run."""
    reasons, in_kills = Reasons(), killed()
    for title, rows in ROWS.items():
        yield f"\n### {title}\n\n"
        yield table(
            ["setting", "backward", "death", *BESIDE, "tried"], [row_of(row, reasons, in_kills) for row in rows]
        )
    yield "\n### Why not\n\nIn this list, *it* is the setting of the row. "
    yield "Instead, you can leave out the option of the column.\n\n"
    for number, text in reasons:
        yield f"{number}. {text[0].upper()}{text[1:]}.\n"


def option(name: str) -> str:
    """What a setting is called on the command line; empty if Megatron has no option for it."""
    return next(iter(options_of(name)), "")


def values_text(values: tuple[Any, ...]) -> str:
    """Which values of a setting are accepted, in words."""
    if not values or values == ([],) or values[0] is False:
        return NO
    return f"only `{values[0]}`" if len(values) == 1 else ", ".join(map(str, values))


def refused() -> list[list[str]]:
    """The settings that are refused: each with what is accepted, why, and what to do."""
    always = [(rule, "") for rule in refusals.RULES]
    sometimes = [(rule, when) for when, rules in CONDITIONAL.items() for rule in rules]
    rows = []
    for rule, when in always + sometimes:
        for name in rule.names:
            if option(name) and option(name) not in LEFT_OUT:
                what = f"`{option(name)}`" + (f" {when.replace('--', '`--', 1)}`" if when else "")
                rows.append([what, values_text(rule.accepted), *rule.advice])
    for name, other, advice in refusals.AS_ANOTHER:
        if option(name):
            rows.append([f"`{option(name)}`", f"the value of `--{other.replace('_', '-')}`", *advice])
    rows.append(["`--yaml-cfg`", NO, "the schedule cannot be named in that file", "use options"])
    return sorted(rows)


def by_name() -> str:
    """The part that has each option of the page once, with what becomes of it."""
    found: dict[str, set[str]] = {}
    for row in chain.from_iterable(ROWS.values()):
        for name in re.findall(r"--[a-z]\S+", f"{row.layers} {row.words}"):
            found[name] = {NOTES.get(name, "runs")}
    for what, values, *_ in refused():
        name, _, when = what.partition(" ")
        verdict = "refused" if values == NO else values if values.startswith("only") else f"only {values}"
        said = found.setdefault(name.strip("`"), set())
        if not when:
            said.discard("runs")
        said.add(f"{when}: {verdict}" if when else verdict)
    found |= {name: {"left out"} for name in LEFT_OUT}
    found |= {name: {"runs as in stock"} for name in AS_IN_STOCK}
    found |= {"--use-checkpoint-args": {"runs"}, FROM_CHECKPOINT: {"the job runs, and the death of a server ends it"}}
    return table(
        ["option", "what becomes of it"], [[f"`{each}`", "; ".join(sorted(found[each]))] for each in sorted(found)]
    )


def left_out() -> str:
    """The part on options that are left out."""
    return table(["option", "why"], [[f"`{name}`", why] for name, why in sorted(LEFT_OUT.items())])


class Accepted(Exception):
    """Nothing was refused before training would have begun."""


def refusal_of(words: Sequence[str], folder: Path) -> str:
    """Why ``recycle train`` refuses options; empty if it does not.

    Args:
        words: the options, and keys of the job file.
        folder: for its output.
    """
    job = folder / "job.toml"
    keys = ["pipelines=2", "stages=2", "micro_batches=2", *(each for each in words if "=" in each and each[0] != "-")]
    keys = [each for each in keys if not each.startswith(("copies=", "parity="))]
    of_model = [each for each in keys if each.partition("=")[0] in MODEL_KEYS]
    job.write_text("\n".join(each for each in keys if each not in of_model))
    model = tomllib.loads("\n".join(["layers=8", *of_model]))

    def begin(run: Any, *_: Any) -> None:
        transformer_config(run.model, len(run.plan.job.stages))
        raise Accepted

    options = [each for each in words if each not in keys]
    with ExitStack() as stack:
        stack.enter_context(patch("recycle.planner.source.plan_ahead", lambda *_: None))
        stack.enter_context(patch("recycle.cli.train.train_and_show", begin))
        stack.enter_context(patch("recycle.cli.train.make_console"))
        # The files of the settings do not exist.
        stack.enter_context(patch("recycle.cli.run.choices.Catalogue"))
        stack.enter_context(patch("recycle.cli.train.read_model", lambda _: msgspec.convert(model, ModelKeys)))
        try:
            verb: Command = train_command
            with verb.make_context("train", [str(job), "--output", str(folder / "run"), *options]) as context:
                verb.invoke(context)
        except Accepted:
            return ""
        except UserError as error:
            return str(error)
    raise AssertionError("training has begun")


def trained() -> str:
    """The table of what ``recycle train`` does together."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for row, words in TRAINING.items():
            cells = []
            for column, others in TRAINING.items():
                if row == column or (row, column) in ONE_OF or (column, row) in ONE_OF:
                    cells.append("-")
                    continue
                both = list(dict.fromkeys(chain(_pairs(words), _pairs(others))))
                cells.append("no" if refusal_of([each for pair in both for each in pair], Path(folder)) else "yes")
            rows.append([f"{row} `{words}`", *cells])
    return table(["", *TRAINING], rows)


def _pairs(words: str) -> Iterator[tuple[str, ...]]:
    """Options with their values, and keys of the job file."""
    for found in re.findall(r"--\S+(?: (?!--)\S+)?|\w+=\S+", words):
        yield tuple(found.split())


def make_page() -> str:
    """The whole page."""
    head = HEAD.format(releases=", ".join(each for each in RELEASES if each != RELEASE), release=RELEASE, tried=TRIED)
    parts = [
        head,
        *accepted(),
        "\n## Megatron: settings that are refused\n\n",
        "Each is refused before training starts, in one line that names setting and remedy.\n\n",
        USUAL,
        table(["setting", "accepted", "why", "what to do"], refused()),
        f"\n`{FROM_CHECKPOINT}` is another case. The doctor refuses it, because the number of stages is not on the\n"
        "command line. A job that starts with it runs, but is not protected: its first line says that the death of a\n"
        "server ends the run. Give the sizes on the command line, and `--use-checkpoint-args` alone.\n",
        "\n## Megatron: options that are left out\n\n",
        "These change no result. A job that survives deaths runs without them, and a line says so.\n\n",
        left_out(),
        "\n## Every option by its name\n\n",
        "*runs*: a row above says with what. *left out*: [why](#megatron-options-that-are-left-out); the job runs\n"
        "without it. *refused*: [why](#megatron-settings-that-are-refused). Ask the doctor about an option that\n"
        "is not here: unless it names the option, it runs as in stock Megatron. So flash\n"
        "attention (`--attention-backend`), grouped-query attention, `--recompute-granularity selective`,\n"
        "`--cross-entropy-loss-fusion` and `--profile` run.\n"
        "Options that tune Megatron's schedule, or its transfers between stages (p2p), have no effect:\n"
        "`--microbatch-group-size-per-virtual-pipeline-stage`,\n"
        "`--no-overlap-p2p-communication`, `--overlap-p2p-communication-warmup-flush`.\n\n",
        by_name(),
        "\n",
        TAIL.format(train=trained().rstrip()),
    ]
    return "".join(parts)


if __name__ == "__main__":
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    place.write_text(make_page())
    print(place)
