"""Titles are for people, and programs that read /proc find the same processes as ever."""

import os
from pathlib import Path

from harness.local import launch
from recycle.runtime.launch.process.title import set_title


def test_a_title_is_seen_and_keeps_the_fields_of_the_process_apart():
    found = []

    def body(member):
        set_title("agent of W1_2")
        process = Path("/proc/self")
        member.report(
            process.joinpath("cmdline").read_bytes().rstrip(b"\0") + b"\n" + process.joinpath("stat").read_bytes()
        )

    launch(1, body, lambda _, content: found.append(content.decode().split("\n")))
    ((title, fields, *_),) = found
    assert title == "recycle: agent of W1_2"
    # As programs read it that take no care: the number, the name, the state, the parent.
    assert fields.split()[1:4:2] == ["(recycle)", str(os.getpid())]
