"""A run's figures as Prometheus reads them."""

from collections import Counter
from collections.abc import Iterator

from recycle.view.watching import RunState

TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics(state: RunState) -> bytes:
    """The figures of a run as it stands; those that it does not have yet are left out."""
    return "".join(_lines(state)).encode()


def _lines(state: RunState) -> Iterator[str]:
    last = sum(each.last for each in state.copies) if state.copies else None
    found: dict[str, tuple[str, float | None]] = {
        "iteration": ("The last iteration that was made, from 1.", state.step),
        "iterations": ("The number of the last iteration that the run is to make.", state.iterations),
        "loss": ("Of the last iteration.", state.loss),
        "micro_batches_per_second": ("In the last iteration.", state.rate),
        "failures_total": ("Servers that died since the run began.", state.failures),
        "last_copies": ("Stages (chunks where pipelines differ) with one live server or none, and no copies.", last),
        "unprotected": ("1 while the store is lost, so that the next death ends the run.", state.unprotected),
        "standstills_total": ("Servers that said in a standstill where they are.", state.stuck),
        "silent_seconds": ("Since any process wrote something.", state.silent),
        "ended": ("1 if the run has ended.", state.ended),
    }
    for name, (text, value) in found.items():
        if value is not None:
            yield _head(name, text) + f"recycle_{name} {float(value)!r}\n"
    yield _head("servers", "Of the job, by what each is.")
    counts = Counter(each.state for each in state.servers)
    for kind in ("live", "starting", "dead", "ended"):
        yield f'recycle_servers{{state="{kind}"}} {counts[kind]}\n'


def _head(name: str, text: str) -> str:
    kind = "counter" if name.endswith("_total") else "gauge"
    return f"# HELP recycle_{name} {text}\n# TYPE recycle_{name} {kind}\n"
