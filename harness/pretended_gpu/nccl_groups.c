/* A stand-in for what torch's own groups take of NCCL: communicators that block, and all operations, in groups or not.
 *
 * Whatever a communicator is given becomes transfers between two ranks each, a box of memory that their processes share
 * for either direction; what comes together is put together in the order of ranks. Operations of a communicator follow
 * each other, and those of one group go on at once. Of what NCCL does when a rank is gone there is nothing here: an abort
 * ends what waits, and that is all.
 */
#define _GNU_SOURCE
#include "nccl_groups.h"

#include <pthread.h>

#include "../stand_in_nccl/numbers.h"
#include "../stand_in_nccl/shared.h"

enum { DONE, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE, MOST_RANKS = 64, BOX = 1 << 16, NO_COLOR = -1 };
static const uint64_t MARK = 0x67726F757073;

typedef struct {
    _Atomic uint64_t written, taken;
    uint64_t total;
    char content[BOX];
} Box;

typedef struct {
    _Atomic uint32_t bell, come;
    Box boxes[];
} Shared;

typedef struct {
    int peer, sends, over;
    char *at;
    size_t left, total;
} Transfer;

/* An operation: its transfers, and what becomes of what they bring. */
typedef struct Work {
    struct Work *next;
    void *stream;
    long before; /* of the operations that were given with its stream */
    char *kept, *to;
    size_t count;
    int type, how, together, transfers;
    Transfer list[];
} Work;

