"""The user's pages are read once: nothing in them makes a sentence hard."""

import pytest

from harness.paths import ROOT
from harness.prose import long_paragraphs, long_sentences, paragraphs, private_words, sentences, words

FOLDERS = ("tutorials", "howto", "explanation", "reference")
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [
        ROOT / "README.md",
        ROOT / "docs" / "questions.md",
        *(path for each in FOLDERS for path in sorted((ROOT / "docs" / each).glob("*.md"))),
    ]
}
PAGES_OUTSIDE = {"SECURITY.md": (ROOT / "SECURITY.md").read_text()}
"""That the site has in its reference."""
MOST_WORDS = 25_000
"""Of all pages but the reference."""


@pytest.mark.parametrize("page", [*PAGES, *PAGES_OUTSIDE])
def test_a_page_has_nothing_that_is_hard_to_read(page):
    text = (PAGES | PAGES_OUTSIDE)[page]
    assert (long_sentences(text), long_paragraphs(text), private_words(text)) == ([], [], [])


def test_the_pages_are_short_enough_to_be_read():
    assert (
        sum(words(each) for page, text in PAGES.items() if "/reference/" not in page for each in paragraphs(text))
        < MOST_WORDS
    )


LONG = " ".join(["Word"] + ["word"] * 35)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{LONG}.", (1, 0, 0)),
        (f"{LONG[:-5]}. {LONG[:-5]}.", (0, 0, 0)),
        (f"- {LONG[:60]}\n- {LONG[:60]}\n{LONG}", (1, 0, 0)),
        (f"| {LONG[:60]} | {LONG} |", (1, 0, 0)),
        (f"```\n{LONG}\n```\n<!-- {LONG} -->", (0, 0, 0)),
        (f"{LONG[:100]}. {LONG[:100]}. {LONG[:100]}. {LONG[:100]}. {LONG[:100]}.", (0, 1, 0)),
        ("The server who dies is [told to end](who.md), `whoever` says so.", (0, 0, 2)),
        ("| there: fp16 | refused |", (0, 0, 1)),
    ],
)
def test_what_is_hard_to_read_is_found(text, found):
    assert (len(long_sentences(text)), len(long_paragraphs(text)), len(private_words(text))) == found


def test_a_sentence_ends_at_its_point_and_not_within_a_number():
    assert sentences("It takes 0.5 s. Then `x` begins (see above). 3 are left.") == [
        "It takes 0.5 s.",
        "Then `x` begins (see above).",
        "3 are left.",
    ]
