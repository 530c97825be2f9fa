"""What NCCL's functions are called with, by a library that has the same names and writes down what it gets."""

import ctypes
import shutil
import subprocess

import pytest
import torch

from recycle.runtime.errors import RunError
from recycle.runtime.net.nccl.bindings import Call, Nccl

SOURCE = r"""
#include <stdio.h>
#include <string.h>
typedef struct { char internal[128]; } Id;
typedef struct {
  size_t size; unsigned magic, version; int blocking, cga, least, most; const char *net; int share;
} Config;
static char said[4096];
static int state;
#define SAY(...) snprintf(said + strlen(said), sizeof said - strlen(said), __VA_ARGS__)
const char *take(int next) { static char told[4096]; strcpy(told, said); said[0] = 0; state = next; return told; }
int ncclGetVersion(int *version) { *version = RELEASE; return 0; }
const char *ncclGetErrorString(int result) { return result == 6 ? "remote process exited" : "other"; }
const char *ncclGetLastError(void *comm) { return state == 6 ? "" : "no driver"; }
int ncclGetUniqueId(Id *id) { for (int k = 0; k < 128; k++) id->internal[k] = (char)k; return 0; }
int ncclCommInitRankConfig(void **comm, int size, Id id, int rank, Config *config) {
  *comm = (void *)0x7f1234567890;
  SAY("init %d of %d, %d..%d, %d %x %d %d;", rank, size, id.internal[1], id.internal[127], config->blocking,
      config->magic, config->size == sizeof(Config), config->least == -2147483647 - 1 && config->net == 0);
  return 7;
}
int ncclCommGetAsyncError(void *comm, int *found) { *found = state; return comm == (void *)0x7f1234567890 ? 0 : 4; }
int ncclAllReduce(const void *from, void *to, size_t count, int type, int how, void *comm, void *stream) {
  SAY("sum %d %zu %d %d %p %p;", from == to, count, type, how, comm, stream);
  return 0;
}
int ncclReduce(const void *from, void *to, size_t count, int type, int how, int root, void *comm, void *stream) {
  SAY("reduce %d %zu %d %d to %d %p %p;", from == to, count, type, how, root, comm, stream);
  return 0;
}
int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, void *comm, void *stream) {
  SAY("broadcast %d %zu %d from %d %p %p;", from == to, count, type, root, comm, stream);
  return 0;
}
int ncclGroupStart(void) { SAY("(;"); return 0; }
int ncclGroupEnd(void) { SAY(");"); return 0; }
int ncclSend(const void *from, size_t count, int type, int peer, void *comm, void *stream) {
  SAY("send %zu %d to %d;", count, type, peer);
  return 7;
}
int ncclRecv(void *to, size_t count, int type, int peer, void *comm, void *stream) {
  SAY("receive %zu %d from %d;", count, type, peer);
  return 0;
}
int ncclCommAbort(void *comm) { SAY("abort %p;", comm); return 0; }
"""
HANDLE = 0x7F1234567890

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no compiler")


@pytest.fixture
def library(tmp_path):
    def make(release):
        path = tmp_path / f"nccl{release}.so"
        command = ["gcc", "-shared", "-fPIC", f"-DRELEASE={release}", "-x", "c", "-", "-o", str(path)]
        subprocess.run(command, input=SOURCE, text=True, check=True)
        take = ctypes.CDLL(str(path)).take
        take.restype = ctypes.c_char_p
        return Nccl(str(path)), lambda state=0: take(state).decode()

    return make


def test_a_communicator_is_made_without_blocking(library):
    nccl, said = library(22703)
    name = nccl.unique_id()
    assert name == bytes(range(128))
    assert nccl.join(name, 2, 5) == HANDLE
    assert said(7) == "init 2 of 5, 1..127, 0 cafebeef 1 1;"
    assert nccl.in_progress(HANDLE)
    said(6)
    with pytest.raises(RuntimeError, match=r"^NCCL: remote process exited$"):
        nccl.in_progress(HANDLE)
    said()
    assert not nccl.in_progress(HANDLE)


def test_operations_are_what_they_are_called(library):
    nccl, said = library(22703)
    calls = [
        Call("sum", torch.ones(3)),
        Call("maximum", torch.ones(2, dtype=torch.float64)),
        Call("reduce", torch.ones(4, dtype=torch.uint8), 2),
        Call("broadcast", torch.ones(7, dtype=torch.float16), 3),
        Call("send", torch.ones(5, dtype=torch.bfloat16), 1),
        Call("receive", torch.ones(6, dtype=torch.int64), 0),
    ]
    nccl.start(calls, HANDLE, 17)
    ends = "0x7f1234567890 0x11"
    assert said() == (
        f"(;sum 1 3 7 0 {ends};sum 1 2 8 2 {ends};reduce 1 4 1 0 to 2 {ends};broadcast 1 7 6 from 3 {ends};"
        "send 5 9 to 1;receive 6 4 from 0;);"
    )


def test_a_group_that_fails_is_closed(library):
    nccl, said = library(22703)
    with pytest.raises(AssertionError, match="contiguous"):
        nccl.start([Call("sum", torch.ones(4, 4).t()[1:])], HANDLE, 17)
    assert said() == "(;);"


@pytest.mark.parametrize("result", [1, 2, 3, 4, 5, 8, 99])
def test_whatever_is_neither_success_nor_progress_is_an_error_with_its_cause(library, result):
    nccl, said = library(22703)
    said(result)
    with pytest.raises(RuntimeError, match=r"^NCCL: other: no driver$"):
        nccl.in_progress(HANDLE)


@pytest.mark.parametrize("release", [21805, 22703, 22907, 23203])
def test_a_communicator_is_given_up_by_abort_alone(library, release):
    nccl, said = library(release)
    nccl.abort(HANDLE)
    assert said() == "abort 0x7f1234567890;"


def test_a_release_that_is_too_old_is_refused(library):
    with pytest.raises(RunError, match="21706, and 21805 is the first"):
        library(21706)


def test_who_has_none_is_told_so():
    with pytest.raises(RunError, match=r"^transport is nccl: libnone\.so\.2 cannot be loaded"):
        Nccl("libnone.so.2")
