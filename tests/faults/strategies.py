"""Random faults for property tests."""

from hypothesis import strategies as st

from recycle.faults.menu import Fault, Faults, Kind
from recycle.faults.pattern import InstructionPattern
from recycle.job import Server
from recycle.plan.instruction import Op

servers = st.builds(Server, st.integers(0, 20), st.integers(0, 20))
seconds = st.integers(0, 10**15).map(lambda nanoseconds: round(nanoseconds / 1e9, 9))
lengths = st.none() | seconds.filter(bool)


@st.composite
def patterns(draw):
    op = draw(st.sampled_from(Op))
    text = f"{draw(st.integers(0, 99))}{op.value}"
    if not op.is_update:
        depth = draw(st.integers(0, 3 if op.is_transfer else 2))
        parts = ("{}", ".{}", ">{}" if op.is_send else "<{}")
        values = (st.integers(0, 99), st.integers(0, 99), servers)
        for part, value in list(zip(parts, values, strict=True))[:depth]:
            text += part.format(draw(value))
    return InstructionPattern(text)


@st.composite
def faults(draw):
    kind = draw(st.sampled_from(Kind))
    most = 3 if kind in (Kind.KILL, Kind.AGENT_KILL) else 1
    fields = {"kind": kind}
    if kind is not Kind.STORE_LOSS:
        fields["servers"] = tuple(draw(st.lists(servers, min_size=1, max_size=most, unique=True)))
    if kind.can_have_time and draw(st.booleans()):
        fields["at"] = draw(seconds)
    else:
        fields["step"] = draw(st.integers(0, 10**9))
        if not kind.is_outside_worker:
            fields["incarnation"] = draw(st.integers(0, 3))
            if kind is not Kind.NAN:
                fields["instruction"] = draw(st.none() | patterns())
    if kind in (Kind.STOP, Kind.SLOW, Kind.DISK_FULL):
        fields["duration"] = draw(lengths)
    if kind is Kind.SLOW:
        fields["factor"] = draw(st.floats(1, 1e3, exclude_min=True))
    return Fault(**fields)


fault_lists = st.builds(Faults, st.lists(faults(), max_size=6).map(tuple))
