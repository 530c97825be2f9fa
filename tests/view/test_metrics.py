"""A run's figures, as a real Prometheus reads them."""

import json
import os
import re
import shutil
import subprocess
import time
from contextlib import suppress
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from harness.examples import paper_job, paper_plan
from harness.ports import free_port
from harness.recordings import write_events
from recycle.cli.watch import secret_of, watch_run
from recycle.plan.document import save_plan
from recycle.record.recording import PLAN, InstantLine, ProcessLine, RunLine, ViewLine
from recycle.runtime.launch.meet.secret import TOKEN, TOKEN_FILE
from recycle.view.serving import PageServer
from tests.view.disturbed import write_disturbed
from tests.view.pages import served


@pytest.fixture
def server(tmp_path):
    write_disturbed(tmp_path)
    with served(watch_run(tmp_path)) as one:
        yield one


def metrics_of(folder):
    return watch_run(folder)["/metrics"].answer({}).decode()


def read(url):
    with urlopen(url, timeout=120) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_figures_are_those_of_the_run(server):
    kind, text = read(f"{server.url}metrics")
    assert kind.startswith("text/plain; version=0.0.4")
    figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    state = json.loads(read(f"{server.url}state")[1])
    assert float(figures["recycle_iteration"]) == state["step"] == 4
    assert float(figures["recycle_loss"]) == state["loss"]
    assert float(figures["recycle_failures_total"]) == state["failures"] == 1
    assert sum(int(value) for name, value in figures.items() if "servers{" in name) == len(state["servers"]) == 12
    for name in figures:
        assert text.index(f"# TYPE {name.split('{')[0]} ") < text.index(f"\n{name} ")


def test_before_a_run_begins_it_has_no_loss(tmp_path):
    text = metrics_of(tmp_path / "nowhere")
    assert "recycle_iteration 0.0\n" in text
    assert "recycle_loss " not in text


def test_while_a_recording_cannot_be_read_there_is_a_page_and_no_figures(server, tmp_path):
    (tmp_path / "events" / "W9_9.jsonl").write_bytes(b"nothing\n")
    assert read(server.url)[1].startswith("<!doctype html>")
    assert "W9_9" in json.loads(read(f"{server.url}state")[1])["error"]
    with pytest.raises(HTTPError, match="503") as caught:
        read(f"{server.url}metrics")
    assert "W9_9" in caught.value.read().decode()


def test_a_stage_with_one_live_server_is_counted(tmp_path):
    save_plan(paper_plan(failed=()), tmp_path / PLAN)
    lines = [RunLine("recycle run", 1, "paper, trained", "us", "measured")]
    for epoch, (dead, last) in enumerate((("W0_2 W1_1", 0), ("W0_2 W1_2", 1))):
        live = [str(each) for each in paper_job().servers() if str(each) not in dead.split()]
        lines.append(ViewLine(epoch, epoch, live, [], 0, "two are dead", "memory", 40, 0.8, "the catalogue"))
        write_events(tmp_path, {"launcher": lines})
        assert f"recycle_last_copies {last}.0\n" in metrics_of(tmp_path)


def test_a_run_is_unprotected_as_long_as_a_live_server_has_no_store(tmp_path):
    save_plan(paper_plan(failed=()), tmp_path / PLAN)
    everybody = [str(each) for each in paper_job().servers()]
    told = {
        "launcher": [
            RunLine("recycle run", 1, "paper, trained", "us", "measured"),
            ViewLine(0, 0, everybody, [], 0, "the run begins", "memory", 40, 0.8, "the catalogue"),
        ]
    }

    def unprotected(name, *lines):
        told.setdefault(name, []).extend(lines)
        write_events(tmp_path, told)
        _, figure, _ = re.split(r"^recycle_unprotected (.*)$", metrics_of(tmp_path), flags=re.MULTILINE)
        return float(figure)

    lost, back = (InstantLine(kind, 1.0, "W0_1", kind) for kind in ("unprotected", "protected"))
    assert [unprotected("W0_1"), unprotected("W0_1", lost), unprotected("W0_1", back)] == [0, 1, 0]
    assert unprotected("W0_1", lost) == 1
    live = [each for each in everybody if each != "W0_1"]
    assert unprotected("launcher", ViewLine(1, 1, live, [], 0, "dead", "memory", 40, 0.8, "the catalogue")) == 0
    again = ViewLine(2, 2, everybody, ["W0_1"], 0, "come", "memory", 40, 0.8, "the catalogue")
    process = ProcessLine("W0_1#1", os.getpid(), "another host")
    assert unprotected("W0_1", process) == unprotected("launcher", again) == 0


def test_servers_in_a_standstill_and_iterations_that_are_to_be_made_are_counted(tmp_path):
    head = RunLine("recycle run", 1, "paper, trained", "us", "measured")
    process = ProcessLine("W0_1", os.getpid(), "another host", iterations=60)
    stuck = [InstantLine("standstill", 1.0, server, "a stack") for server in ("W0_1", "W1_1")]
    write_events(tmp_path, {"W0_1": [head, process, stuck[0]], "W1_1": [head, stuck[1]]})
    found = metrics_of(tmp_path)
    assert "# TYPE recycle_standstills_total counter\nrecycle_standstills_total 2.0\n" in found
    assert "recycle_iterations 60.0\n" in found


def test_the_secret_of_an_address_stays_and_is_another_for_another_run_and_another_user(tmp_path, monkeypatch):
    monkeypatch.delenv(TOKEN_FILE, raising=False)

    def secret(folder, given):
        monkeypatch.setenv(TOKEN, given)
        with PageServer("0.0.0.0", 0, {}, lambda: secret_of(folder)) as server:
            return urlsplit(server.url).path

    first = secret(tmp_path / "run", "5" * 64)
    assert len(first) > 32
    assert secret(tmp_path / "other" / ".." / "run", "5" * 64) == first
    assert first not in (secret(tmp_path / "other", "5" * 64), secret(tmp_path / "run", "6" * 64))
    monkeypatch.delenv(TOKEN)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert secret_of(tmp_path) == secret_of(tmp_path)


@pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed: apt-get install prometheus"
)
def test_a_real_prometheus_scrapes_them(server, tmp_path):
    target = f"127.0.0.1:{server.server_port}"
    jobs = [{"job_name": "recycle", "scrape_interval": "1s", "static_configs": [{"targets": [target]}]}]
    # Every document in JSON is one in YAML.
    (tmp_path / "prometheus.yml").write_text(json.dumps({"scrape_configs": jobs}))
    listens = f"127.0.0.1:{free_port()}"
    words = [f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(["prometheus", *words, f"--web.listen-address={listens}"], stdout=log, stderr=log)
    try:
        deadline, found = time.monotonic() + 120, []
        while not found:
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            with suppress(OSError):
                found = json.loads(read(f"http://{listens}/api/v1/query?query=recycle_iteration")[1])["data"]["result"]
            time.sleep(0.2)
        assert [each["value"][1] for each in found] == ["4"]
    finally:
        process.kill()
        process.wait()
