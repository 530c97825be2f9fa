"""Published tables of other systems and of ReCycle's trace, beside what is computed here.

Usage: python -m benchmarks.reproduce

Oobleck's Table 2 and where time goes in it, by the rules of its artifact's simulator; Gemini's probabilities of
surviving in memory and its effective time; what re-routing alone keeps over ReCycle's trace. The exit status is 1 if a
figure that is held is off.
"""

import argparse
import sys

from benchmarks.reproduce.report import reproduce


def main() -> None:
    """Print a line per figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    figures = reproduce(lambda what: print(what, file=sys.stderr, flush=True))
    rows = [("", "published", "computed", "within", "", "")]
    rows += [
        (
            f"{each.table}: {each.what}",
            "" if each.published is None else f"{each.published:g}",
            f"{each.computed:.4f}",
            "" if each.tolerance is None else f"{each.tolerance:g}",
            "" if each.tolerance is None else "yes" if each.holds else "NO",
            each.note,
        )
        for each in figures
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for what, *numbers, holds, note in rows:
        cells = [what.ljust(widths[0]), *map(str.rjust, numbers, widths[1:4]), holds.ljust(widths[4]), note]
        print("  ".join(cells).rstrip())
    raise SystemExit(not all(each.holds for each in figures))


if __name__ == "__main__":
    main()
