"""Programs, forked as they are asked for: ``forks.py SOCKET MODULE``, with the number of a socket that listens.

MODULE is imported before. A request is a program's words, variables and folder as JSON, and the first process of the
host that it runs on, with where it prints to and a pipe for the answers: its process, and its exit status when it has
ended. All that was forked for a process ends when that does, and this ends with the process that has started it.
"""

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import NoReturn

from setproctitle import getproctitle, setproctitle

from recycle.control.host.children import die_with

SPACES = ("net", "uts", "ipc", "mnt", "time", "pid")
"""The namespaces of a host; that of processes holds for those that are forked from then on."""


def be_main(words: list[str]) -> None:
    """Run a module or a script as the main program."""
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


def leave(body: Callable[[], object]) -> NoReturn:
    """Do something, and end without taking apart all that was imported, which takes longer than many a program.

    Whatever is to happen at the end of a program does.
    """
    status: object = 1
    try:
        body()
        status = None
    except SystemExit as error:
        status = error.code
    except BaseException:
        traceback.print_exc()
    if status is not None and not isinstance(status, int):
        sys.stderr.write(f"{status}\n")
        status = 1
    # As the interpreter does before it takes itself apart.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


def enter(process: int) -> None:
    """Go to the host of a process."""
    libc = ctypes.CDLL(None, use_errno=True)
    spaces = [os.open(f"/proc/{process}/ns/{each}", os.O_RDONLY) for each in SPACES]
    for each in spaces:
        if libc.setns(each, 0):
            raise OSError(ctypes.get_errno(), f"namespace of process {process}")
        os.close(each)


def begin(words: list[str], variables: dict[str, str], folder: str, output: int) -> None:
    """Become the program."""
    os.setsid()
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    setproctitle(" ".join([sys.executable, *words[:2]]))
    be_main(words)


def reap() -> None:
    """Forget the children that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def admit(listener: socket.socket) -> None:
    """Fork what serves a process, for each that asks."""
    gc.freeze()
    gc.enable()
    while True:
        door, _ = listener.accept()
        reap()
        if not os.fork():
            listener.close()
            serve(door)
            os._exit(0)
        door.close()


def serve(door: socket.socket) -> None:
    """Fork what is asked for, below a process that waits for its end and tells of it."""
    own = os.getpid()
    while True:
        content, files, _, _ = socket.recv_fds(door, 1 << 20, 2)
        if not content:
            return
        reap()
        output, answers = files
        if os.fork():
            os.close(output)
            os.close(answers)
            continue
        die_with(own)
        door.close()
        words, variables, folder, host = json.loads(content)
        if host is not None:
            enter(host)
        # A process of another host is in sight of none there.
        above = os.getpid() if host is None else 0
        process = os.fork()
        if not process:
            die_with(above)
            os.close(answers)
            leave(partial(begin, words, variables, folder, output))
        os.close(output)
        told = Connection(answers, readable=False)
        told.send_bytes(str(process).encode())
        _, status = os.waitpid(process, 0)
        told.send_bytes(str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)


if __name__ == "__main__":
    die_with(os.getppid())
    # What an import makes stays.
    gc.disable()
    importlib.import_module(sys.argv[2])
    # Whose variables are others than those that it was started with finds no place for a title any more.
    os.environ["SPT_NOENV"] = "1"
    setproctitle(getproctitle())
    admit(socket.socket(fileno=int(sys.argv[1])))
