"""What a process of a run tells its launcher, whichever way it goes: a pipe, a connection or torchrun's store."""

import re
import traceback
from collections.abc import Callable

import msgspec

from recycle.errors import RunFailed, UserError
from recycle.runtime.errors import RunError
from recycle.runtime.plain_words import plain

OWN = re.compile(r"^recycle\.[\w.]+: ")
"""How Python calls an error of this package, whose message is for people."""

FAILED = 1
"""The exit status of a process that has failed."""


class HelloMessage(msgspec.Struct, frozen=True, tag="hello"):
    """The first message over a connection: who speaks.

    Attributes:
        name: of the member.
        pid: of the process.
    """

    name: str
    pid: int


class WelcomeMessage(msgspec.Struct, frozen=True, tag="welcome"):
    """What the launcher answers the first message with.

    Attributes:
        clock: the name of the clock of its machine.
        time: in seconds, that this clock shows.
    """

    clock: str
    time: float


class ReportMessage(msgspec.Struct, frozen=True, tag="report"):
    """What was found or what has happened.

    Attributes:
        content: encoded as those who started the process expect it; in a training, an event.
    """

    content: bytes


class ErrorMessage(msgspec.Struct, frozen=True, tag="error"):
    """The process ends because of something that a user can mend.

    Attributes:
        text: for the user.
        run_failed: whether the run could be started, and failed.
    """

    text: str
    run_failed: bool

    def as_error(self) -> UserError:
        """The error that the launcher ends with."""
        return RunFailed(self.text) if self.run_failed else RunError(self.text)


class FailureMessage(msgspec.Struct, frozen=True, tag="failure"):
    """The process ends because of anything else.

    Attributes:
        detail: the error, and where it came from.
    """

    detail: str

    @property
    def summary(self) -> str:
        """The error itself, without where it came from and the rows of the instruction list around it."""
        errors = [line for line in self.detail.splitlines() if line and not line[0].isspace() and line[0] != ">"]
        return plain(OWN.sub("", errors[-1])) if errors else "it says nothing"


Message = HelloMessage | WelcomeMessage | ReportMessage | ErrorMessage | FailureMessage

Send = Callable[[Message], None]

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """A message as it travels."""
    return _encoder.encode(message)


def decode(content: bytes) -> Message:
    """A message that has arrived.

    Raises:
        msgspec.DecodeError: it is none.
    """
    return _decoder.decode(content)


def run_and_tell(work: Callable[[], int], send: Send) -> int:
    """Do the work of a process; if an error ends it, tell the launcher.

    Args:
        work: gives the exit status.
        send: sends a message to the launcher.

    Returns:
        The exit status of the process.
    """
    try:
        return work()
    except UserError as error:
        send(ErrorMessage(str(error), isinstance(error, RunFailed)))
        return error.exit_status
    except BaseException:
        send(FailureMessage(traceback.format_exc()))
        return FAILED
