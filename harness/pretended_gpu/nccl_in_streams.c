/* The stand-in for NCCL on pretended GPUs: its operations come after what else is in their stream. The stand-in itself
 * knows streams by number only; scripts/pretend-gpu gives these three of its functions other names. */
#include <stddef.h>

void pretended_operation(void *stream);
int own_ncclAllReduce(const void *from, void *to, size_t count, int type, int how, void *communicator, void *stream);
int own_ncclSend(const void *from, size_t count, int type, int peer, void *communicator, void *stream);
int own_ncclRecv(void *to, size_t count, int type, int peer, void *communicator, void *stream);

int ncclAllReduce(const void *from, void *to, size_t count, int type, int how, void *communicator, void *stream) {
    pretended_operation(stream);
    return own_ncclAllReduce(from, to, count, type, how, communicator, stream);
}

int ncclSend(const void *from, size_t count, int type, int peer, void *communicator, void *stream) {
    pretended_operation(stream);
    return own_ncclSend(from, count, type, peer, communicator, stream);
}

int ncclRecv(void *to, size_t count, int type, int peer, void *communicator, void *stream) {
    pretended_operation(stream);
    return own_ncclRecv(to, count, type, peer, communicator, stream);
}
