"""``recycle``, as a module that torchrun can start."""

from recycle.cli import main

if __name__ == "__main__":
    main()
