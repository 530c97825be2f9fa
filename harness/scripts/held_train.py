"""``recycle``, whose servers wait before an iteration while a file called after it is in the folder HELD.

They also wait for who is missing, so that it comes back before the end.
"""

import os
from pathlib import Path

from harness.waiting import Held, wait_between
from recycle.cli import main

if __name__ == "__main__":
    wait_between(Held(Path(os.environ["HELD"])))
    main()
