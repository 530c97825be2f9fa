"""Routing rules of users."""

import re
from collections.abc import Callable, Iterable
from functools import cache

from recycle.api.planned import MODES
from recycle.errors import UserError
from recycle.plan.mode import ROUTING_RULES, RoutingRule


def register_routing(
    name: str, hosts: Callable[[int, tuple[int, ...]], Iterable[int]], *, keeps_home: bool = True
) -> None:
    """Add a rule for where micro-batches may be executed, in this process and those that it forks.

    Args:
        name: as ``mode`` has it.
        hosts: by the pipeline that a micro-batch belongs to and the pipelines whose server of a stage is alive, rising:
            those of them whose server may execute it, its own among them if that is alive.
        keeps_home: whether a micro-batch stays on its own pipeline wherever that server is alive. ``hosts`` is then
            asked for no others.

    Raises:
        UserError: there is a rule of that name, or it cannot be written among the words of a mode.
    """
    if not isinstance(name, str) or not callable(hosts):
        raise UserError(f"routing {name!r} by {hosts!r}: give a name and a function of home and live")
    if name in ROUTING_RULES:
        raise UserError(f"routing {name!r}: there is one already; choose another name")
    if not re.fullmatch(r"[\w.-]+", name) or any(name in words for words in MODES.values()):
        raise UserError(f"routing {name!r}: give a name of letters and digits that no other choice of a mode has")

    @cache
    def checked(home: int, live: tuple[int, ...]) -> tuple[int, ...]:
        if keeps_home and home in live:
            return (home,)
        given = hosts(home, live)
        found = set(given) if isinstance(given, Iterable) else set()
        if not found or not found <= set(live) or (home in live and home not in found):
            what = sorted(found, key=str) or given
            raise UserError(
                f"routing {name!r} gives {what!r} to micro-batches of pipeline {home} while {list(live)} are alive: "
                "give some of these, its own among them if it is"
            )
        return tuple(sorted(found))

    ROUTING_RULES[name] = RoutingRule("registered", checked, keeps_home=keeps_home, registered=True)
