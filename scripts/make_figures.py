"""Draw the pictures of the documentation from the plans in ``schedules/``: ``python scripts/make_figures.py``."""

from pathlib import Path

from recycle.files import write_whole
from recycle.view.chart import make_chart
from recycle.view.subject import load_subject
from recycle.view.svg import draw
from scripts.make_overview import draw_overview

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
PICTURES = {
    "1-fault-free": ("1-fault-free", 1),
    "2-fused": ("2-fused", 1),
    "3-split": ("3-split", 1),
    "4-staggered": ("4-staggered", 1),
    "4-staggered-twice": ("4-staggered", 2),
}
"""Per picture, the schedule and over how many iterations it is unrolled."""


def pictures() -> dict[Path, str]:
    """The content of every picture."""
    found = {}
    for name, (schedule, iterations) in PICTURES.items():
        subject = load_subject(ROOT / "schedules" / f"{schedule}.json", iterations)
        found[IMAGES / f"{name}.svg"] = draw([make_chart(subject)])
    found[IMAGES / "overview.svg"] = draw_overview(load_subject(ROOT / "schedules" / "4-staggered.json"))
    return found


if __name__ == "__main__":
    IMAGES.mkdir(parents=True, exist_ok=True)
    for path, content in pictures().items():
        write_whole(path, content.encode())
        print(path.relative_to(ROOT))
