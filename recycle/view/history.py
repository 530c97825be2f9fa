"""The history of a run in words: a line per event while it goes on, and a summary at its end."""

from collections.abc import Sequence
from statistics import median

from recycle.record.costs import Cost
from recycle.record.history import Change, History, RunEvent, ViewRecovery
from recycle.record.recording import DeathLine
from recycle.wording import microseconds, printable, throughput_text

NOTICED = {
    "agent": "noticed by its agent",
    "heartbeat": "noticed by missing heartbeats",
    "answer": "noticed because it did not answer an alarm",
}
MOST_VIEWS = 12
"""Of more views than this, the summary does not say what each has cost."""

PREFIXES = {"fault": "fault: "} | dict.fromkeys(("warning", "unprotected", "protected"), "warning: ")
"""Of the kinds of instants that are told with one."""

PHASES = ("detect", "agree", "rebuild", "restore", "start")


def tell(event: RunEvent, servers: int, time_unit: str) -> str:
    """One line about an event.

    Args:
        event: what happened.
        servers: how many servers the job has.
        time_unit: what one unit of its times is.
    """
    match event:
        case DeathLine():
            died = f"{event.server} died: {event.reason}, {NOTICED.get(event.noticed, event.noticed)}"
            text = f"{event.server} {event.reason}" if event.left or event.noticed == "link" else died
        case Change():
            text = _change(event, servers)
        case ViewRecovery():
            done = "recovered" if event.deaths else "changed views"
            pause, redo = length(event.pause, time_unit), length(event.redo, time_unit)
            cost = cost_text(Cost(event.lost, event.pause), time_unit)
            text = f"{done} in {pause}: {split([event], time_unit)}, redo {redo}; cost {cost}"
        case _:
            text = f"{PREFIXES.get(event.kind, '')}{event.text}"
    return printable(text)


def summarise(history: History, servers: int) -> list[str]:
    """What happened in a run, in a few lines; none if there was no failure and no new view.

    Args:
        history: of the whole run.
        servers: how many servers the job has.
    """
    changes, unit = history.changes, history.time_unit
    if history.view is None or not (changes or history.deaths):
        return []
    joined = sum(len(change.joined) for change in changes)
    again = sum(change.again for change in changes)
    left = sum(each.left for each in history.deaths)
    failures = _count(len(history.deaths) - left, "failure") + (f", {left} left" if left else "")
    lines = [f"{failures}, {_count(joined, 'rejoin')}, {_count(again, 'iteration')} made again"]
    recoveries = [change.recovery for change in changes if change.recovery and change.recovery.deaths]
    if recoveries:
        pauses = [each.pause for each in recoveries]
        lines.append(
            f"recovered in {length(median(pauses), unit)} median, {length(max(pauses), unit)} worst: "
            + split(recoveries, unit)
            + (" in the median" if len(recoveries) > 1 else "")
        )
    if changes:
        lines.append(f"all failures and returns cost {total_text(history.costs, unit)}")
        lines += [_account(history, change) for change in changes[:MOST_VIEWS]]
        if len(changes) > MOST_VIEWS:
            lines.append(f"and {_count(len(changes) - MOST_VIEWS, 'more view')}")
    view = history.view
    throughput = throughput_text(view.throughput, view.baseline, changes[0].start if changes else None, "the start")
    measured = measured_text(history.measured(view.epoch)) if changes else ""
    lines.append(f"at the end view {view.epoch}: {describe_view(len(view.servers), servers, throughput)}{measured}")
    return [printable(line) for line in lines]


def _account(history: History, change: Change) -> str:
    """What a view has cost, and what an hour in it costs, as it was measured or, where it was not, as it is planned."""
    epoch, measured = change.view.epoch, history.measured(change.view.epoch)
    planned = change.view.throughput / change.start
    hour = hour_text(planned, "as planned") if measured is None else hour_text(measured, "as measured")
    cost, unit = history.cost(epoch), history.time_unit
    text = f"view {epoch} cost {cost_text(cost, unit)}"
    text += f", and {_slower_text(cost.slower, unit)} since" if cost.slower else ""
    return f"{text}; {hour}" if hour else text


