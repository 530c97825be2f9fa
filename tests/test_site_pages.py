"""Links of the project's files hold in the site, and what the site lacks is named and not linked."""

import pytest

pytest.importorskip("mkdocs", reason="mkdocs is not installed: scripts/test does")
from scripts.site_pages import relinked


@pytest.mark.parametrize(
    ("source", "page", "text", "found"),
    [
        ("README.md", "index.md", "[a](docs/howto/doctor.md#run-it)", "[a](howto/doctor.md#run-it)"),
        ("README.md", "index.md", "![a](docs/images/a.svg)", "![a](images/a.svg)"),
        ("README.md", "index.md", "[how it is built](docs/internals/architecture.md)", "how it is built"),
        ("docs/howto/a.md", "howto/a.md", "[a](../../README.md#b)", "[a](../index.md#b)"),
        ("docs/howto/a.md", "howto/a.md", "[a](../../SECURITY.md)", "[a](../reference/security.md)"),
        ("docs/questions.md", "questions.md", "[a](../SECURITY.md#ports)", "[a](reference/security.md#ports)"),
        ("SECURITY.md", "reference/security.md", "[a](docs/reference/cluster.md#ports)", "[a](cluster.md#ports)"),
        (
            "docs/howto/a.md",
            "howto/a.md",
            "[a](../reference/b.md) [c](http://x/y)",
            "[a](../reference/b.md) [c](http://x/y)",
        ),
        ("docs/howto/a.md", "howto/a.md", "[the benchmarks](../../benchmarks/README.md)", "the benchmarks"),
    ],
)
def test_a_link_holds_in_the_site(source, page, text, found):
    assert relinked(text, source, page) == found
