"""Messages to the launcher: what they are on their way, and what a process tells when it ends."""

import msgspec
import pytest

from recycle.errors import RunFailed, UserError
from recycle.runtime.errors import RunError
from recycle.runtime.launch.process.messages import (
    ErrorMessage,
    FailureMessage,
    HelloMessage,
    ReportMessage,
    decode,
    encode,
    run_and_tell,
)

MESSAGES = [
    HelloMessage("W0_1#2", 7),
    ReportMessage(b"\x00\xff"),
    ErrorMessage("text: is too short", run_failed=False),
    FailureMessage("Traceback\nKeyError: 'lost'"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=str)
def test_a_message_arrives_as_it_was_sent(message):
    assert decode(encode(message)) == message


@pytest.mark.parametrize("content", [b"", b"noise", msgspec.msgpack.encode({"type": "other"})])
def test_anything_else_is_refused(content):
    with pytest.raises(msgspec.DecodeError):
        decode(content)


@pytest.mark.parametrize(("error", "status"), [(RunError("text: is empty"), 2), (RunFailed("no server is left"), 1)])
def test_a_users_error_is_told_as_what_it_is(error, status):
    told = []

    def work():
        raise error

    assert run_and_tell(work, told.append) == status
    (message,) = told
    found = message.as_error()
    assert isinstance(found, UserError)
    assert (type(found), str(found)) == (type(error), str(error))


def test_any_other_error_is_told_with_where_it_was_and_the_error_itself_is_found():
    told = []

    def work():
        raise KeyError("lost")

    assert run_and_tell(work, told.append) == 1
    (message,) = told
    assert message.summary == "KeyError: 'lost'"
    assert "in work" in message.detail


def test_the_rows_around_a_failure_are_no_summary():
    detail = "recycle.Failed: W0_0, row 3: no\n  [2] 0F0.1\n> [3] 0F0.2"
    assert FailureMessage(detail).summary == "W0_0, row 3: no"
    assert FailureMessage("").summary == "it says nothing"


def test_who_ends_well_tells_nothing():
    told = []
    assert run_and_tell(lambda: 3, told.append) == 3
    assert told == []
