/* What nccl_in_streams.c takes of nccl_groups.c, and that of others. */
#pragma once
#include <stddef.h>

typedef struct Group Group;

/* Of runtime.c: an operation comes next in a stream; gives the stand-ins' name of it. */
void *pretended_operation(void *stream);

/* Of the stand-in for NCCL: what runs with a stream. */
long stand_in_give(void *stream);
void stand_in_end(void *stream);
void stand_in_await(void *stream, long number);

/* Whether a communicator is one of nccl_groups.c. */
int is_group(void *communicator);
int make_group(Group **made, int size, const char *id, int rank);
int abort_group(Group *it);
int group_state(Group *it);
int group_start(void);
int group_end(void);
int group_reduce(Group *it, const void *from, void *to, size_t count, int type, int how, int root, void *stream);
int group_broadcast(Group *it, const void *from, void *to, size_t count, int type, int root, void *stream);
int group_all_reduce(Group *it, const void *from, void *to, size_t count, int type, int how, void *stream);
int group_transfer(Group *it, int sends, const void *at, size_t count, int type, int peer, void *stream);
