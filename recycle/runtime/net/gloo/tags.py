"""Gloo's tags: how gloo tells transfers between two ranks apart.

A tag is made of the epoch, the direction, the order of the transfer among all that were started in this direction on
this link, and a check of what it carries. No two transfers that may be in flight at once between two ranks share one:

- transfers of different directions differ in the direction;
- two of the same direction whose orders differ by less than ``ORDERS`` differ in the order; and fewer are in flight at
  once. What a link carries in an iteration is at most an output or a gradient of each micro-batch of the job for each
  stage of a server, and the total of tokens; all of it is waited for before the next iteration, but the total in the
  course of it. Between peers it is shares of gradients and then of parameters, a few for each bucket or parameter.
  State is copied before the first iteration, one tensor at a time. So this holds for jobs of up to half a million
  micro-batches times stages of a server;
- different epochs have different connections anyway, and those that follow each other closely also different tags.

The check makes ends that disagree on what a transfer carries wait for each other until their time-out, mostly, instead
of taking one tensor for another.
"""

from recycle.runtime.net.transfer_key import TransferKey

EPOCHS, DIRECTIONS, ORDERS, CHECKS = 1 << 4, 2, 1 << 19, (1 << 7) - 1
"""How many of each a tag can tell apart. Gloo's tags have 31 bits."""

GREETINGS = EPOCHS * DIRECTIONS * ORDERS * CHECKS, EPOCHS * DIRECTIONS * ORDERS * CHECKS + 1
"""Of what two ranks start when they connect, the one to send and the other one to receive; no transfer has one."""


def tag_of(epoch: int, upwards: bool, order: int, key: TransferKey) -> int:
    """The tag of a transfer, the same at both ends.

    Args:
        epoch: of the view.
        upwards: whether it goes to the greater rank of the two.
        order: how many were started on this link in this direction before it.
        key: what it carries.
    """
    # Primes, so that neighbours differ.
    check = (key.carried + 5 * key.micro_batch + 37 * key.home + 53 * key.boundary) % CHECKS
    return ((epoch % EPOCHS * DIRECTIONS + upwards) * ORDERS + order % ORDERS) * CHECKS + check
