import json
import multiprocessing
import zipfile

import msgspec
import pytest

from harness.examples import QUICK, paper_job
from recycle.errors import JobError, NoPlanError, PlanFileError, UserError
from recycle.job import Server
from recycle.plan.catalogue import Catalogue
from recycle.plan.checker import check_plan
from recycle.plan.mode import Mode
from recycle.planner import catalogue as making
from recycle.planner.catalogue import failure_vectors, make_catalogue

FORK = multiprocessing.get_context("fork")
JOB = paper_job(released=0)


def make(path, job=JOB, failures=2, watch=lambda *_: None, workers=0):
    make_catalogue(path, job, Mode(), failures, QUICK, "lowered", watch, workers)
    return path


def interrupt(*_):
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def catalogue_file(tmp_path_factory):
    return make(tmp_path_factory.mktemp("catalogue") / "catalogue.zip")


def test_every_vector_is_there_once_and_none_that_kills_a_stage():
    vectors = list(failure_vectors(JOB, 2))
    assert len(vectors) == len(set(vectors)) == 1 + 4 + 10
    assert all(max(counts) <= 2 and sum(counts) <= 2 for counts in vectors)
    assert all(max(counts) <= 1 for counts in failure_vectors(paper_job(pipelines=2), 3))
    assert len(list(failure_vectors(paper_job(pipelines=1), 3))) == 1


@pytest.mark.parametrize(
    "failed", [(), (Server(0, 0),), (Server(1, 2),), (Server(0, 3), Server(1, 2)), (Server(0, 1), Server(2, 1))]
)
def test_a_look_up_gives_a_legal_plan_in_the_names_that_were_asked_for(catalogue_file, failed):
    found = Catalogue(catalogue_file, JOB).look_up(failed)
    plan = found.plan()
    assert tuple(plan.dead) == failed
    assert check_plan(plan) == ()
    assert found.entry.period == plan.period
    for server in plan.programs:
        assert found.program(server) == plan.programs[server]
        assert found.plan_of(server) == msgspec.structs.replace(plan, programs={server: plan.programs[server]})


def test_one_outlives_its_file_and_serves_both_sides_of_a_fork(tmp_path, catalogue_file):
    path = tmp_path / "held.zip"
    path.write_bytes(catalogue_file.read_bytes())
    catalogue, expected = Catalogue(path, JOB), Catalogue(catalogue_file, JOB).look_up([Server(1, 2)]).plan()
    path.unlink()
    looks = [FORK.Process(target=look_up_often, args=(catalogue, dead)) for dead in (Server(0, 0), Server(1, 3))]
    for each in looks:
        each.start()
    for _ in range(20):
        assert catalogue.look_up([Server(1, 2)]).plan() == expected
    for each in looks:
        each.join()
        assert each.exitcode == 0


def look_up_often(catalogue, dead):
    for _ in range(20):
        assert tuple(catalogue.look_up([dead]).plan().dead) == (dead,)


def test_a_view_without_a_plan_is_said(catalogue_file):
    with pytest.raises(NoPlanError, match=r"no plan for failure counts \(1, 1, 1, 0\).*--failures 3"):
        Catalogue(catalogue_file).look_up([Server(0, 0), Server(1, 1), Server(2, 2)])
    with pytest.raises(JobError, match="W9_9"):
        Catalogue(catalogue_file).look_up([Server(9, 9)])


def test_another_job_is_refused_with_the_field_that_differs(catalogue_file):
    with pytest.raises(PlanFileError, match=r"another job .*micro_batches is 6 there and 7 here"):
        Catalogue(catalogue_file, paper_job(released=0, micro_batches=7))
    with pytest.raises(PlanFileError, match=r"another job .*stage 0 is"):
        Catalogue(catalogue_file, paper_job(released=1))


def test_the_same_job_makes_the_same_bytes(catalogue_file, tmp_path):
    assert make(tmp_path / "again.zip").read_bytes() == catalogue_file.read_bytes()


