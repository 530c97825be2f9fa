"""Jobs one after the other, each as ``forked_ranks.py`` starts it: ``forked_jobs.py FILE``.

FILE is a JSON list of them: how many ranks, and the words of one. A line says with which status each has ended.
"""

import json
import sys
from pathlib import Path

import harness.scripts.training_code  # noqa: F401 - once for all jobs
from harness.scripts.forked_ranks import main

if __name__ == "__main__":
    for ranks, words in json.loads(Path(sys.argv[1]).read_text()):
        status = main(ranks, words)
        sys.stdout.write(f"forked job ended with status {status}\n")
        sys.stdout.flush()
