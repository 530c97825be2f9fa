"""Templates: for each number of servers, the best cut of the model into stages of one pipeline (Oobleck, SOSP'23).

The cut is exact, by dynamic programming from the last layer on. Let best(k, i) be the least longest stage when the
layers from i on are cut into k stages. The first of them ends at some layer j, and then

    best(k, i) = min over j of max(time of the layers i to j, best(k - 1, j)).

Of k stages that are left the first keeps up to k micro-batches in memory in a 1F1B schedule, whatever is before it. So
a suffix and its number of stages decide which cuts fit, and one table holds the templates for all numbers of servers.
"""

import math
from collections.abc import Mapping

import msgspec

from recycle.placing.layers import Model, Run


class Template(msgspec.Struct, frozen=True):
    """One pipeline on so many servers.

    Attributes:
        runs: the layers of each server, in order.
        longest: time that the busiest of them computes and steps in an iteration with the micro-batches that templates
            were made for.
    """

    runs: tuple[Run, ...]
    longest: int

    @property
    def servers(self) -> int:
        """How many it takes."""
        return len(self.runs)


class Templates(msgspec.Struct, frozen=True):
    """The templates of a model.

    Attributes:
        model: what is cut.
        by_servers: the template for each number of servers that one exists for.
    """

    model: Model
    by_servers: Mapping[int, Template]

    @property
    def least(self) -> int:
        """The fewest servers that hold the whole model; 0 where no number does."""
        return min(self.by_servers, default=0)


def make_templates(model: Model, most: int, micro_batches: int, in_memory: int = 0) -> Templates:
    """The best template for every number of servers.

    Best is the least longest stage: compute of all micro-batches, reduction and optimizer step. Of equal ones that with
    the fewest layers on the first server, which waits the longest for gradients; the layers behind it are cut best in
    the same sense.

    Args:
        model: what is cut.
        most: servers of the largest template.
        micro_batches: of a pipeline and iteration, about.
        in_memory: micro-batches that every server has memory for, at least; 0 for what it keeps in a 1F1B schedule.
    """
    layers = len(model.layers)
    best: list[list[float]] = [[math.inf] * layers + [0]]
    ends: list[list[int]] = [[layers] * (layers + 1)]
    for left in range(1, min(most, layers) + 1):
        behind = best[-1]
        lengths, choices = [math.inf] * (layers + 1), [layers] * (layers + 1)
        in_flight = in_memory or min(left, micro_batches)
        for first in range(layers - left + 1):
            least = math.inf
            for end in range(first + 1, layers - left + 2):
                run = (first, end)
                time = micro_batches * model.work(run) + model.update(run)
                # Both grow with every layer more.
                if time >= least or model.needs(run, in_flight) > model.memory:
                    break
                longest = max(time, behind[end])
                if longest < least:
                    least, choices[first] = longest, end
            lengths[first] = least
        best.append(lengths)
        ends.append(choices)
    found: dict[int, Template] = {}
    for servers in range(1, len(best)):
        if best[servers][0] < math.inf:
            found[servers] = Template(_cut(ends, servers), int(best[servers][0]))
    return Templates(model, found)


def _cut(ends: list[list[int]], servers: int) -> tuple[Run, ...]:
    runs: list[Run] = []
    first = 0
    for left in range(servers, 0, -1):
        runs.append((first, ends[left][first]))
        first = ends[left][first]
    return tuple(runs)
