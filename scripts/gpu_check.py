"""What holds on this machine of what docs/internals/gpu.md says: ``scripts/gpu-check``, from a source checkout.

It needs torch and what can be imported besides; nothing is fetched. What is missing can be taken along to a machine
without a network: ``scripts/gpu-pack FOLDER`` fetches it, and ``--wheels FOLDER`` installs it. Each part runs
in processes of its own, with a time limit, and is left out with the reason where something is missing. Without a GPU,
parts run on the CPU as far as they can. The most telling ones come first. The table at the end is for that
page.

``speed`` stands for the parts that time what one GPU can tell of how fast lists are executed.

Usage: scripts/gpu-check [PART ...] [--wheels FOLDER] [--output FOLDER] [--minutes 8] [--script FILE] [--kills 20]
"""

import argparse
import importlib
import importlib.metadata
import json
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

LEAST = 5.0
"""Seconds without which no part is begun."""

SHARED = 23003
"""The first release of NCCL that lets several ranks share a GPU."""


class Skipped(Exception):
    """A part cannot run here; says why."""


class Part(NamedTuple):
    """A part of the check.

    Attributes:
        run: does it, and says what was found.
        question: that it answers.
        limit: seconds that it may take.
    """

    run: Callable[[argparse.Namespace], str]
    question: str
    limit: float


def device() -> Literal["cpu", "cuda"]:
    """What stages are computed on here."""
    return "cuda" if gpus() else "cpu"


def require_gpu(why: str) -> None:
    """Leave a part out where there is no GPU."""
    if device() == "cpu":
        raise Skipped(f"no GPU here; {why}")


def require(*packages: str) -> None:
    """Leave a part out where a package is missing."""
    for name in packages:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise Skipped(
                f"{name} cannot be imported ({error}): install it, or name its folder in PYTHONPATH"
            ) from error


def measuring(module: str, name: str, *packages: str) -> Callable[[argparse.Namespace], str]:
    """A part that measures something on whatever device there is.

    Args:
        module: of ``scripts``, imported when the part runs.
        name: of its function that gets the device, and says what was found.
        packages: without which the part is left out.
    """

    def run(_: argparse.Namespace) -> str:
        require(*packages)
        found: str = getattr(importlib.import_module(f"scripts.{module}"), name)(device())
        return found

    return run


def find(_: argparse.Namespace) -> str:
    """What is there."""
    import torch

    found = [f"Python {platform.python_version()}", f"torch {torch.__version__}", f"CUDA {torch.version.cuda}"]
    for name in ("transformer-engine", "megatron-core"):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"no {name}")
    if not torch.cuda.is_available():
        return ", ".join([*found, "no GPU"])
    from recycle.runtime.errors import RunError
    from recycle.runtime.net.nccl.bindings import Nccl

    try:
        found.append(f"NCCL {Nccl().release}")
    except RunError as error:
        found.append(str(error))
    names = [torch.cuda.get_device_name(each) for each in range(torch.cuda.device_count())]
    return ", ".join([*found, f"{len(names)} x {names[0]}"])


def delayed(_: argparse.Namespace) -> str:
    """Transformer Engine's split backward pass against its own fused one."""
    require_gpu("Transformer Engine computes on GPUs only; tests/megatron/shared has a stand-in for it")
    require("transformer_engine.pytorch", "megatron.core")
    from scripts.gpu_delayed import compare_delayed

    return compare_delayed()


def profile(arguments: argparse.Namespace) -> str:
    """What the stages of a GPT of Megatron's layers cost and hold."""
    require("megatron.core", "ortools", "click", "rich")
    from scripts.gpu_profile import profile_stages

    return profile_stages(device(), arguments.small)


def own(_: argparse.Namespace) -> str:
    """What the ranks of a server call in torch's own groups; on GPUs, over NCCL."""
    require("msgspec")
    from scripts.gpu_parts import call_own_ranks

    if device() == "cuda" and (missing := share_gpus(2)) is not None:
        raise Skipped(missing)
    return call_own_ranks(device())


def kills(arguments: argparse.Namespace) -> str:
    """Kills over a transport that stays on the host."""
    require("msgspec")
    from scripts.gpu_parts import survive_kills

    return survive_kills("staged", device(), min(arguments.kills, 3 if device() == "cpu" else arguments.kills))


def nccl(arguments: argparse.Namespace) -> str:
    """Kills over NCCL, with several ranks on one GPU or one each."""
    require_gpu("the transport over NCCL runs over a stand-in in tests/runtime/net/contract")
    require("msgspec")
    from scripts.gpu_parts import RANKS, survive_kills

    if (missing := share_gpus(RANKS)) is not None:
        raise Skipped(missing)
    return survive_kills("nccl", "cuda", arguments.kills)


