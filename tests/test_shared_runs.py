from multiprocessing import get_context

import pytest

from harness.shared_runs import SharedRuns


def test_of_all_processes_one_makes_a_run_and_the_others_wait_for_it(tmp_path):
    made = tmp_path / "made"

    def need(number):
        def make(folder):
            with made.open("a") as file:
                file.write(f"{number}\n")
            (folder / "file").write_text(str(number))
            return {number: [0.5]}

        left, folder = SharedRuns(tmp_path / "shared").run(("settings", 1), make, dict[int, list[float]])
        (number,) = left
        assert (folder / "file").read_text() == str(number)
        assert left == {number: [0.5]}

    processes = [get_context("fork").Process(target=need, args=(number,)) for number in range(6)]
    for each in processes:
        each.start()
    for each in processes:
        each.join()
    assert [each.exitcode for each in processes] == [0] * 6
    assert len(made.read_text().splitlines()) == 1


def test_other_settings_are_another_run(tmp_path):
    runs = SharedRuns(tmp_path)
    assert [runs.run(number, lambda _, n=number: n, int).left for number in (1, 2, 1)] == [1, 2, 1]
    assert len({runs.run(number, lambda _: 0, int).folder for number in (1, 2, 1)}) == 2


def test_what_failed_is_made_anew_from_nothing(tmp_path):
    def fail(folder):
        (folder / "half").touch()
        raise ValueError("it failed")

    runs = SharedRuns(tmp_path)
    with pytest.raises(ValueError, match="it failed"):
        runs.run(1, fail, int)
    left, folder = runs.run(1, lambda _: 2, int)
    assert left == 2
    assert list(folder.iterdir()) == []


def test_settings_that_each_process_names_otherwise_are_refused(tmp_path):
    with pytest.raises(AssertionError, match="in other words"):
        SharedRuns(tmp_path).run({"step": print.__call__, "of": object()}, lambda _: 0, int)