struct Group {
    uint64_t mark;
    Shared *shared;
    char path[PATH_MAX];
    int rank, size, splits;
    _Atomic int state, aborted;
    Work *first, **last;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

typedef struct Given {
    struct Given *next;
    Group *group;
    Work *work;
} Given;

static __thread int depth;
static __thread Given *given, **last_given;

int is_group(void *communicator) { return communicator && *(uint64_t *)communicator == MARK; }

/* ---- Transfers ---- */

/* Move a box's worth, if the other side is as far; says whether it was. */
static int move(Group *it, Transfer *transfer) {
    int from = transfer->sends ? it->rank : transfer->peer, to = transfer->sends ? transfer->peer : it->rank;
    Box *box = &it->shared->boxes[from * it->size + to];
    uint64_t written = atomic_load(&box->written), taken = atomic_load(&box->taken);
    if (transfer->sends ? written != taken : written == taken) return 0;
    size_t length = transfer->left < BOX ? transfer->left : BOX;
    if (transfer->sends) {
        box->total = transfer->total;
        memcpy(box->content, transfer->at, length);
        atomic_store(&box->written, written + 1);
    } else {
        if (box->total != transfer->total) {
            fprintf(stderr, "stand-in for NCCL: rank %d sends %zu bytes to rank %d, which expects %zu\n", from,
                    (size_t)box->total, to, transfer->total);
            atomic_store(&it->state, INVALID_USAGE);
            return 0;
        }
        memcpy(transfer->at, box->content, length);
        atomic_store(&box->taken, taken + 1);
    }
    transfer->at += length, transfer->left -= length;
    ring_bell(&it->shared->bell);
    return 1;
}

/* Move what can be moved of operations that go on at once; says whether all of it has been. */
static int progress(Group *it, Work *work, int number, int *moved) {
    unsigned char under_way[2][MOST_RANKS] = {0};
    int whole = 1;
    for (; number; number--, work = work->next)
        for (int k = 0; k < work->transfers; k++) {
            Transfer *each = &work->list[k];
            if (each->over) continue;
            whole = 0;
            if (under_way[each->sends][each->peer]++) continue;
            if (!move(it, each)) continue;
            *moved = 1;
            /* One without content is a box as well. */
            each->over = !each->left;
        }
    return whole;
}

/* The first operation is over. */
static void end(Group *it) {
    Work *work = it->first;
    if (work->kept && !atomic_load(&it->aborted))
        combine(work->to, work->kept, work->count * widths[work->type], it->size, work->count, work->type, work->how);
    pthread_mutex_lock(&it->lock);
    if (!(it->first = work->next)) it->last = &it->first;
    pthread_cond_broadcast(&it->changed);
    pthread_mutex_unlock(&it->lock);
    stand_in_end(work->stream);
    free(work->kept);
    free(work);
}

static void *run(void *argument) {
    Group *it = argument;
    for (;;) {
        pthread_mutex_lock(&it->lock);
        while (!it->first && !atomic_load(&it->aborted)) pthread_cond_wait(&it->changed, &it->lock);
        Work *first = it->first;
        pthread_mutex_unlock(&it->lock);
        if (!first) return NULL;
        int number = first->together;
        stand_in_await(first->stream, first->before);
        for (;;) {
            uint32_t seen = atomic_load(&it->shared->bell);
            int moved = 0;
            if (atomic_load(&it->aborted) || progress(it, first, number, &moved)) break;
            if (!moved) await_bell(&it->shared->bell, seen);
        }
        while (number--) end(it);
    }
}

/* ---- Giving operations ---- */

/* Have operations that follow each other carried out. */
static void put(Group *it, Work *first, Work **last) {
    pthread_mutex_lock(&it->lock);
    *it->last = first;
    it->last = last;
    pthread_cond_broadcast(&it->changed);
    pthread_mutex_unlock(&it->lock);
}

/* All after those that can be put together have a byte. */
static size_t width(int type) { return type > BFLOAT ? 1 : widths[type]; }

static Work *new_work(Group *it, void *stream) {
    Work *work = calloc(1, sizeof(Work) + 2 * (size_t)it->size * sizeof(Transfer));
    work->stream = stream, work->together = 1;
    return work;
}

static void add(Work *work, int sends, int peer, const void *at, size_t length) {
    work->list[work->transfers++] = (Transfer){peer, sends, 0, (char *)at, length, length};
}

static int give(Group *it, Work *work) {
    if (!depth) {
        work->stream = pretended_operation(work->stream);
        work->before = stand_in_give(work->stream);
        put(it, work, &work->next);
        return DONE;
    }
    Given *each = malloc(sizeof *each);
    *each = (Given){NULL, it, work};
    if (!given) last_given = &given;
    *last_given = each;
    last_given = &each->next;
    return DONE;
}

int group_start(void) {
    depth++;
    return DONE;
}

/* What one communicator was given in a group goes on at once, after what was given with its first operation's stream. */
int group_end(void) {
    if (--depth) return DONE;
    Given *rest = given;
    given = NULL;
    while (rest) {
        Group *it = rest->group;
        Given *others = NULL, **last_other = &others;
        Work *first = NULL, **last = &first;
        for (Given *each = rest, *next; each; each = next) {
            next = each->next;
            if (each->group != it) {
                each->next = NULL, *last_other = each, last_other = &each->next;
                continue;
            }
            each->work->stream = pretended_operation(each->work->stream);
            each->work->before = stand_in_give(each->work->stream);
            *last = each->work, last = &each->work->next;
            if (first != each->work) first->together++;
            free(each);
        }
        put(it, first, last);
        rest = others;
    }
    return DONE;
}

/* ---- Communicators ---- */

static int open_group(Group **made, const char *name, int rank, int size) {
    *made = NULL;
    if (size < 1 || size > MOST_RANKS || rank < 0 || rank >= size) return INVALID_ARGUMENT;
    Group *it = calloc(1, sizeof *it);
    it->shared = share(it->path, name, sizeof(Shared) + (size_t)(size * size) * sizeof(Box));
    if (!it->shared) {
        free(it);
        return SYSTEM_ERROR;
    }
    it->mark = MARK, it->rank = rank, it->size = size, it->last = &it->first;
    pthread_mutex_init(&it->lock, NULL);
    pthread_cond_init(&it->changed, NULL);
    atomic_fetch_add(&it->shared->come, 1);
    ring_bell(&it->shared->bell);
    for (uint32_t seen; seen = atomic_load(&it->shared->bell), (int)atomic_load(&it->shared->come) < size;)
        await_bell(&it->shared->bell, seen);
    unlink(it->path);
    pthread_create(&it->thread, NULL, run, it);
    *made = it;
    return DONE;
}

int make_group(Group **made, int size, const char *id, int rank) {
    char name[33];
    snprintf(name, sizeof name, "%.32s", id);
    return open_group(made, name, rank, size);
}

static void await_all(Group *it) {
    pthread_mutex_lock(&it->lock);
    while (it->first) pthread_cond_wait(&it->changed, &it->lock);
    pthread_mutex_unlock(&it->lock);
}

int group_state(Group *it) { return atomic_load(&it->state); }

int abort_group(Group *it) {
    pthread_mutex_lock(&it->lock);
    atomic_store(&it->aborted, 1);
    pthread_cond_broadcast(&it->changed);
    pthread_mutex_unlock(&it->lock);
    ring_bell(&it->shared->bell);
    pthread_join(it->thread, NULL);
    munmap(it->shared, sizeof(Shared) + (size_t)(it->size * it->size) * sizeof(Box));
    it->mark = 0;
    return DONE;
}

int ncclCommFinalize(Group *it) {
    if (!is_group(it)) return INVALID_ARGUMENT;
    await_all(it);
    return DONE;
}

int ncclCommDestroy(Group *it) {
    if (!is_group(it)) return INVALID_ARGUMENT;
    await_all(it);
    return abort_group(it);
}

int ncclCommCount(Group *it, int *count) {
    if (!is_group(it)) return INVALID_ARGUMENT;
    *count = it->size;
    return DONE;
}

int ncclCommUserRank(Group *it, int *rank) {
    if (!is_group(it)) return INVALID_ARGUMENT;
    *rank = it->rank;
    return DONE;
}

int ncclCommSplit(Group *it, int color, int key, Group **made, void *configuration) {
    (void)configuration;
    *made = NULL;
    if (!is_group(it)) return INVALID_ARGUMENT;
    int mine[2] = {color, key}, all[MOST_RANKS][2];
    Work *work = new_work(it, &it->splits);
    for (int peer = 0; peer < it->size; peer++) {
        add(work, 1, peer, mine, sizeof mine);
        add(work, 0, peer, all[peer], sizeof mine);
    }
    work->before = stand_in_give(work->stream);
    put(it, work, &work->next);
    await_all(it);
    int number = it->splits++, rank = 0, size = 0;
    if (color == NO_COLOR) return DONE;
    for (int peer = 0; peer < it->size; peer++) {
        if (all[peer][0] != color) continue;
        size++;
        rank += all[peer][1] < key || (all[peer][1] == key && peer < it->rank);
    }
    char name[NAME_MAX];
    snprintf(name, sizeof name, "%.200s-%d-%d", strstr(it->path, "nccl-") + 5, number, color);
    return open_group(made, name, rank, size);
}

/* ---- Operations ---- */

int group_transfer(Group *it, int sends, const void *at, size_t count, int type, int peer, void *stream) {
    Work *work = new_work(it, stream);
    add(work, sends, peer, at, count * width(type));
    return give(it, work);
}

/* Have ranks put together what all of them send; from each, every rank takes the part that is its own, or all. */
static int put_together(Group *it, const void *from, void *to, size_t count, int type, int how, int root, int parts, void *stream) {
    if (type < 0 || type > BFLOAT || how > AVERAGE) return INVALID_ARGUMENT;
    Work *work = new_work(it, stream);
    size_t length = count * widths[type];
    int takes = root < 0 || root == it->rank;
    if (takes) work->kept = malloc(length * (size_t)it->size + 1), work->to = to, work->count = count, work->type = type, work->how = how;
    for (int peer = 0; peer < it->size; peer++) {
        if (root < 0 || root == peer) add(work, 1, peer, (const char *)from + (parts ? (size_t)peer * length : 0), length);
        if (takes) add(work, 0, peer, work->kept + (size_t)peer * length, length);
    }
    return give(it, work);
}

int group_all_reduce(Group *it, const void *from, void *to, size_t count, int type, int how, void *stream) {
    return put_together(it, from, to, count, type, how, -1, 0, stream);
}

int group_reduce(Group *it, const void *from, void *to, size_t count, int type, int how, int root, void *stream) {
    return put_together(it, from, to, count, type, how, root, 0, stream);
}

int ncclReduceScatter(const void *from, void *to, size_t count, int type, int how, Group *it, void *stream) {
    return put_together(it, from, to, count, type, how, -1, 1, stream);
}

int group_broadcast(Group *it, const void *from, void *to, size_t count, int type, int root, void *stream) {
    Work *work = new_work(it, stream);
    size_t length = count * width(type);
    for (int peer = 0; root == it->rank && peer < it->size; peer++) add(work, 1, peer, from, length);
    add(work, 0, root, to, length);
    return give(it, work);
}

int ncclBcast(void *tensor, size_t count, int type, int root, Group *it, void *stream) {
    return group_broadcast(it, tensor, tensor, count, type, root, stream);
}

/* Send each rank the same or its own part, and have one of each. */
static int exchange(Group *it, const void *from, void *to, size_t count, int type, int parts, void *stream) {
    Work *work = new_work(it, stream);
    size_t length = count * width(type);
    for (int peer = 0; peer < it->size; peer++) {
        add(work, 1, peer, (const char *)from + (parts ? (size_t)peer * length : 0), length);
        add(work, 0, peer, (char *)to + (size_t)peer * length, length);
    }
    return give(it, work);
}

int ncclAllGather(const void *from, void *to, size_t count, int type, Group *it, void *stream) {
    return exchange(it, from, to, count, type, 0, stream);
}

int ncclAlltoAll(const void *from, void *to, size_t count, int type, Group *it, void *stream) {
    return exchange(it, from, to, count, type, 1, stream);
}
