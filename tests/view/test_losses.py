from xml.etree import ElementTree as Xml

from recycle.view.losses import draw_losses

NAMESPACE = "{http://www.w3.org/2000/svg}"


def test_a_curve_per_name_with_a_mark_per_point():
    curves = {"training": [(0, 5.5), (1, 5.0), (2, 4.5)], "held-out": [(0, 5.6), (2, 4.6)]}
    picture = Xml.fromstring(draw_losses("two", curves))
    lines = picture.findall(f"{NAMESPACE}polyline")
    assert [len(line.get("points").split()) for line in lines] == [3, 2]
    assert [mark.find(f"{NAMESPACE}title").text for mark in picture.findall(f"{NAMESPACE}circle")][:2] == [
        "training, iteration 0: 5.5000",
        "training, iteration 1: 5.0000",
    ]
    # A falling loss goes down the page.
    heights = [float(point.split(",")[1]) for point in lines[0].get("points").split()]
    assert heights == sorted(heights)


def test_names_stay_text_and_the_bytes_are_the_same():
    once = draw_losses("<script>alert(1)</script>", {"a & b": [(0, 1.0)]})
    assert "<script>" not in once
    assert once == draw_losses("<script>alert(1)</script>", {"a & b": [(0, 1.0)]})


def test_one_point_and_none_are_drawn():
    Xml.fromstring(draw_losses("one", {"a": [(0, 1.0)]}))
    Xml.fromstring(draw_losses("none", {}))
