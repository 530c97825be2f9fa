import os
import socket
import subprocess
import sys
import time
from contextlib import suppress

import msgspec
import pytest

from harness.examples import QUICK, paper_plan
from recycle.errors import UserError
from recycle.job import Job, Stage
from recycle.placement import PlacedPipeline, PlacedServer
from recycle.plan.document import save_plan
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from recycle.record.history import History
from recycle.record.processes import numbering
from recycle.record.reading import load_lines
from recycle.record.recording import CopyLine, DeathLine, EndedLine, IterationLine, ProcessLine, ViewLine
from recycle.record.totals import totals_of
from recycle.view.watching import SHOWN, WatchedRun
from tests.record.test_following import append
from tests.record.test_latest import SERVERS, write_run
from tests.view.disturbed import VICTIM, write_disturbed


@pytest.fixture
def whole(tmp_path):
    """The recordings of a whole run: the lines of each file."""
    folder = write_disturbed(tmp_path / "whole")
    files = {file.name: file.read_bytes().splitlines(keepends=True) for file in sorted(folder.rglob("*.jsonl"))}
    # As in a run, who tells of a view has told of those before it.
    files["W0_0.jsonl"][1:3] = files["launcher.jsonl"][1:4]
    return files


@pytest.fixture
def planned(tmp_path):
    """The folder of a run that has its plan."""
    save_plan(paper_plan(failed=()), tmp_path / "plan.json")
    return tmp_path


def look(run):
    """Its state, as it is now."""
    run.look()
    return run.state()


def write(folder, files, share):
    """As much of each file as there would be when a run has come so far."""
    (folder / "events").mkdir(parents=True, exist_ok=True)
    for name, lines in files.items():
        (folder / "events" / name).write_bytes(b"".join(lines[: int(len(lines) * share)]))


def watched(folder, files, *shares):
    run = WatchedRun(folder)
    states = []
    for share in shares:
        write(folder, files, share)
        states.append(look(run))
    return run, states


