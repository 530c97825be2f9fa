import io

import msgspec
import pytest
from rich.console import Console

from recycle.view.subject import subject_of
from recycle.view.terminal import draw, listing
from tests.view.samples import chart_of, small


def plain(chart, width, color=False):
    return "".join(f"{line.plain.rstrip()}\n" for line in draw(chart, width, color))


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
    for line in draw(chart_of(fused), 100):
        console.print(line, soft_wrap=True)
    golden("view/2-fused.ansi", output.getvalue())


def test_a_list_has_a_line_per_instruction_and_no_times(fused, golden):
    lines = list(listing(subject_of(fused, "fused")))
    assert len(lines) == sum(map(len, fused.programs.values()))
    golden("view/2-fused.list.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize("width", [1, 5, 20, 33, 40, 79])
def test_no_line_is_wider_than_the_terminal(staggered, width):
    lines = draw(chart_of(staggered), width)
    assert max(line.cell_len for line in lines) <= width


def test_a_narrow_terminal_keeps_the_names_and_the_start_and_says_that_it_is_cropped(staggered, golden):
    text = plain(chart_of(staggered), 20)
    assert "cropped" in text
    golden("view/4-staggered-narrow.txt", text)


def test_the_smallest_job():
    text = plain(chart_of(small()), 80)
    assert "W0_0" in text
    assert "dead none" in text


def test_long_times_are_drawn_in_columns_of_half_the_shortest_instruction():
    text = plain(chart_of(small(stages=2, micro_batches=2, forward=1000, input_gradient=1301, weight_gradient=900)), 80)
    assert "a column is" in text
    assert len(max(text.splitlines(), key=len)) <= 80


def test_every_row_ends_with_its_bubble_and_its_peak_memory(fused):
    row = next(line for line in plain(chart_of(fused), 100).splitlines() if line.startswith("W0_2"))
    assert row.split()[-2:] == ["23%", "2/2"]


def test_a_role_is_named(staggered):
    from recycle.job import Server

    plan = msgspec.structs.replace(staggered, roles={Server(2, 2): Server(1, 2)})
    text = plain(chart_of(plan), 100)
    assert "W2_2 as W1_2" in text
