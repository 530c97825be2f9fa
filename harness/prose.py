"""What pages say in sentences: without code, pictures and links' targets."""

import re
from collections.abc import Iterator

LONGEST_SENTENCE = 35
LONGEST_PARAGRAPH = 80
PRIVATE = re.compile(
    r"\b(who|whom|whoever|nobody|somebody|told to end|made again|as it was put|the flag|pretended|ladder|rungs?|crew|"
    r"bystander|plane|desk|scribe|doorway|comeback|rollcall|hails?|bells?)\b|\| there:|`ours",
    re.IGNORECASE,
)
"""Words that the project uses alone, where the field has others; and persons, where there are processes."""
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
CODE = re.compile(r"`[^`]*`")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
BEGINS_ITEM = re.compile(r"^\s*(?:[-*>]|\d+\.)\s|^#")


def paragraphs(text: str) -> Iterator[str]:
    """The paragraphs, items of lists, and cells of tables of a page; code within them is a word each."""
    text = LINK.sub(r"\1", CODE.sub("code", COMMENT.sub("", FENCE.sub("\n\n", text))))
    held: list[str] = []
    for line in [*text.splitlines(), ""]:
        begins = not line.strip() or line.startswith("|") or BEGINS_ITEM.match(line)
        if begins and held:
            yield " ".join(held)
            held = []
        if line.startswith("|"):
            yield from (cell.strip() for cell in line.strip("|").split("|") if re.search(r"\w", cell))
        elif line.strip():
            held.append(BEGINS_ITEM.sub("", line).strip())


def sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph."""
    return re.split(r"(?<=[.!?])[\"')*]*\s+(?=[\"'(*]*[A-Z0-9c]|\*[a-z])", paragraph)


def words(text: str) -> int:
    """How many words there are."""
    return len(re.findall(r"[\w'][\w'.,%/-]*", text))


def long_sentences(text: str) -> list[str]:
    """Those of a page that nobody reads once."""
    return [each for part in paragraphs(text) for each in sentences(part) if words(each) > LONGEST_SENTENCE]


def long_paragraphs(text: str) -> list[str]:
    """Those of a page that hold more than one thing."""
    return [each for each in paragraphs(text) if words(each) > LONGEST_PARAGRAPH]


def private_words(text: str) -> list[str]:
    """Those of a page, outside of code."""
    bare = FENCE.sub("\n\n", text)
    return [found[0] for found in PRIVATE.finditer(LINK.sub(r"\1", re.sub(r"`(?!ours)[^`]*`", "", bare)))]
