"""The command ``recycle``, also as ``python -m recycle``: from its first line on, Ctrl-C shows no traceback."""

# Python's own signal imports more.
import _signal  # type: ignore[import-not-found]


def main() -> None:
    """Run the command line; until it takes interrupts itself, one ends the process."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from recycle.cli import main as run

    run()


if __name__ == "__main__":
    main()
