"""Plans judged from their exported rows alone: every rule of the problem is written here once more."""

import csv
import io
from collections import defaultdict
from itertools import pairwise

from recycle.holding import holders, placed
from recycle.job import Server
from recycle.plan.export import export_csv


def judge_rows(plan):
    """Judge who computes what and when; gives the phases as rows, each of a server, with their starts and ends."""
    job, rows = plan.job, []
    where, begin, end, order = {}, {}, {}, {}
    for row in csv.DictReader(io.StringIO(export_csv(plan))):
        server, chunk = Server.parse(row["server"]), int(row["chunk"])
        unit, span = (int(row["home"]), int(row["micro_batch"])), (int(row["start"]), int(row["end"]))
        assert chunk in placed(job, server).chunks
        stage = job.stages[chunk]
        cost = {"F": [stage.forward], "I": [stage.input_gradient], "W": [stage.weight_gradient]}
        cost["B"] = cost["I"] + cost["W"]
        speed = placed(job, server).speed
        assert span[1] - span[0] == sum(-(-each * 100 // speed) for each in cost[row["op"]])
        for phase in "IW" if row["op"] == "B" else row["op"]:
            assert (phase, chunk, unit) not in end, "twice"
            begin[phase, chunk, unit], end[phase, chunk, unit] = span
            where[phase, chunk, unit] = server
            rows.append((server, chunk, phase, *span))
        order.setdefault(server, []).append(span)
    units = {(home, number) for home, load in enumerate(job.loads) for number in range(load)}
    assert set(end) == {(op, chunk, unit) for op in "FIW" for chunk in range(len(job.stages)) for unit in units}
    for (op, chunk, unit), server in where.items():
        needs = {"F": [("F", chunk - 1)], "I": [("F", chunk), ("I", chunk + 1)], "W": [("F", chunk)]}[op]
        for other, of in needs:
            if 0 <= of < len(job.stages):
                hop = job.latency[min(chunk, of)] if where[other, of, unit] != server else 0
                assert end[other, of, unit] + hop <= begin[op, chunk, unit]
        gradients = [(begin[each, chunk, unit], end[each, chunk, unit]) for each in "IW"]
        assert gradients[0] == gradients[1] or gradients[0][1] <= gradients[1][0], "neither fused nor in turn"
        assert where["F", chunk, unit] == server
        home = holders(job)[chunk][unit[0]]
        assert server == home or home in plan.dead or plan.mode.routing == "free"
    for server, spans in order.items():
        assert all(first[1] <= second[0] for first, second in pairwise(sorted(spans)))
        changes = defaultdict(int)
        for _, chunk, phase, start, stop in (row for row in rows if row[0] == server):
            stage = job.stages[chunk]
            taken = {"F": stage.held, "I": stage.taken_at_input_gradient, "W": 0}
            freed = {"F": 0, "I": stage.released_at_input_gradient}
            freed["W"] = sum(taken.values()) - freed["I"]
            changes[start, True] += taken[phase]
            changes[stop, False] -= freed[phase]
        level = 0
        for _, amount in sorted(changes.items()):
            level += amount
            # A release at an instant makes room for what starts then, unless a task takes no time.
            assert level <= placed(job, server).limit or any(start == stop for start, stop in spans)
    return rows


def judge(plan):
    """Judge a plan whose pipelines are alike; gives its value."""
    job, rows = plan.job, judge_rows(plan)
    place = {chunk: place for place, chunks in enumerate(job.chunks) for chunk in chunks}
    ready = {chunk: max(row[4] for row in rows if row[1:3] == (chunk, "W")) for chunk in place}
    cost = {chunk: job.stages[chunk].update for chunk in place}
    if plan.mode.optimizer == "global":
        return max(row[4] for row in rows) + max(sum(cost[chunk] for chunk in chunks) for chunks in job.chunks)
    value = 0
    for server in plan.programs:
        mine = [row for row in rows if row[0] == server]
        updates = sorted((ready[chunk], cost[chunk]) for chunk in placed(job, server).chunks)
        time = max((row[4] for row in mine), default=0)
        for summed, update in updates:
            time = max(time, summed) + update
        first = min((row[3] for row in mine), default=time - sum(update for _, update in updates))
        value = max(value, time - first)
    return value