def flag(arguments: argparse.Namespace) -> str:
    """The flag on Megatron's own training code: over the staged transport, and over NCCL where ranks have GPUs."""
    require("megatron.training", "yaml", "six", "regex", "pydantic")
    from scripts.gpu_flag import RANKS, SCRIPT, survive_under_flag

    script = arguments.script or SCRIPT
    if device() == "cpu":
        return survive_under_flag(["gloo"], "cpu", script)
    missing = share_gpus(RANKS)
    found = survive_under_flag(["gloo", "nccl"] if missing is None else ["gloo"], "cuda", script)
    return found if missing is None else f"{found}; not over nccl: {missing}"


def stock(arguments: argparse.Namespace) -> str:
    """Megatron's own 1F1B against a plan."""
    require("megatron.training", "yaml", "six", "regex", "pydantic", "click", "rich")
    from scripts.gpu_flag import time_against_stock

    if device() == "cpu":
        return time_against_stock(2, "cpu", "small")
    stages = max(2, min(4, gpus()))
    if (missing := share_gpus(stages)) is not None:
        raise Skipped(missing)
    found = time_against_stock(stages, "cuda", "small" if arguments.small else "large")
    return found if gpus() >= stages else f"{found}; they share {gpus()} GPU, and wait for each other there"


@cache
def gpus() -> int:
    """How many there are; this process does not ask itself, because parts fork others that use them."""
    from recycle.runtime.device import count_gpus

    return count_gpus()


def share_gpus(ranks: int) -> str | None:
    """Have ranks share a GPU where there are more of them; why they cannot, None if they can."""
    from recycle.runtime.net.nccl.bindings import Nccl

    release = Nccl().release
    if gpus() >= ranks:
        return None
    if release < SHARED:
        return (
            f"{ranks} ranks on {gpus()} GPUs, and NCCL of release {release}: several ranks on one take 2.30.3, whose "
            "libnccl.so.2 can go before torch's by LD_PRELOAD"
        )
    os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    # Kernels of all of them have to be on the GPU together.
    os.environ.setdefault("NCCL_MAX_CTAS", "2")
    return None


PARTS = {
    "find": Part(find, "what is here", 60),
    "own": Part(own, "do ranks of a server get from torch's own groups what they should?", 120),
    "stages": Part(
        measuring("gpu_parts", "compare_stages", "msgspec"),
        "are stages on this device those of the CPU, and split as fused?",
        120,
    ),
    "flag": Part(flag, "does the flag carry Megatron's training code through a kill?", 300),
    "exact": Part(
        measuring("gpu_exact", "train_exactly", "megatron.core", "ortools", "click", "rich", "xxhash", "tensorboard"),
        "do kills change a bit of what recycle train trains?",
        300,
    ),
    "executor": Part(
        measuring("gpu_executor", "time_executor", "megatron.core", "ortools", "msgspec"),
        "what does executing a plan cost?",
        180,
    ),
    "passes": Part(
        measuring("gpu_speed", "time_passes", "msgspec"),
        "what does a gather by sums pass over beside the sum, against torch's own?",
        60,
    ),
    "events": Part(
        measuring("gpu_speed", "time_events", "msgspec"),
        "what do marks of instructions cost, and a wait between two kernels?",
        60,
    ),
    "launches": Part(
        measuring("gpu_speed", "time_launches", "msgspec"), "what begins behind a stream that is busy?", 90
    ),
    "copies": Part(measuring("gpu_speed", "time_copies", "msgspec"), "what do pinned copies cost beside products?", 60),
    "gaps": Part(
        measuring("gpu_executor", "find_gaps", "megatron.core", "ortools", "msgspec"),
        "how long has the device nothing to do?",
        120,
    ),
    "profile": Part(profile, "what do F, I and W cost?", 180),
    "kills": Part(kills, "are kills survived over the staged transport?", 300),
    "nccl": Part(nccl, "are kills survived over NCCL, and how soon?", 300),
    "stock": Part(stock, "how long are iterations of a plan against those of Megatron's own 1F1B?", 900),
    "te-split": Part(delayed, "is Transformer Engine's split backward pass as its fused one?", 120),
    "staged": Part(
        measuring("gpu_parts", "train_staged", "msgspec"),
        "do 8 servers that share a device lose as one process does?",
        120,
    ),
}
"""The most telling ones first, for where there is little time."""

SPEED = "speed"
"""Names all parts that time the execution of lists."""

OF_SPEED = ("executor", "passes", "events", "launches", "copies", "gaps")


class Outcome(NamedTuple):
    """What came of a part."""

    part: str
    status: str
    detail: str
    seconds: float


