"""What servers tell each other in their reductions."""

from math import inf

import pytest
from torch.distributed import HashStore

from harness.ranks import results_of
from recycle.control.membership.view import View
from recycle.job import Server
from recycle.runtime.execute.notices import EVERY, LONG, NoticeExchange, Notices, interval
from recycle.runtime.net.connect import connect


@pytest.mark.parametrize(
    ("long", "said", "expected"),
    [
        (
            inf,
            [(int(step == EVERY), 1) for step in range(2 * EVERY + 1)],
            [Notices(), *[Notices(0, 1)] * EVERY, *[Notices(2, 1)] * EVERY, Notices(0, 1)],
        ),
        (0.0, [(step, 0) for step in range(4)], [Notices(each) for each in (0, 0, 2, 4, 6)]),
    ],
    ids=["now and then", "in each iteration that is long"],
)
def test_a_notice_is_read_by_all_one_iteration_after_it_was_posted(long, said, expected):
    """Both want to admit as many, and the second one is unprotected if any."""
    view = View.among([Server(0, 0), Server(1, 0)])

    def body(member):
        notices = NoticeExchange(connect(member.store(), view, view.servers[member.rank]), 2, long)
        found = []
        for admit, unprotected in said:
            notices.say = Notices(admit=admit, unprotected=unprotected * member.rank)
            notices.exchange()
            found.append(notices.heard)
        notices.collect()
        return [*found, notices.heard]

    assert results_of(2, body, list[Notices]) == {0: expected, 1: expected}


def test_nothing_is_under_way_before_the_first_notice():
    notices = NoticeExchange(connect(HashStore(), View.among([Server(0, 0)]), Server(0, 0)), 1)
    notices.collect()
    assert notices.heard == Notices()


@pytest.mark.parametrize(
    ("mean", "long", "every"),
    [
        *((0.0, LONG, EVERY), (LONG / EVERY, LONG, EVERY), (LONG / 3, LONG, 3), (0.9 * LONG, LONG, 1), (9.0, LONG, 1)),
        *((9.0, inf, EVERY), (0.0, 0.0, 1)),
    ],
)
def test_from_post_to_post_there_are_few_iterations_where_they_are_long(mean, long, every):
    assert interval(mean, long) == every


@pytest.mark.parametrize(
    ("before", "heard", "parting"),
    [
        ((), (), False),
        ((), (2, 1), False),
        ((), (2, 2), True),
        ((1, 0), (2, 1), True),
    ],
)
def test_servers_part_when_all_leave_or_it_was_heard_twice(before, heard, parting):
    notices = NoticeExchange(connect(HashStore(), View.among([Server(0, 0)]), Server(0, 0)), 1)
    notices.before, notices.heard = Notices(leaving=before), Notices(leaving=heard)
    assert notices.is_parting((2, 2)) is parting


def test_who_leaves_is_heard_of_twice_with_all_who_were_told_meanwhile():
    """The second server is told when the first one has posted already."""
    view = View.among([Server(0, 0), Server(1, 0), Server(0, 1), Server(1, 1)])

    def body(member):
        server = view.servers[member.rank]
        notices = NoticeExchange(connect(member.store(), view, server), 2, long=inf)
        found = []
        for iteration in range(EVERY):
            if (member.rank, iteration) in ((0, 0), (1, 1), (1, 2), (0, 1), (0, 2)):
                notices.say = Notices(leaving=(int(server.stage == 0), int(server.stage == 1)))
            notices.exchange()
            found.append((notices.before.leaving, notices.heard.leaving, bool(notices.said.leaving)))
        notices.collect()
        return found

    heard = results_of(4, body)
    everybody = [[[], []], [[], [1, 0]], [[1, 0], [1, 1]], [[1, 1], [1, 1]]]
    assert [[each[:2] for each in heard[rank]] for rank in range(4)] == [everybody] * 4
    # A server knows whether it was counted, whatever it wants to say by now.
    assert [[each[2] for each in heard[rank]] for rank in range(4)] == [
        [False, True, True, True],
        [False, False, True, True],
        [False] * 4,
        [False] * 4,
    ]
