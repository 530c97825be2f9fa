"""Reports of the loss function go home, bit by bit."""

import msgspec
import torch
import torch.distributed as dist

from recycle.megatron.flag.run.unprotected import exchange_reports
from recycle.runtime.execute.stage import MicroBatch
from recycle.runtime.launch.process.local import launch

VALUES = {
    (home, number): {
        "lm loss": torch.tensor([home + number / 3, 1e-30 * number]),
        "count": torch.tensor(home * 10 + number, dtype=torch.int64),
        "half": torch.tensor([[1.5 + number]], dtype=torch.bfloat16),
    }
    for home in range(3)
    for number in range(2)
}


def test_reports_go_to_the_homes_of_their_micro_batches():
    # Server 1 computed nothing; its micro-batches were computed by the other two.
    computed = [[(0, 1), (1, 0), (0, 0)], [], [(2, 0), (1, 1), (2, 1)]]

    def body(member):
        store = dist.PrefixStore("world", member.store())
        dist.init_process_group("gloo", store=store, rank=member.rank, world_size=member.count)
        for step in range(2):
            results = {MicroBatch(step, *each): VALUES[each] for each in computed[member.rank]}
            found = exchange_reports(results, dist.group.WORLD)
            assert len(found) == 2
            for number, report in enumerate(found):
                expected = VALUES[member.rank, number]
                assert report.keys() == expected.keys()
                for name, value in expected.items():
                    assert report[name].dtype == value.dtype
                    assert torch.equal(report[name], value)
        member.report(msgspec.json.encode(member.rank))

    seen = []
    launch(3, body, lambda rank, content: seen.append(rank))
    assert sorted(seen) == [0, 1, 2]
