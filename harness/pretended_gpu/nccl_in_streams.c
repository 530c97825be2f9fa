/* The two stand-ins for NCCL on pretended GPUs: that of the transport, whose communicators do not block, and that of
 * torch's own groups, whose communicators do. Operations come after what else is in their stream: the first stand-in
 * itself knows streams by number only. scripts/pretend-gpu gives its functions that are called here other names. */
#include "../stand_in_nccl/shared.h"
#include "nccl_groups.h"

enum { UNEXPECTED = 3, WITHOUT_BLOCKING = 0 };

int own_ncclCommInitRankConfig(void **made, int size, Id id, int rank, Configuration *configuration);
int own_ncclCommAbort(void *communicator);
int own_ncclCommGetAsyncError(void *communicator, int *state);
int own_ncclAllReduce(const void *from, void *to, size_t count, int type, int how, void *communicator, void *stream);
int own_ncclReduce(const void *from, void *to, size_t count, int type, int how, int root, void *communicator, void *stream);
int own_ncclBroadcast(const void *from, void *to, size_t count, int type, int root, void *communicator, void *stream);
int own_ncclGroupStart(void);
int own_ncclGroupEnd(void);
int own_ncclSend(const void *from, size_t count, int type, int peer, void *communicator, void *stream);
int own_ncclRecv(void *to, size_t count, int type, int peer, void *communicator, void *stream);

int ncclCommInitRankConfig(void **made, int size, Id id, int rank, Configuration *configuration) {
    if (configuration->blocking == WITHOUT_BLOCKING) return own_ncclCommInitRankConfig(made, size, id, rank, configuration);
    return make_group((Group **)made, size, id.content, rank);
}

int ncclCommInitRankScalable(void **made, int size, int rank, int ids, Id *id, Configuration *configuration) {
    return ids < 1 ? UNEXPECTED : ncclCommInitRankConfig(made, size, *id, rank, configuration);
}

int ncclCommAbort(void *communicator) {
    return is_group(communicator) ? abort_group(communicator) : own_ncclCommAbort(communicator);
}

int ncclCommGetAsyncError(void *communicator, int *state) {
    if (!is_group(communicator)) return own_ncclCommGetAsyncError(communicator, state);
    *state = group_state(communicator);
    return 0;
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int how, void *communicator, void *stream) {
    if (is_group(communicator)) return group_all_reduce(communicator, from, to, count, type, how, stream);
    return own_ncclAllReduce(from, to, count, type, how, communicator, pretended_operation(stream));
}

int ncclReduce(const void *from, void *to, size_t count, int type, int how, int root, void *communicator, void *stream) {
    if (is_group(communicator)) return group_reduce(communicator, from, to, count, type, how, root, stream);
    return own_ncclReduce(from, to, count, type, how, root, communicator, pretended_operation(stream));
}

int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, void *communicator, void *stream) {
    if (is_group(communicator)) return group_broadcast(communicator, from, to, count, type, root, stream);
    return own_ncclBroadcast(from, to, count, type, root, communicator, pretended_operation(stream));
}

int ncclGroupStart(void) {
    own_ncclGroupStart();
    return group_start();
}

int ncclGroupEnd(void) {
    int own = own_ncclGroupEnd(), other = group_end();
    return own ? own : other;
}

int ncclSend(const void *from, size_t count, int type, int peer, void *communicator, void *stream) {
    if (is_group(communicator)) return group_transfer(communicator, 1, from, count, type, peer, stream);
    return own_ncclSend(from, count, type, peer, communicator, pretended_operation(stream));
}

int ncclRecv(void *to, size_t count, int type, int peer, void *communicator, void *stream) {
    if (is_group(communicator)) return group_transfer(communicator, 0, to, count, type, peer, stream);
    return own_ncclRecv(to, count, type, peer, communicator, pretended_operation(stream));
}
