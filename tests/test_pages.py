"""What tutorials and how-to pages mark as to be run is run, as it stands."""

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


def test_a_page_that_fails_is_told_by_its_block(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text("<!-- file: a.txt -->\n```\nhere\n```\n\n<!-- run -->\n```sh\ngrep there a.txt\n```\n")
    with pytest.raises(AssertionError, match=r"grep there a\.txt"):
        run_page(page, tmp_path, long=False)


def test_a_page_that_shows_another_output_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    text = "<!-- run -->\n```sh\nseq 2\n```\n\n<!-- output -->\n```\n1\n2\n```\n"
    page.write_text(text)
    run_page(page, tmp_path, long=False)
    page.write_text(text.replace("\n2\n", "\n3\n"))
    with pytest.raises(AssertionError, match="it is\n1\n2"):
        run_page(page, tmp_path, long=False)


def test_what_waits_for_a_text_comes_after_it_and_the_rest_is_ended(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- run: background -->\n```sh\nbash -c 'echo begun > begun; echo ready; sleep 600'\n```\n\n"
        '<!-- run: after "ready" -->\n```sh\ngrep begun begun\n```\n'
    )
    run_page(page, tmp_path, long=True)