def cost_text(cost: Cost, time_unit: str) -> str:
    """What a change of views costs, without what slower iterations cost after it, and what that is made of.

    Args:
        cost: in the run's time unit.
        time_unit: what one unit of that is.
    """
    lost = f"{length(cost.lost, time_unit)} of work lost, " if cost.lost else ""
    return f"{length(cost.change, time_unit)} ({lost}{length(cost.recovery, time_unit)} of recovery)"


def total_text(cost: Cost, time_unit: str) -> str:
    """What all changes of views together cost, and what that is made of.

    Args:
        cost: in the run's time unit.
        time_unit: what one unit of that is.
    """
    whole = cost.change + max(0.0, cost.slower or 0.0)
    total, lost, recovery = (length(each, time_unit) for each in (whole, cost.lost, cost.recovery))
    text = f"{total}: {lost} of work lost, {recovery} of recovery"
    if cost.slower is None:
        return f"{text}; too few iterations before them to know the cost of slower ones"
    return f"{text}, {_slower_text(cost.slower, time_unit)}"


def _slower_text(slower: float, time_unit: str) -> str:
    """What slower iterations cost. Where servers share processors, iterations may be quicker without one of them."""
    if slower < 0:
        return f"{length(-slower, time_unit)} gained by quicker iterations"
    return f"{length(slower, time_unit)} of slower iterations"


def hour_text(throughput: float, how: str) -> str:
    """What an hour costs at a throughput that is less than that of the start; empty where it costs less than a minute.

    Args:
        throughput: against the start.
        how: whether it is planned or measured, in words.
    """
    minutes = round(60 * (1 - throughput))
    return f"each hour costs {minutes} min {how}" if minutes > 0 else ""


def measured_text(throughput: float | None) -> str:
    """What is put behind a planned throughput; empty where nothing was measured.

    Args:
        throughput: against the start.
    """
    return "" if throughput is None else f", measured {throughput:.0%} of the start"


def describe_view(live: int, servers: int, throughput: str) -> str:
    """How many servers are live, of how many, and what throughput their plan has."""
    return f"{live} of {servers} servers, {throughput}"


def length(time: float, time_unit: str) -> str:
    """A length of time in milliseconds or, if it is long, in seconds."""
    milliseconds = time * microseconds(time_unit) / 1000
    return f"{milliseconds:.0f} ms" if milliseconds < 10_000 else f"{milliseconds / 1000:.1f} s"


def split(recoveries: Sequence[ViewRecovery], time_unit: str) -> str:
    """The phases of recoveries with their medians in milliseconds."""
    scale = microseconds(time_unit) / 1000
    return ", ".join(f"{phase} {median(getattr(each, phase) for each in recoveries) * scale:.0f}" for phase in PHASES)


def _change(change: Change, servers: int) -> str:
    view = change.view
    size = describe_view(len(view.servers), servers, throughput_text(view.throughput, view.baseline, change.before))
    if change.joined and not change.deaths:
        names = ", ".join(f"{server} (incarnation {life})" for server, life in change.joined)
        text = f"{names} {'is' if len(change.joined) == 1 else 'are'} back: {size}"
    else:
        plan, _, _ = view.plan.partition(" by ")
        text = f"view {view.epoch}: {size}, {'from ' if plan.startswith('the ') else ''}{plan}"
        if not change.deaths:
            text += f", because {view.cause}"
    if change.again:
        first = view.step + 1
        made = f"iteration {first} is" if change.again == 1 else f"iterations {first} to {view.step + change.again} are"
        text += f"; {made} made again"
    text += ", from the last checkpoint" if view.restore == "checkpoint" else ""
    hour = hour_text(view.throughput / change.start, "as planned")
    return f"{text}; {hour} until servers return" if hour else text


def _count(number: int, name: str) -> str:
    return f"{number or 'no'} {name}{'' if number == 1 else 's'}"