def test_the_iterations_before_a_return_are_shown_to_those_who_look_late(planned):
    """The file of a server's first life is read behind that of its second one."""
    servers = ["W0_0", "W0_1"]
    head, *_ = load_lines(write_disturbed(planned / "other"))
    (planned / "events").mkdir()
    views = [ViewLine(each, float(each), servers, [], 2 * each, "", "memory", 22, 1.0, "") for each in range(2)]
    lives = {"W0_0": range(4), "W0_1": range(2), "W0_1#1": range(2, 4)}
    for name, steps in lives.items():
        losses = [1.0] if name.startswith("W0_1") else []
        made = [IterationLine(name.partition("#")[0], step, 1.0, losses, 1, step // 2) for step in steps]
        append(planned / "events" / f"{name}.jsonl", head, *views, *made)
    assert look(WatchedRun(planned)).step == 4
    assert look(WatchedRun(planned)).steps == (1, 2, 3, 4)


def test_before_anything_is_written_nothing_is_said(tmp_path):
    run = WatchedRun(tmp_path)
    state = look(run)
    assert (state.step, state.loss, state.servers, state.events) == (0, None, (), ())
    assert run.panel().chart.end == 0


@pytest.mark.parametrize("shares", [(1,), (0.1, 0.3, 0.5, 0.9, 1), (0.02, 0.6, 1)])
def test_in_the_end_the_figures_are_those_of_the_recordings(planned, whole, shares):
    run, states = watched(planned, whole, *shares)
    totals = totals_of(load_lines(planned))
    last = states[-1]
    assert last.step == 4
    assert last.losses == tuple(total.loss for total in totals)
    assert last.loss == totals[-1].loss
    assert last.rates == pytest.approx([18 / total.seconds for total in totals])
    assert (last.failures, last.left, last.iterations) == (1, 0, None)
    assert last.live == 12
    assert any(
        each.text.startswith("W1_2 died: was killed by signal 9") and each.kind == "failure" for each in last.events
    )
    assert run.panel().timeline.iterations == SHOWN
    assert run.panel().timeline.first == 4 - SHOWN


@pytest.mark.parametrize(
    ("zeros", "seen"),
    [((), False), ((1.7e9,), True), ((1.7e9, 1.7e9 + 2), True), ((1.7e9, 1.6e9), False)],
    ids=["not recorded", "one process", "two", "started again after a reboot"],
)
def test_events_have_clock_times_if_recordings_agree_on_them(tmp_path, whole, zeros, seen):
    write(tmp_path, whole, 1)
    for number, zero in enumerate(zeros):
        append(tmp_path / "events" / "launcher.jsonl", ProcessLine("launcher", number, "here", ahead=5e5, zero=zero))
    _, (state,) = watched(tmp_path, {}, 1)
    death = next(line for line in load_lines(tmp_path) if isinstance(line, DeathLine))
    [failure] = [each for each in state.events if each.kind == "failure"]
    moment = time.localtime(1.7e9 + 0.5 + death.time / 1e6)
    assert failure.clock == (time.strftime("%Y-%m-%d %H:%M:%S", moment) if seen else "")


def test_what_has_not_changed_has_the_same_version(tmp_path, whole):
    run, (state,) = watched(tmp_path, whole, 0.5)
    assert look(run).version == state.version > 0


def test_servers_have_their_processes_and_are_dead_until_a_view_has_them_again(planned, whole):
    launcher = whole.pop("launcher.jsonl")
    run, (state,) = watched(planned, whole, 0)
    assert {server.state for server in state.servers} == {"starting"}
    append(planned / "events" / f"{VICTIM}.jsonl", ProcessLine(str(VICTIM), 17, "here"))
    # The head, the first view, the death and the view without it.
    write(planned, {"launcher.jsonl": launcher[:4]}, 1)
    victim = next(server for server in look(run).servers if server.server == str(VICTIM))
    assert (victim.state, victim.pid, victim.host) == ("dead", 17, "here")
    assert sum(server.state == "live" for server in run.state().servers) == 11
    append(planned / "events" / f"{VICTIM}#1.jsonl", ProcessLine(f"{VICTIM}#1", 18, "there"))
    write(planned, {"launcher.jsonl": launcher}, 1)
    victim = next(server for server in look(run).servers if server.server == str(VICTIM))
    assert (victim.state, victim.pid, victim.host) == ("live", 18, "there")


def test_where_the_state_is_follows_from_who_is_live_and_what_hosts_have(planned, whole):
    run, (state,) = watched(planned, {"launcher.jsonl": whole["launcher.jsonl"][:4]}, 1)
    assert [(each.what, each.text) for each in state.copies] == [
        ("stage 0", "on 3 live servers"),
        ("stage 1", "on 3 live servers"),
        ("stage 2", "on 2 live servers"),
        ("stage 3", "on 3 live servers"),
    ]
    for number, server in enumerate(("W0_2", "W2_2")):
        append(planned / "events" / f"{server}.jsonl", CopyLine(server, 2, 1, 4, number, 2, 4, ["here"]))
    assert look(run).version > state.version
    assert run.state().copies[2].text == "on 2 live servers; after iteration 4 in memory of here"


def test_the_rate_of_a_smaller_batch_is_that_of_its_own_micro_batches(planned):
    (planned / "events").mkdir()
    line = IterationLine("W0_3", 0, 2.0, [1.0], 1, micro_batches=6)
    view = ViewLine(0, 0.0, ["W0_3"], [], 0, "the run begins", "memory", 30, 1.0, "the first plan")
    append(planned / "events" / "W0_3.jsonl", view, line, msgspec.structs.replace(line, step=1, micro_batches=0))
    assert look(WatchedRun(planned)).rates == (3.0, 9.0)


def test_where_pipelines_differ_each_chunk_has_its_servers_also_when_chunks_have_moved(tmp_path):
    stage = Stage(1, 1, 1, 1, 0, 1, 0, 9)
    home, moved = (
        tuple(
            PlacedPipeline(2, tuple(PlacedServer(chunks, 9) for chunks in pipeline))
            for pipeline in ((first, (1,), last), ((0, 1), (2,)))
        )
        for first, last in (((0,), (2,)), ((0, 2), ()))
    )
    job = Job(2, 2, (stage,) * 3, (1, 1), layout=home)
    save_plan(make_plan(job, (), Mode(), QUICK), tmp_path / "plan.json")
    (tmp_path / "events").mkdir()
    everybody = [str(each) for each in job.servers()]
    run = WatchedRun(tmp_path)
    for epoch, (layout, gone, alone) in enumerate([(None, "", ""), (None, "W0_2", "chunk 2"), (moved, "W0_2", "")]):
        live = [each for each in everybody if each != gone]
        view = ViewLine(epoch, epoch, live, [], 0, "because", "memory", 9, 1.0, "", layout=layout)
        append(tmp_path / "events" / "W0_0.jsonl", view)
        copies = look(run).copies
        assert [each.what for each in copies] == ["chunk 0", "chunk 1", "chunk 2"]
        assert [each.what for each in copies if each.last] == ([alone] if alone else [])


def test_what_left_is_no_failure_and_how_far_the_run_has_to_go_is_known(planned, whole):
    run, _ = watched(planned, whole, 1)
    gone = DeathLine("W0_0", 0, 140_000.0, "leaves: SIGTERM", "itself", 3)
    append(planned / "events" / "launcher.jsonl", gone)
    for server, began, iterations in (("W0_1", None, None), ("W1_0", 5.0, 60), ("W1_1", 8.0, 90), ("W2_1", 7.0, 90)):
        line = ProcessLine(server, os.getpid(), "elsewhere", time=began, iterations=began and int(began) * 10 + 10)
        append(planned / "events" / f"{server}.jsonl", line)
        state = look(run)
        assert (state.failures, state.left, state.iterations) == (1, 1, iterations)
    (leaving,) = (each for each in state.events if each.kind == "leaving")
    assert leaving.text == "W0_0 leaves: SIGTERM"


def test_a_process_that_is_gone_is_dead_and_a_run_without_any_has_ended(planned, whole):
    here = socket.gethostname()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    run, _ = watched(planned, {"launcher.jsonl": whole["launcher.jsonl"]}, 1)
    append(planned / "events" / "W0_0.jsonl", ProcessLine("W0_0", ended.pid, here))
    append(planned / "events" / "W0_1.jsonl", ProcessLine("W0_1", os.getpid(), here))
    state = look(run)
    assert [each.state for each in state.servers[:2]] == ["dead", "live"]
    assert not state.ended
    assert state.silent < 600
    append(planned / "events" / "W0_1.jsonl", ProcessLine("W0_1", ended.pid, here))
    state = look(run)
    assert state.ended
    assert [each.state for each in state.servers[:3]] == ["ended", "ended", "live"]


def test_of_a_process_of_another_container_it_is_not_said_that_it_has_ended(planned, whole):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    run, _ = watched(planned, {"launcher.jsonl": whole["launcher.jsonl"]}, 1)
    for number, of in enumerate((numbering(), 17)):
        line = ProcessLine(f"W0_{number}", ended.pid, socket.gethostname(), numbering=of)
        append(planned / "events" / f"W0_{number}.jsonl", line)
    assert [each.state for each in look(run).servers[:2]] == ["dead", "live"]


def test_a_run_on_other_machines_has_ended_when_all_that_trained_last_say_so(planned, whole):
    run, (state,) = watched(planned, whole, 1)
    servers = [each.server for each in state.servers if each.state == "live"]
    for name in servers:
        append(planned / "events" / f"{name}.jsonl", ProcessLine(name, 17, "elsewhere"))
    for name in servers:
        assert not look(run).ended
        append(planned / "events" / f"{name}.jsonl", EndedLine(name))
    state = look(run)
    assert state.ended
    assert {each.state for each in state.servers if each.server in servers} == {"ended"}
    # It goes on there.
    append(planned / "events" / f"{servers[0]}.jsonl", ProcessLine(servers[0], 18, "elsewhere"))
    assert not look(run).ended


def test_after_its_last_iteration_a_run_has_ended_with_its_servers_and_not_with_its_launcher(planned, whole):
    here = socket.gethostname()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    run, _ = watched(planned, whole, 1)
    append(planned / "events" / "launcher.jsonl", ProcessLine("launcher", os.getpid(), here))
    append(planned / "events" / "W0_0.jsonl", ProcessLine("W0_0", ended.pid, here, iterations=4))
    state = look(run)
    assert state.ended
    assert state.servers[0].state == "ended"
    append(planned / "events" / "W0_0.jsonl", ProcessLine("W0_0", ended.pid, here, iterations=5))
    state = look(run)
    assert not state.ended
    assert state.servers[0].state == "dead"


def test_a_cost_is_told_when_it_is_known(planned, whole):
    for share in (0, 0.2, 0.4, 0.6, 0.8, 1):
        _, (state,) = watched(planned, whole, share)
        assert not state.cost.startswith("0 ms")
    assert state.cost


def test_a_process_that_began_behind_all_that_was_written_is_another_one_with_its_number(planned, whole):
    run, _ = watched(planned, {"launcher.jsonl": whole["launcher.jsonl"]}, 1)
    append(planned / "events" / "W0_0.jsonl", ProcessLine("W0_0", os.getpid(), socket.gethostname()))
    assert not look(run).ended
    long_ago = time.time() - 86_400
    for file in (planned / "events").iterdir():
        os.utime(file, (long_ago, long_ago))
    state = look(WatchedRun(planned))
    assert state.ended
    assert state.servers[0].state == "ended"


def test_each_server_has_the_memory_of_its_last_iteration_beside_its_limit(planned, whole):
    _, (begun, last) = watched(planned, whole, 0, 1)
    assert {each.memory for each in begun.servers} == {""}
    assert {each.memory for each in last.servers} == {f"4/{paper_plan().job.stages[0].limit}"}


def test_a_link_that_leads_to_another_run_shows_that(tmp_path, whole):
    for name, share in (("one", 1), ("two", 0.4)):
        write(tmp_path / name, whole, share)
        save_plan(paper_plan(failed=()), tmp_path / name / "plan.json")
    link = tmp_path / "run"
    link.symlink_to("one")
    run = WatchedRun(link)
    first = look(run)
    link.unlink()
    link.symlink_to("two")
    second = look(run)
    assert second.version > first.version
    assert second.step == look(WatchedRun(tmp_path / "two")).step < first.step


@pytest.mark.parametrize("target", ["none yet", "nowhere"])
def test_a_link_that_leads_to_no_run_shows_none_or_says_so(tmp_path, whole, target):
    write(tmp_path / "one", whole, 1)
    (tmp_path / "none yet").mkdir()
    link = tmp_path / "run"
    link.symlink_to("one")
    run = WatchedRun(link)
    first = look(run)
    link.unlink()
    link.symlink_to(target)
    if target == "nowhere":
        with pytest.raises(UserError, match=f"{link}: cannot be read"):
            run.look()
    else:
        assert look(run).step == 0
    link.unlink()
    link.symlink_to("one")
    assert look(run).step == first.step > 0


def test_of_a_run_that_went_back_to_a_checkpoint_all_servers_are_drawn_from_there_on(tmp_path):
    write_run(tmp_path, [(0, 100, True), (40, 5, True)])
    run = WatchedRun(tmp_path)
    run.look()
    line = run.panel().timeline
    assert {(str(span.server), line.first + span.iteration) for span in line.spans} == {
        (server, iteration) for server in SERVERS for iteration in (43, 44, 45)
    }


@pytest.mark.parametrize("spoilt", [b"\0" * 40 + b"\n", b"{\n", b""])
def test_one_bad_read_loses_nothing(planned, whole, spoilt):
    run, _ = watched(planned, whole, 0.3)
    write(planned, whole, 0.6)
    file = sorted((planned / "events").iterdir())[-1]
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2] + spoilt)
    with suppress(UserError):
        run.look()
    _, (last,) = watched(planned, whole, 1)
    state = look(run)
    assert (state.step, state.losses, state.events) == (last.step, last.losses, last.events)


def test_the_changes_of_a_run_are_gone_through_as_often_for_many_deaths_as_for_one(tmp_path, monkeypatch):
    (tmp_path / "events").mkdir()
    gone_through, changes = [], History.changes
    monkeypatch.setattr(History, "changes", property(lambda self: gone_through.append(self) or changes.fget(self)))
    run, counts = WatchedRun(tmp_path), []
    for epoch in range(5):
        view = ViewLine(epoch, epoch, ["W0_0"], [], 10 * epoch, "because", "memory", 9, 1.0, "")
        death = DeathLine("W1_0", epoch, float(epoch), "died", "agent", epoch)
        append(tmp_path / "events" / "W0_0.jsonl", view, *([death] if epoch else []))
        gone_through.clear()
        state = look(run)
        counts.append(len(gone_through))
    assert len(set(counts)) == 1
    assert [each.step for each in state.events if each.kind == "failure"] == [11, 21, 31, 41]
