"""``recycle watch``."""

import os
import threading
import webbrowser
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import click
import msgspec

from recycle.cli.console import make_console, progress_line
from recycle.cli.options import Verb, load_legal_plan
from recycle.cli.parameters import TEXT, Count, InputPath
from recycle.control.membership.addresses import LOOPBACK
from recycle.errors import NoPlanError, UserError
from recycle.files import STANDARD, resolved
from recycle.job import Server
from recycle.plan.catalogue import Catalogue
from recycle.plan.plan import Plan
from recycle.view.html import document_of, page
from recycle.view.metrics import TYPE as METRICS
from recycle.view.metrics import metrics
from recycle.view.panel import Panel, make_panels
from recycle.view.serving import JSON, Answer, PageServer, Route
from recycle.view.subject import subject_of
from recycle.view.watching import WatchedRun
from recycle.wording import printable, throughput_text

PORT = 8265

KEPT = 32
"""Plans that are not made again when somebody comes back to their dead servers."""


@click.command("watch", cls=Verb)
@click.argument("path", metavar="RUN", type=InputPath())
@click.option("--port", type=Count(0, 65535), default=PORT, show_default=True, help="Where to listen; 0: any.")
@click.option(
    "--address",
    type=TEXT,
    default=LOOPBACK,
    show_default=True,
    help="Where to listen. At another address than the default, only someone with the whole printed address can look.",
)
@click.option("--open", "in_browser", is_flag=True, help="Open the page in a browser.")
def command(path: Path, port: int, address: str, in_browser: bool) -> None:
    """Serve a page on which the run in the folder RUN is seen while it goes on.

    It has throughput, loss, the servers with their processes, the time line of the last iterations, and failures as
    they happen. Nothing of the run is touched: only what it writes is read. A run that is about to begin can be watched
    from its start: where there is no folder yet, the page waits for it.

    Prometheus can scrape the run's figures at /metrics, below the printed address.

    RUN can also be a plan or a catalogue. On the page, servers are then killed and brought back with a click. It draws
    the plan for those that are left, from the catalogue, or made within a second.

    \b
    recycle watch run
    recycle watch catalogue.zip
    """
    # A run's folder comes some seconds after its command.
    is_run = path.is_dir() or (path != STANDARD and not path.exists() and path.suffix not in (".json", ".zip"))
    awaited = is_run and not (path / "events").is_dir()
    routes = watch_run(path) if is_run else try_plans(path)
    server = PageServer(address, port, routes, lambda: secret_of(path))
    what = f"{path}, as soon as a run begins there" if awaited else str(path)
    make_console(error=True).print(f"{server.url} shows {what}; Ctrl-C ends it")
    if in_browser:
        webbrowser.open(server.url)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()


def secret_of(path: Path) -> str:
    """What the page's address has in it: the same at each start, so that what asks for a run's figures finds them.

    Args:
        path: what is watched.

    Raises:
        UserError: the secret that it is made of cannot be read.
    """
    from recycle.runtime.launch.meet.secret import given_secret, secret_of_host, token_of

    return token_of(given_secret(None, os.environ) or secret_of_host(), f"watch {resolved(path)}")[:32]


def watch_run(folder: Path) -> Mapping[str, Route]:
    """What a page asks about a run."""
    run, lock = WatchedRun(folder), threading.Lock()
    # The page says what cannot be read.
    with progress_line(f"reading {folder}"), suppress(UserError):
        run.look()

    def panel() -> Panel:
        run.look()
        return run.panel()

    def show(_: Mapping[str, str]) -> bytes:
        with lock, suppress(UserError, OSError):
            return page([panel()], live="run").encode()
        # The page says what cannot be read, and shows the run when that can be.
        return page([WatchedRun(folder).panel()], live="run").encode()

    def timeline(_: Mapping[str, str]) -> bytes:
        with lock:
            return msgspec.json.encode(document_of([panel()]))

    def state(_: Mapping[str, str]) -> bytes:
        with lock:
            run.look()
            return msgspec.json.encode(run.state())

    def figures(_: Mapping[str, str]) -> bytes:
        with lock:
            run.look()
            return metrics(run.state())

    return {
        "/": _page(show),
        "/timeline": _data(timeline),
        "/state": _data(state),
        "/metrics": Route(METRICS, figures),
    }


def try_plans(path: Path) -> Mapping[str, Route]:
    """What a page asks about the plans of a catalogue, or for the job of a plan.

    Raises:
        UserError: it is neither.
        IllegalPlan: the plan is illegal.
    """
    catalogue = Catalogue(path) if path.suffix == ".zip" else None
    start: Plan = catalogue.look_up(()).plan() if catalogue else load_legal_plan(path)

    def plan_for(dead: tuple[Server, ...]) -> Plan:
        from recycle.planner.source import plan_maker

        if tuple(start.dead) == dead:
            return start
        # A catalogue has plans for a few failures.
        with suppress(NoPlanError):
            if catalogue:
                return catalogue.look_up(dead).plan()
        return plan_maker(start.job, start.mode)(start.job.dead_servers(dead))

    lock, known = threading.Lock(), lru_cache(KEPT)(plan_for)

    def panels(plan: Plan) -> list[Panel]:
        return make_panels([subject_of(plan, printable(path.stem))], "stage")

    def asked_for(asked: Mapping[str, str]) -> Plan:
        if "dead" not in asked:
            return start
        # Whoever asks often waits, and does not take every processor.
        with lock:
            return known(tuple(sorted(Server.parse(each) for each in asked["dead"].split(",") if each)))

    def show(asked: Mapping[str, str]) -> bytes:
        return page(panels(asked_for(asked)), live="plans").encode()

    def plan(asked: Mapping[str, str]) -> bytes:
        found, whole = asked_for({"dead": "", **asked}), asked_for({"dead": ""})
        time = found.job.time_text
        throughput = throughput_text(found.throughput, found.job.baseline_name, whole.throughput, "all alive")
        said = f"an iteration in {time(found.period)}, {throughput}"
        if found.dead:
            said += f", before {time(whole.period)}"
        return msgspec.json.encode({"document": document_of(panels(found)), "said": said})

    return {"/": _page(show), "/plan": _data(plan)}


def _page(answer: Answer) -> Route:
    return Route("text/html; charset=utf-8", answer)


def _data(answer: Answer) -> Route:
    return Route(JSON, answer)
