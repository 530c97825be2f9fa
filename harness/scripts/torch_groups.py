"""One of three ranks, each with a GPU, that compare what torch's groups over NCCL do with what they should.

Usage: python -m harness.scripts.torch_groups RANK STORE [eager]

STORE is where they find each other, such as file:///tmp/store. Eager groups are split from each other, others made.
"""

import sys
from itertools import product

import torch
import torch.distributed as dist

RANKS = 3


def contents(rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """What a rank begins with; numbers that sum without rounding."""
    return (torch.arange(size) % 13 + rank).to(dtype)


def sums(rank: int, every: list[torch.Tensor], device: torch.device) -> None:
    """What is put together."""
    smallest, middle, largest = every
    expected = {"SUM": 3 * middle, "MAX": largest, "MIN": smallest, "PRODUCT": smallest * middle * largest}
    for how, result in expected.items():
        mine = every[rank].to(device)
        dist.all_reduce(mine, getattr(dist.ReduceOp, how))
        assert torch.equal(mine.cpu(), result), how
    mine = every[rank].to(device)
    dist.reduce(mine, 2)
    assert rank != 2 or torch.equal(mine.cpu(), 3 * middle)
    part = torch.empty_like(mine)
    dist.reduce_scatter(part, [each.to(device) for each in every])
    assert torch.equal(part.cpu(), 3 * every[rank])


def exchanges(rank: int, every: list[torch.Tensor], device: torch.device) -> None:
    """What goes from ranks to all others."""
    mine = every[rank].to(device)
    dist.broadcast(mine, 1)
    assert torch.equal(mine.cpu(), every[1])
    gathered = [torch.empty_like(mine) for _ in range(RANKS)]
    dist.all_gather(gathered, every[rank].to(device), async_op=True).wait()
    assert torch.equal(torch.stack(gathered).cpu(), torch.stack(every))
    parts = torch.cat([every[rank] + each for each in range(RANKS)]).to(device)
    changed = torch.empty_like(parts)
    dist.all_to_all_single(changed, parts)
    assert torch.equal(changed.cpu(), torch.cat([each + rank for each in every]))


def transfers(rank: int, every: list[torch.Tensor], device: torch.device) -> None:
    """What goes from rank to rank: round a ring, in both directions at once, and alone."""
    mine, before, after = every[rank].to(device), (rank - 1) % RANKS, (rank + 1) % RANKS
    double, there, back = 2 * mine, torch.empty_like(mine), torch.empty_like(mine)
    ring = [
        dist.P2POp(dist.isend, mine, after),
        dist.P2POp(dist.irecv, there, before),
        dist.P2POp(dist.isend, double, before),
        dist.P2POp(dist.irecv, back, after),
    ]
    for each in dist.batch_isend_irecv(ring):
        each.wait()
    assert torch.equal(there.cpu(), every[before])
    assert torch.equal(back.cpu(), 2 * every[after])
    if rank == 0:
        dist.send(mine, 1)
    elif rank == 1:
        dist.recv(there, 0)
        assert torch.equal(there.cpu(), every[0])


def main(rank: int, store: str, *, eager: bool) -> None:
    """Do all of it with tensors of several types and sizes, and then in groups of two."""
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    own = device if eager else None
    dist.init_process_group("nccl", init_method=store, rank=rank, world_size=RANKS, device_id=own)
    for dtype, size in product((torch.float32, torch.bfloat16, torch.float16, torch.int64), (1, 100_003)):
        every = [contents(each, size, dtype) for each in range(RANKS)]
        for check in (sums, exchanges, transfers):
            check(rank, every, device)
    pairs = [(0, 1), (1, 2)]
    for pair, group in [(pair, dist.new_group(pair)) for pair in pairs]:
        if rank in pair:
            mine = torch.full((5,), float(rank), device=device)
            dist.all_reduce(mine, dist.ReduceOp.AVG, group)
            assert mine.tolist() == [sum(pair) / 2] * 5
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], eager=len(sys.argv) > 3)
