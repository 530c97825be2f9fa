import math
from xml.etree import ElementTree as Xml

from recycle.view.losses import LossDifference, Mark, compare_losses, draw_losses

NAMESPACE = "{http://www.w3.org/2000/svg}"


def groups(picture, kind):
    return picture.findall(f"{NAMESPACE}g[@class='{kind}']")


def path(group):
    return group.find(f"{NAMESPACE}path")


def points(group):
    return [tuple(map(float, point.split())) for point in path(group).get("d").removeprefix("M").split("L")]


def test_a_curve_per_name_with_a_mark_per_point():
    curves = {"training": [(0, 5.5), (1, 5.0), (2, 4.5)], "held-out": [(0, 5.6), (2, 4.6)]}
    picture = Xml.fromstring(draw_losses("two", curves))
    lines = [points(each) for each in groups(picture, "curve")]
    assert list(map(len, lines)) == [3, 2]
    assert [each.find(f"{NAMESPACE}title").text for each in groups(picture, "point")][:2] == [
        "training, iteration 0: 5.5000",
        "training, iteration 1: 5.0000",
    ]
    # A falling loss goes down the page.
    heights = [down for _, down in lines[0]]
    assert heights == sorted(heights)


def test_names_stay_text_and_the_bytes_are_the_same():
    once = draw_losses("<script>alert(1)</script>", {"a & b": [(0, 1.0)]})
    assert "<script>" not in once
    assert once == draw_losses("<script>alert(1)</script>", {"a & b": [(0, 1.0)]})


def test_one_point_and_none_are_drawn():
    Xml.fromstring(draw_losses("one", {"a": [(0, 1.0)]}))
    Xml.fromstring(draw_losses("none", {}))


def test_marks_stand_at_their_steps_and_a_curve_is_seen_through_the_one_above_it():
    curves = {"undisturbed": [(1, 5.0), (2, 4.0)], "run": [(1, 5.0), (2, 4.0)]}
    marks = [Mark(1, "W1_2 died", good=False), Mark(2, "W1_2 is back", good=True)]
    picture = Xml.fromstring(draw_losses("two", curves, marks, ["run"]))
    texts = [each.text for each in picture.findall(f"{NAMESPACE}text")]
    assert {"W1_2 died", "W1_2 is back"} <= set(texts)
    turned = [each.text for each in picture.findall(f"{NAMESPACE}text") if each.get("transform")]
    assert turned == ["W1_2 died", "W1_2 is back"]
    lines = groups(picture, "curve")
    assert [path(line).get("stroke-dasharray") is not None for line in lines] == [False, True]
    across = [step for step, _ in points(lines[0])]
    assert [points(each)[0][0] for each in groups(picture, "mark")] == across


def test_the_largest_difference_is_relative_and_over_the_steps_that_both_have():
    reference = [(1, 2.0), (2, -4.0), (3, 1.0)]
    assert compare_losses([(2, -4.5), (3, 1.1), (4, 9.0)], reference) == LossDifference(2, 0.125, 2)
    assert compare_losses(reference, reference) == LossDifference(3, 0.0, 1)
    assert compare_losses([(4, 1.0)], reference) is None
    assert compare_losses([(1, 0.0)], [(1, 0.0)]) == LossDifference(1, 0.0, 1)
    assert compare_losses([(1, math.nan)], [(1, math.nan)]) == LossDifference(1, 0.0, 1)
    assert compare_losses([(1, 9.0), (2, math.nan)], reference) == LossDifference(2, math.inf, 2)
    assert compare_losses(reference, [(1, 9.0), (3, math.nan)]) == LossDifference(2, math.inf, 3)


def test_what_is_not_finite_is_left_out():
    curve = [(0, 4.0), (1, math.nan), (2, 2.0), (3, math.inf)]
    assert draw_losses("some", {"a": curve}) == draw_losses("some", {"a": [(0, 4.0), (2, 2.0)]})
    Xml.fromstring(draw_losses("none", {"a": [(0, math.nan)]}))
