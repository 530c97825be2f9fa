"""What tutorials, how-to pages and the reference mark as to be run is run, as it stands."""

import pytest

from harness.runnable_pages import MARKED, PAGES, blocks_of, run_page

QUICK = [page for page in PAGES if any(each.mark == "run" and not each.is_long for each in blocks_of(page))]
LONG = [page for page in PAGES if any(each.is_long for each in blocks_of(page))]


def name_of(page):
    return page.stem


@pytest.mark.parametrize("page", QUICK, ids=name_of)
def test_what_takes_seconds_runs_as_it_stands(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(page, tmp_path, long=False)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", LONG, ids=name_of)
def test_the_whole_page_runs_as_it_stands(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(page, tmp_path, long=True)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_mark_stands_before_a_block(page):
    text = page.read_text()
    assert sum(map(text.count, ("<!-- run", "<!-- file", "<!-- output"))) == len(MARKED.findall(text))
