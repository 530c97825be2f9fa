"""Pages of the site that are not in docs/: a hook of MkDocs (``mkdocs.yml``)."""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]

PAGES = {
    "README.md": "index.md",
    "SECURITY.md": "reference/security.md",
    "CHANGELOG.md": "reference/changes.md",
}
"""Where files outside docs/ are in the site."""

ASSETS = ("examples/what-if.ipynb", "CITATION.cff", "LICENSE")
"""Files that pages link to."""

REPOSITORY = "docs/internals/"
"""What only the repository has: how things work inside."""

REFERENCE = """# Python reference

What `import recycle` gives. [From Python](python.md) shows how to use it.
"""

NAMES = {
    "Job": "planned.make_job",
    "load_job": "planned.load_job",
    "make_plan": "planned.make_plan",
    "load_plan": "planned.load_plan",
    "Planned": "planned.Planned",
}
"""What the reference describes, and where in ``recycle.api`` it is."""

LINK = re.compile(r"(?P<before>!?\[(?P<text>[^\]]*)\]\()(?P<target>[^)#\s]+)(?P<anchor>#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and assets from outside docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=relinked((ROOT / source).read_text(), source, page)))
    for source in ASSETS:
        files.append(File.generated(config, source, content=(ROOT / source).read_bytes()))
    entries = (
        f"::: recycle.api.{place}\n    options:\n      heading: recycle.{name}\n" for name, place in NAMES.items()
    )
    files.append(File.generated(config, "reference/api.md", content="\n".join((REFERENCE, *entries))))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links of docs/ to what is outside of it."""
    path = page.file.src_uri
    return relinked(markdown, f"docs/{path}", path) if page.file.generated_by is None else markdown


def relinked(text: str, source: str, page: str) -> str:
    """A file's text with links that hold in the site; what the site lacks is named and not linked.

    Args:
        text: with links that are relative to the file.
        source: where the file is in the project.
        page: where it is in the site.
    """

    def link(match: re.Match[str]) -> str:
        target = match["target"]
        if "://" in target:
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        inside = path.startswith("docs/") and not path.startswith(REPOSITORY)
        if not inside and path not in PAGES and path not in ASSETS:
            return match["text"]
        place = PAGES.get(path, path.removeprefix("docs/"))
        place = posixpath.relpath(place, posixpath.dirname(page) or ".")
        return f"{match['before']}{place}{match['anchor'] or ''})"

    return LINK.sub(link, text)
