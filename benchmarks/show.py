"""What the page of a large plan costs: ``python -m benchmarks.show [--shape 64x16x64] [--screenshot FILE]``.

The plan is 64 pipelines x 16 stages x 64 micro-batches, if no other shape is given, with one dead server, about 200,000
boxes. Reported are the time to make the page with ``recycle show``, its size, and, measured in the page by headless
Chromium, the time from the start of its loading to its first drawing, from a zoom step to the frame behind the one that
shows it, over steps from the whole to a few boxes and back, both with bands and with a row per server, and the time of
searches for the last server, an instruction and a micro-batch, until what they find is drawn.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.shared import sizes
from harness.browser import chromium, missing
from harness.examples import paper_job
from recycle.job import Server
from recycle.plan.document import save_plan
from recycle.plan.mode import Mode
from recycle.plan.plan import Plan
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.stopping import MaxMoves

ZOOM = """
const [factor, done] = arguments;
const start = performance.now();
schedule.zoom(factor);
requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start)));
"""
SEARCH = """
const start = performance.now();
const found = schedule.find(arguments[0]);
if (!found) throw new Error('it is not found');
return performance.now() - start;
"""
FIRST = "return performance.getEntriesByName('first draw')[0].startTime"
STEPS = 20
RUN = "from recycle.cli import main; main()"


def large_plan(pipelines: int, depth: int, micro_batches: int) -> Plan:
    job = paper_job(depth, 0, pipelines, depth, micro_batches)
    return make_plan(job, (Server(0, depth // 2),), Mode(), Effort((MaxMoves(0),), "no search"))


def measure(page: Path, searched: Sequence[str], screenshot: Path | None) -> dict[str, float]:
    """Figures of a page in milliseconds, by what they are of."""
    with chromium() as browser:
        browser.get(page.as_uri())
        first = browser.execute_script(FIRST)
        figures = {"first draw": first}
        for shown in ("bands", "rows"):
            steps = [browser.execute_async_script(ZOOM, factor) for factor in [0.8] * STEPS + [1.25] * STEPS]
            figures[f"zoom step with {shown}, median"] = median(steps)
            figures[f"zoom step with {shown}, longest"] = max(steps)
            if screenshot:
                browser.save_screenshot(str(screenshot.with_stem(f"{screenshot.stem}-{shown}")))
            browser.execute_script("document.getElementById('folded').click()")
        for wanted in searched:
            figures[f"search for {wanted}"] = browser.execute_script(SEARCH, wanted)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", type=sizes(3), default=(64, 16, 64), metavar="DxPxM")
    parser.add_argument("--screenshot", type=Path, help="save what is seen at the end, with bands and with rows")
    arguments = parser.parse_args()
    pipelines, depth, micro_batches = arguments.shape
    last, middle = depth - 1, micro_batches // 2
    searched = (f"W{pipelines - 1}_{last}", f"{last}F{pipelines - 1}.{micro_batches - 1}", f"{pipelines - 1}.{middle}")
    with tempfile.TemporaryDirectory() as folder:
        plan, page = Path(folder) / "plan.json", Path(folder) / "page.html"
        save_plan(large_plan(*arguments.shape), plan)
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", RUN, "show", plan, "--html", page], check=True)
        elapsed = time.perf_counter() - start
        computing = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        print(f"made in: {elapsed:.2f} s, of which {computing:.2f} s computing")
        print(f"size: {page.stat().st_size / 1e6:.2f} MB")
        reason = missing()
        if reason:
            print(f"not drawn: {reason}")
            return
        for name, value in measure(page, searched, arguments.screenshot).items():
            print(f"{name}: {value:.1f} ms")


if __name__ == "__main__":
    main()
