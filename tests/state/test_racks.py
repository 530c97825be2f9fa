import pytest

from recycle.state.errors import StateError
from recycle.state.redundancy import Racks


def test_hosts_are_found_by_any_of_their_names():
    racks = Racks.parse("a1, a2/b1,10.0.0.9")
    assert [racks.find("a2", "10.0.0.2"), racks.find("b2", "10.0.0.9"), racks.find("c", "d")] == ["a1", "b1", ""]
    racks.require_known({"a1", "a2", "b1", "b2", "10.0.0.9"})
    with pytest.raises(StateError, match=r"racks: b1 is no host of this run; name them as one of 10.0.0.9, a1, a2"):
        racks.require_known({"a1", "a2", "10.0.0.9"})
    assert not Racks.parse("")


@pytest.mark.parametrize(
    ("text", "said"), [("a,,b", "with commas"), ("a/", "with commas"), ("a,b/a", "a is named twice")]
)
def test_what_names_no_racks_is_refused(text, said):
    with pytest.raises(StateError, match=said):
        Racks.parse(text)
