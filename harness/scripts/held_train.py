"""``recycle``, whose servers wait before an iteration while a file called after it is in the folder HELD.

They also wait for who is missing, so that it comes back before the end.
"""

import os
from pathlib import Path

from harness.waiting import ForReturn, wait_between
from recycle.cli import main
from recycle.runtime.recover.survivor import Survivor

if __name__ == "__main__":
    held, returns = Path(os.environ["HELD"]), ForReturn()

    def waits(survivor: Survivor) -> bool:
        """See Waits."""
        return (held / str(survivor.step)).exists() or returns(survivor)

    wait_between(waits)
    main()
