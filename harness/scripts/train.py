"""``recycle``, as a module that torchrun can start."""

from recycle.cli import main

main()
