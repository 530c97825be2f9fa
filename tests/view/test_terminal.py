import io

import msgspec
import pytest
from rich.console import Console

from recycle.view.subject import subject_of
from recycle.view.terminal import draw, listing
from tests.view.samples import chart_of, small


def plain(chart, width):
    return "".join(f"{line.plain.rstrip()}\n" for line in draw([chart], width, color=False)[0])


def test_the_worked_example(worked, golden):
    name, plan = worked
    golden(f"view/{name}.txt", plain(chart_of(plan), 100))


def test_grouped_by_pipeline_in_80_columns(staggered, golden):
    golden("view/4-staggered-pipelines.txt", plain(chart_of(staggered, grouping="pipeline"), 80))


def test_two_iterations(staggered, golden):
    golden("view/4-staggered-twice.txt", plain(chart_of(staggered, iterations=2), 160))


def test_with_colours(fused, golden):
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, color_system="truecolor", width=100)
    for line in draw([chart_of(fused)], 100)[0]:
        console.print(line, soft_wrap=True)
    golden("view/2-fused.ansi", output.getvalue())


def test_a_list_has_a_line_per_instruction_and_no_times(fused, golden):
    lines = list(listing(subject_of(fused, "fused")))
    assert len(lines) == sum(map(len, fused.programs.values()))
    golden("view/2-fused.list.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize("width", [1, 5, 20, 33, 40, 79])
def test_no_line_is_wider_than_the_terminal(staggered, width):
    [lines] = draw([chart_of(staggered)], width)
    assert max(line.cell_len for line in lines) <= width


def test_in_a_narrow_terminal_a_column_stands_for_several_instructions(staggered, golden):
    text = plain(chart_of(staggered), 20)
    assert "shows one moment in it" in " ".join(text.split())
    golden("view/4-staggered-narrow.txt", text)


def test_long_times_are_drawn_in_columns_of_half_the_shortest_instruction():
    text = plain(chart_of(small(stages=2, micro_batches=2, forward=1000, input_gradient=1301, weight_gradient=900)), 80)
    assert "a column is" in text
    assert len(max(text.splitlines(), key=len)) <= 80


def test_a_role_is_named(staggered):
    from recycle.job import Server

    plan = msgspec.structs.replace(staggered, roles={Server(2, 2): Server(1, 2)})
    text = plain(chart_of(plan), 100)
    assert "W2_2 as W1_2" in text


def test_a_coarse_row_shows_each_kind_as_often_as_it_has_time():
    plan = small(stages=2, micro_batches=60, forward=30, input_gradient=20, weight_gradient=10)
    chart = chart_of(plan)
    [lines] = draw([chart], 80, color=False)
    row = next(line.plain for line in lines if line.plain.startswith("W0_0"))
    cells = row[5:].split("  ")[0]
    server = next(chart.rows())
    for letter, length in (("F", 30), ("I", 20), ("W", 10)):
        share = length * 60 / chart.end
        kinds = {span.instruction.op.value for span in server.spans}
        if letter in kinds:
            assert cells.count(letter) == pytest.approx(share * len(cells.rstrip()), abs=3)


def test_the_end_of_a_long_run_is_seen(staggered):
    [lines] = draw([chart_of(staggered, iterations=40)], 80, color=False)
    row = next(line.plain for line in lines if line.plain.startswith("W0_0"))
    cells = row[len("W0_0 ") : 80 - 17]
    assert len(set(cells[len(cells) // 2 :]) - set(". ")) >= 3


def test_schedules_below_each_other_have_one_scale(fused, staggered):
    drawn = draw([chart_of(fused), chart_of(staggered)], 100, color=False)
    rows = [next(line.plain[5:80] for line in lines if line.plain.startswith("W0_0")) for lines in drawn]
    ends = [len(row.rstrip(". ")) for row in rows]
    assert ends[0] > ends[1]
    assert [lines[-1].plain.split("a column is ")[1] for lines in drawn] == ["0.5 slots"] * 2
