"""Pages of the site that are not in docs/: a hook of MkDocs (``mkdocs.yml``)."""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]

PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "benchmarks/README.md": "benchmarks.md",
    "patches/README.md": "patches.md",
}
"""Where files outside docs/ are in the site."""

ASSETS = ("examples/what-if.ipynb", "CITATION.cff", "LICENSE")
"""Files that pages link to."""

REFERENCE = """# Reference

What `import recycle` gives; [From Python](python.md) shows how it is used.
"""

NAMES = {
    "Job": "planned.make_job",
    "load_job": "planned.load_job",
    "make_plan": "planned.make_plan",
    "load_plan": "planned.load_plan",
    "Planned": "planned.Planned",
    "sweep": "sweep.sweep",
}
"""What the reference describes, and where in ``recycle.api`` it is."""

LINK = re.compile(r"(?P<before>!?\[(?P<text>[^\]]*)\]\()(?P<target>[^)#\s]+)(?P<anchor>#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and assets from outside docs/."""
    for source, page in PAGES.items():
        text = relinked((ROOT / source).read_text(), posixpath.dirname(source))
        files.append(File.generated(config, page, content=text))
    for source in ASSETS:
        files.append(File.generated(config, source, content=(ROOT / source).read_bytes()))
    entries = (
        f"::: recycle.api.{place}\n    options:\n      heading: recycle.{name}\n" for name, place in NAMES.items()
    )
    files.append(File.generated(config, "reference.md", content="\n".join((REFERENCE, *entries))))
    return files


def on_page_markdown(markdown: str, page: object, config: MkDocsConfig, files: Files) -> str:
    """Turn links of docs/ to what is outside of it."""
    return relinked(markdown, "docs") if "](../" in markdown else markdown


def relinked(text: str, folder: str) -> str:
    """A file's text with links that hold in the site.

    Args:
        text: with links that are relative to its folder.
        folder: of the project, in which it is.
    """

    def link(match: re.Match[str]) -> str:
        target = match["target"]
        if "://" in target:
            return match[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        place = PAGES.get(path, path.removeprefix("docs/"))
        if not path.startswith("docs/") and path not in PAGES and path not in ASSETS:
            return match["text"]
        return f"{match['before']}{place}{match['anchor'] or ''})"

    return LINK.sub(link, text)
