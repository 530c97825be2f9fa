"""Runs one after the other, as they are asked for: ``forked_runs.py SOCKET``, with the number of a socket.

A request is a run's ranks, words, variables and folder as JSON, and where it prints to. The answers are its process,
and its exit status when it has ended. This ends with whoever asks.
"""

import json
import os
import socket
import sys

from harness.scripts.forked_ranks import main, prepare


def serve(door: socket.socket) -> None:
    while True:
        content, files, _, _ = socket.recv_fds(door, 1 << 20, 1)
        if not content:
            return
        ranks, words, variables, folder = json.loads(content)
        process = os.fork()
        if not process:
            door.close()
            os.setsid()
            for number in (1, 2):
                os.dup2(files[0], number)
            os.close(files[0])
            os.environ.clear()
            os.environ.update(variables)
            os.chdir(folder)
            sys.exit(main(ranks, words))
        os.close(files[0])
        door.send(str(process).encode())
        _, status = os.waitpid(process, 0)
        door.send(str(os.waitstatus_to_exitcode(status)).encode())


if __name__ == "__main__":
    prepare()
    serve(socket.socket(fileno=int(sys.argv[1])))