def run_part(name: str, arguments: argparse.Namespace, left: float = math.inf) -> Outcome:
    """Run a part in processes of its own, all of which end with it.

    Args:
        name: of the part.
        arguments: of the check.
        left: seconds until the check has to end.
    """
    part = PARTS[name]
    limit = min(part.limit, left)
    if left < LEAST:
        return Outcome(name, "left out", "there was no time left for it", 0.0)
    command = [sys.executable, "-W", "ignore", "-m", "scripts.gpu_check", "--inside", name]
    command += ["--kills", str(arguments.kills)]
    command += ["--small"] if arguments.small else []
    command += ["--script", arguments.script] if arguments.script else []
    start = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            output = ""
        finally:
            # Also where somebody ends the check.
            _end(process.pid)
    seconds = time.monotonic() - start
    try:
        status, detail = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError):
        late = seconds >= limit
        status, detail = "failed", f"it took more than {limit:.3g} s" if late else f"ended with {process.returncode}"
    return Outcome(name, status, detail, seconds)


def _end(group: int) -> None:
    """End a part's processes."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def run_inside(name: str, arguments: argparse.Namespace) -> tuple[str, str]:
    """Run a part in this process."""
    try:
        return "passed", PARTS[name].run(arguments)
    except Skipped as skipped:
        return "left out", str(skipped)
    except BaseException as error:
        traceback.print_exc()
        return "failed", f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"


def unpack(wheels: Path) -> Path:
    """Install wheels in a folder beside the checkout, and have all parts find them; needs no network.

    Args:
        wheels: the folder in which they are; made by ``scripts/gpu-pack``.

    Returns:
        Where they are installed; the caller removes it.
    """
    site = Path(tempfile.mkdtemp(prefix="gpu-site-"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--no-compile", "--target", site, *sorted(wheels.glob("*.whl"))], check=True)
    os.environ["PYTHONPATH"] = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(site)]).strip(os.pathsep)
    return site


def main() -> int:
    """Run all parts, or those that were asked for; 1 if one failed."""
    parser = argparse.ArgumentParser(prog="gpu-check", description=__doc__.split("\n")[0])
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help=f"of {', '.join(PARTS)}; {SPEED} for {', '.join(OF_SPEED)}; all if none is given",
    )
    parser.add_argument(
        "--wheels", type=Path, metavar="FOLDER", help="what scripts/gpu-pack made: used without network"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FOLDER", help="gets each row as soon as it is there: rows.jsonl, table.md"
    )
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which parts are ended or left out")
    parser.add_argument("--script", metavar="FILE", help="flag: runs this one, such as Megatron's pretrain_gpt.py")
    parser.add_argument("--kills", type=int, default=20, help="how many, over each transport")
    parser.add_argument(
        "--small", action="store_true", help="profile, stock: a small model on a GPU as well; its times say little"
    )
    parser.add_argument("--inside", choices=PARTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.script is not None:
        arguments.script = Path(arguments.script).resolve()
    if arguments.inside is not None:
        from recycle.runtime.device import spare_cuda

        # What a part forks computes on GPUs, and Megatron asks for them when it is imported.
        spare_cuda()
        print(json.dumps(run_inside(arguments.inside, arguments)), flush=True)
        return 0
    parts = [name for each in arguments.parts for name in (OF_SPEED if each == SPEED else [each])]
    unknown = [each for each in parts if each not in PARTS]
    if unknown:
        parser.error(f"{unknown[0]} is no part; they are {', '.join(PARTS)}")
    # So that the part that runs is ended as well, and what was unpacked is removed.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with ExitStack() as at_end:
        end = time.monotonic() + 60 * arguments.minutes
        if arguments.wheels is not None:
            at_end.callback(shutil.rmtree, unpack(arguments.wheels), ignore_errors=True)
        outcomes = []
        for name in parts or PARTS:
            print(f"{name}: {PARTS[name].question}", file=sys.stderr, flush=True)
            outcomes.append(run_part(name, arguments, end - time.monotonic()))
            print(f"{name}: {outcomes[-1].status}: {outcomes[-1].detail}", file=sys.stderr, flush=True)
            if arguments.output is not None:
                save(outcomes, arguments.output)
    print("\n".join(table(outcomes)))
    return int(any(each.status == "failed" for each in outcomes))


def save(outcomes: Sequence[Outcome], folder: Path) -> None:
    """Write what is known so far."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(each._asdict())}\n" for each in outcomes))
    (folder / "table.md").write_text("".join(f"{line}\n" for line in table(outcomes)))


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """The lines of a table in Markdown."""
    yield "| part | result | what was found | seconds |"
    yield "| --- | --- | --- | --- |"
    for each in outcomes:
        detail = each.detail.replace("|", "/")
        yield f"| `{each.part}` | {each.status} | {detail} | {each.seconds:.0f} |"


if __name__ == "__main__":
    sys.exit(main())
