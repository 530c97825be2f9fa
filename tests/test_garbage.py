"""What tests leave behind, and what they fork."""

import gc
import os


def test_what_tests_have_left_is_not_freed_in_what_is_forked():
    parent = os.getpid()

    class Left:
        """Stands for what has threads, which a fork lacks: freed there, it ends the process."""

        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            if os.getpid() != parent:
                os._exit(1)

    Left()
    child = os.fork()
    if not child:
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
