"""Whether faults can happen in a job."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from recycle.errors import UserError
from recycle.faults.errors import FaultError
from recycle.faults.menu import Fault, Kind
from recycle.job import Job, Server


def check_faults(faults: Sequence[Fault], job: Job, iterations: int, dead: Collection[Server] = ()) -> None:
    """Refuse faults that could never fire.

    Args:
        faults: in the order of their file.
        job: that is trained.
        iterations: how many are run.
        dead: the servers that take no part from the start.

    Raises:
        FaultError: the first that could never fire.
    """
    for number, fault in enumerate(faults):
        with _named(number, fault):
            _require_possible(fault, job, iterations)
            if fault.kind is Kind.JOIN:
                _require_absent(fault, faults, dead)
            else:
                _require_present(fault, faults, dead)
    for number, fault in enumerate(faults):
        with _named(number, fault):
            _require_incarnation(fault, faults)


@contextmanager
def _named(number: int, fault: Fault) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise FaultError(f"fault {number + 1}, {fault}: {error}") from error


def _require_possible(fault: Fault, job: Job, iterations: int) -> None:
    job.require_servers(fault.servers)
    if fault.step is not None and fault.step >= iterations:
        raise FaultError(
            f"iteration is {fault.step + 1}: the run has iterations 1 to {iterations}; choose one, or run longer"
        )
    if fault.instruction is not None:
        for server in fault.servers:
            fault.instruction.require_possible(job, server)


def _require_absent(join: Fault, faults: Sequence[Fault], dead: Collection[Server]) -> None:
    (server,) = join.servers
    if server in dead:
        return
    if not any(each.kind.ends_server and server in each.servers and not _is_before(join, each) for each in faults):
        raise FaultError(
            f"no fault before it ends {server}, which cannot join while it is alive; "
            f"add a kill of {server} before it, or leave the join out"
        )


def _require_present(fault: Fault, faults: Sequence[Fault], dead: Collection[Server]) -> None:
    for server in fault.servers:
        if server in dead and not any(
            each.kind is Kind.JOIN and server in each.servers and not _is_before(fault, each) for each in faults
        ):
            raise FaultError(f"{server} is dead from the start, and no join comes before; choose a live server")


def _require_incarnation(fault: Fault, faults: Sequence[Fault]) -> None:
    if not fault.is_of_worker:
        return
    for server in fault.servers:
        joins = [each for each in faults if each.kind is Kind.JOIN and server in each.servers]
        lives = sum(_is_before(join, fault) for join in joins)
        if fault.incarnation < lives:
            raise FaultError(
                f"incarnation is {fault.incarnation}, and {server} was replaced before {fault.when}; "
                f"write incarnation = {lives}"
            )


def _is_before(one: Fault, other: Fault) -> bool:
    """Whether one comes before the other for certain; steps and times cannot be compared."""
    if one.step is not None and other.step is not None:
        return one.step < other.step
    return one.at is not None and other.at is not None and one.at < other.at