def test_an_interrupted_run_goes_on_where_it_was(tmp_path, monkeypatch, catalogue_file):
    path = tmp_path / "catalogue.zip"

    with pytest.raises(KeyboardInterrupt):
        make(path, watch=lambda done, *_: done == 5 and interrupt())
    assert not path.exists()
    planned = []
    real = making.make_plan
    monkeypatch.setattr(making, "make_plan", lambda *arguments: planned.append(arguments) or real(*arguments))
    make(path)
    assert len(planned) == 15 - 5
    assert path.read_bytes() == catalogue_file.read_bytes()
    assert [each.name for each in tmp_path.iterdir()] == ["catalogue.zip"]


def test_processes_make_the_same_catalogue(tmp_path, catalogue_file):
    done = []
    path = make(tmp_path / "catalogue.zip", watch=lambda *each: done.append(each), workers=2)
    assert path.read_bytes() == catalogue_file.read_bytes()
    assert [(number, total) for number, total, _ in done] == [(number, 15) for number in range(1, 16)]
    assert {entry.counts for _, _, entry in done} == set(failure_vectors(JOB, 2))


def test_an_interrupt_ends_the_processes_and_keeps_their_plans(tmp_path, catalogue_file):
    path = tmp_path / "catalogue.zip"

    with pytest.raises(KeyboardInterrupt):
        make(path, watch=interrupt, workers=2)
    assert not multiprocessing.active_children()
    assert list((tmp_path / "catalogue.zip.part").glob("plan-*"))
    assert make(path).read_bytes() == catalogue_file.read_bytes()


def test_another_jobs_interrupted_run_is_not_mixed_in(tmp_path):
    path = tmp_path / "catalogue.zip"

    with pytest.raises(KeyboardInterrupt):
        make(path, watch=interrupt)
    with pytest.raises(UserError, match=r"catalogue.zip.part: an interrupted run for another job"):
        make(path, job=paper_job(released=1))


@pytest.mark.parametrize("kind", ["folder", "mark of another program", "link", "file"])
def test_what_it_did_not_make_stays_where_it_is(tmp_path, kind):
    parts, mine = tmp_path / "catalogue.zip.part", tmp_path / "mine"
    folder = mine if kind == "link" else parts
    if kind == "file":
        parts.write_text("mine")
    else:
        folder.mkdir()
        (folder / "thesis.txt").write_text("mine")
        if kind != "folder":
            (folder / "mark").write_text("0" * 64 if kind == "link" else "mine")
    if kind == "link":
        parts.symlink_to(mine)
    before = {each: each.is_dir() or each.read_bytes() for each in tmp_path.rglob("*")}
    with pytest.raises(UserError, match=r"catalogue.zip.part: .* something else is there; move it away"):
        make(tmp_path / "catalogue.zip")
    assert {each: each.is_dir() or each.read_bytes() for each in tmp_path.rglob("*")} == before


def test_damaged_files_are_refused(tmp_path, catalogue_file):
    path = tmp_path / "bad.zip"

    def refused(message):
        with pytest.raises(PlanFileError, match=message):
            Catalogue(path)

    def write(**members):
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)

    content = catalogue_file.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    refused("no catalogue, or it is cut short")
    path.write_text("{}")
    refused("no catalogue")
    with pytest.raises(UserError, match="cannot be read"):
        Catalogue(tmp_path / "none.zip")
    with zipfile.ZipFile(catalogue_file) as archive:
        index, references = archive.read("index.json"), archive.read("references")
    write(**{"index.json": json.dumps({**json.loads(index), "version": 9})})
    refused("version 9 of the recycle catalogue format")
    write(**{"index.json": index})
    refused("no catalogue")
    write(**{"index.json": index, "references": references})
    with pytest.raises(PlanFileError, match=r"plans/0-0-0-0 is damaged"):
        Catalogue(path).look_up([])
