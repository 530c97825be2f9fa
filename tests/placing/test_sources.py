from recycle.job import Server
from recycle.placing.sources import Sources

HOLDERS = [Server(0, 0), Server(1, 0)]


def test_a_holder_of_the_targets_pipeline_is_asked_first():
    sources = Sources(HOLDERS)
    sources.add(HOLDERS[1], 9)
    assert sources.choose(HOLDERS, Server(1, 1)) == HOLDERS[1]


def test_of_all_others_the_one_with_the_least_to_send():
    sources = Sources(HOLDERS)
    chosen = []
    for _ in range(4):
        chosen.append(sources.choose(HOLDERS, Server(2, 1)))
        sources.add(chosen[-1], 1)
    assert chosen == HOLDERS * 2
