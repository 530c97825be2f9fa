/* A stand-in for NCCL as a library: its names and its way to call them, over host memory and processes of one host.
 *
 * It is not NCCL. What it keeps of it is what recovery has to live with:
 *   - A communicator that does not block is there at once, and is in progress until all its ranks have come.
 *   - An operation is in progress until it is launched; a communicator's first one until all ranks have come to it, and
 *     the first transfer between two ranks until both have, because connections are made then. Who is in progress takes
 *     no other operation.
 *   - What a communicator is given in a group is one operation, whose parts go on at once.
 *   - A rank sends as many bytes as in NCCL's rings: of a sum that all get, two parts less than all of it twice; of one
 *     that a single rank gets, all of it. Of a broadcast the root sends all copies, which in NCCL go from rank to rank.
 *   - Making connections waits for all that runs on the device, whatever communicator it is of, and no abort of the own
 *     communicator ends that: CUDA does so where it loads a kernel or gives memory back.
 *   - Operations of a communicator are carried out in order; with CUDA_DEVICE_MAX_CONNECTIONS=1 those of a process are.
 *   - Nothing that a dead rank takes part in ever ends. An abort ends it on the own side, and nobody else is told: what
 *     was launched carries nothing more, but still goes through its steps, so that it ends at partners with anything.
 *   - An abort waits for the launch that is under way, and until all that was given to its communicator has left the
 *     device. So where that is behind another communicator's operation, it waits for the other one's abort.
 * What is stricter: operations that differ between ranks are an error, and what was aborted is remembered and refused.
 *
 * Ranks share a file per communicator in the folder STAND_IN_NCCL_FOLDER (/dev/shm), and wait for each other by a
 * futex in it. STAND_IN_NCCL_VERSION is the release that it says it is.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <sys/random.h>

#include "numbers.h"
#include "shared.h"

enum { SUCCESS, CUDA_ERROR, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, IN_PROGRESS };
enum { SEND = 100, BROADCAST, BOX = 1 << 16 };
enum { GARBAGE = 0x5a };
enum { MOST_RANKS = 64, MOST_STREAMS = 1 << 16, RELEASE = 22907 };

/* What goes from one rank to another, a piece after the other. Who has given up sends pieces of anything, and drops what
 * comes; `blanks` and `drops` say of how many pieces that is promised. */
typedef struct {
  _Atomic uint64_t written, taken, blanks, drops;
  uint64_t kind, type, total, filled;
  char content[BOX];
} Box;

typedef struct {
  _Atomic uint32_t bell, come, connected[MOST_RANKS][MOST_RANKS];
  Box boxes[];
} Shared;

typedef struct {
  int peer, sends, over;
  char *at;
  size_t left, total;
  int kind, type;
} Transfer;

/* What one rank does in an operation: it sends to a peer or receives, or all put together what each has. */
typedef struct Call {
  struct Call *next;
  struct Communicator *communicator;
  const void *from;
  void *to;
  size_t count;
  int kind, type, root, receives;
  char *kept;
  void *stream;
} Call;

typedef struct Operation {
  struct Operation *next;
  struct Communicator *communicator;
  Call *calls;
  void *stream;
} Operation;

/* Where operations run, one after the other. */
typedef struct {
  Operation *first, **last;
  int closed;
} Queue;

typedef struct Communicator {
  Shared *shared;
  char path[PATH_MAX];
  int rank, size;
  _Atomic int state, aborted, gone;
  int pending;
  unsigned char connected[MOST_RANKS];
  Operation *launching;
  Queue *queue;
  pthread_t launcher;
} Communicator;

typedef struct {
  void *stream;
  long given, over;
} Stream;

/* Guards all that is not shared with other processes; `changed` tells of every change of it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static Queue *only_queue;
static Stream streams[MOST_STREAMS];
static long pending, running;
static _Atomic long sent;
static __thread int depth;
static __thread Call *given;
static char last_error[256];

static int fail(int result, const char *why) {
  snprintf(last_error, sizeof last_error, "%s", why);
  return result;
}

static Stream *stream_of(void *stream) {
  uintptr_t first = (uintptr_t)stream ^ (uintptr_t)stream >> 16;
  for (uintptr_t k = 0; k < MOST_STREAMS; k++) {
    Stream *found = &streams[(first + k) % MOST_STREAMS];
    if (found->stream == stream || !found->given) {
      found->stream = stream;
      return found;
    }
  }
  abort();
}

/* ---- Waiting for other processes ---- */

typedef int (*Condition)(Communicator *, const void *);

/* Wait for what other ranks do; says whether it came before this side gave up. */
static int await(Communicator *it, Condition come, const void *what) {
  for (;;) {
    uint32_t seen = atomic_load(&it->shared->bell);
    if (atomic_load(&it->aborted)) return 0;
    if (come(it, what)) return 1;
    await_bell(&it->shared->bell, seen);
  }
}

static int all_came(Communicator *it, const void *nothing) {
  (void)nothing;
  return (int)atomic_load(&it->shared->come) == it->size;
}

/* Whether a rank has come to a first transfer with this one; or all to a first operation of all, if it is this one. */
static int has_connected(Communicator *it, const void *peer) {
  int k = *(const int *)peer;
  if (k != it->rank) return (int)atomic_load(&it->shared->connected[k][it->rank]);
  for (k = 0; k < it->size; k++)
    if (!atomic_load(&it->shared->connected[k][k])) return 0;
  return 1;
}

static int is_transfer(const Call *call) { return call->kind == SEND; }

/* With whom a call connects: with all, which goes by this rank's own name, or with one. */
static int partner(Communicator *it, const Call *call) { return is_transfer(call) ? call->root : it->rank; }

static int connects(Communicator *it, const Operation *operation) {
  for (const Call *each = operation->calls; each; each = each->next)
    if (!it->connected[partner(it, each)]) return 1;
  return 0;
}

static void connect_with(Communicator *it, const Operation *operation) {
  for (const Call *each = operation->calls; each; each = each->next)
    atomic_store(&it->shared->connected[it->rank][partner(it, each)], 1);
  ring_bell(&it->shared->bell);
  for (const Call *each = operation->calls; each; each = each->next) {
    int peer = partner(it, each);
    it->connected[peer] = (unsigned char)await(it, has_connected, &peer);
  }
}

/* ---- Operations ---- */

static Box *box_of(Communicator *it, const Transfer *transfer) {
  int from = transfer->sends ? it->rank : transfer->peer, to = transfer->sends ? transfer->peer : it->rank;
  return &it->shared->boxes[from * it->size + to];
}

static size_t piece_of(const Transfer *transfer) { return transfer->left < BOX ? transfer->left : BOX; }

static void moved(Communicator *it, Transfer *transfer, size_t length) {
  transfer->at += length, transfer->left -= length;
  /* What is sent has to be taken. */
  transfer->over = transfer->left ? 0 : transfer->sends ? 2 : 1;
  ring_bell(&it->shared->bell);
}

/* Move a piece, if the other side is as far; says whether it was. */
static int move(Communicator *it, Transfer *transfer) {
  Box *box = box_of(it, transfer);
  uint64_t written = atomic_load(&box->written), taken = atomic_load(&box->taken);
  size_t length = piece_of(transfer);
  if (transfer->sends) {
    if (written > taken + atomic_load(&box->drops)) return 0;
    if (transfer->over == 2) return transfer->over = 1;
    box->kind = (uint64_t)transfer->kind, box->type = (uint64_t)transfer->type, box->total = transfer->total;
    memcpy(box->content, transfer->at, length);
    atomic_store(&box->written, written + 1);
    if (transfer->peer != it->rank) atomic_fetch_add(&sent, (long)length);
  } else if (written > taken) {
    if ((int)box->kind != transfer->kind || (int)box->type != transfer->type || box->total != transfer->total) {
      atomic_store(&it->state, INVALID_USAGE);
      return 0;
    }
    memcpy(transfer->at, box->content, length);
    atomic_store(&box->taken, taken + 1);
  } else if (atomic_load(&box->blanks) > box->filled) {
    memset(transfer->at, GARBAGE, length);
    box->filled++;
  } else return 0;
  moved(it, transfer, length);
  return 1;
}

/* Promise the rest of a transfer, so that its other side ends with anything. */
static void give_up(Communicator *it, Transfer *transfer) {
  if (transfer->over == 1) return;
  Box *box = box_of(it, transfer);
  uint64_t pieces = transfer->over ? 0 : transfer->left ? (transfer->left + BOX - 1) / BOX : 1;
  if (transfer->sends && atomic_load(&box->written) > atomic_load(&box->taken)) memset(box->content, GARBAGE, BOX);
  atomic_fetch_add(transfer->sends ? &box->blanks : &box->drops, pieces);
  ring_bell(&it->shared->bell);
}

/* Move all of some transfers, each after those before it in the same direction; says whether that came to its end. */
static int move_all(Communicator *it, Transfer *list, int number) {
  for (int whole = 0; !whole;) {
    uint32_t seen = atomic_load(&it->shared->bell);
    unsigned char under_way[2][MOST_RANKS] = {0};
    int any = 0;
    whole = 1;
    for (int k = 0; k < number && !atomic_load(&it->aborted); k++) {
      if (list[k].over == 1) continue;
      whole = 0;
      if (!under_way[list[k].sends][list[k].peer]++ && move(it, &list[k])) any = 1;
    }
    if (atomic_load(&it->state) == INVALID_USAGE) return 0;
    if (atomic_load(&it->aborted)) {
      for (int k = 0; k < number; k++) give_up(it, &list[k]);
      return 0;
    }
    if (!whole && !any) await_bell(&it->shared->bell, seen);
  }
  return 1;
}

/* Of a sum that all get, each rank first gets a part. */
static size_t edge(const Call *call, int rank, int size) { return call->count * (size_t)rank / (size_t)size; }

static int for_all(const Call *call) { return call->kind != SEND && call->kind != BROADCAST && call->root < 0; }

/* What goes from each rank to those that put it together, and what goes one way only. */
static int gather(Communicator *it, Call *call, Transfer *list) {
  size_t width = widths[call->type];
  int kind = call->kind + (for_all(call) ? 0 : 10), number = 0;
  if (call->kind == BROADCAST) return 0;
  if (is_transfer(call)) {
    char *at = call->receives ? call->to : (char *)call->from;
    *list = (Transfer){call->root, !call->receives, 0, at, call->count * width, call->count, kind, call->type};
    return 1;
  }
  for (int rank = 0; rank < it->size; rank++) {
    size_t first = for_all(call) ? edge(call, rank, it->size) : 0;
    size_t count = for_all(call) ? edge(call, rank + 1, it->size) - first : call->count;
    if (!for_all(call) && rank != call->root) continue;
    list[number++] =
        (Transfer){rank, 1, 0, (char *)call->from + first * width, count * width, call->count, kind, call->type};
    if (rank != it->rank) continue;
    call->kept = malloc(count * width * (size_t)it->size + 1);
    for (int other = 0; other < it->size; other++)
      list[number++] = (Transfer){
          other, 0, 0, call->kept + (size_t)other * count * width, count * width, call->count, kind, call->type};
  }
  return number;
}

/* What goes to all when it has been put together. */
static int scatter(Communicator *it, const Call *call, Transfer *list) {
  size_t width = widths[call->type];
  int number = 0, root = call->root, all = for_all(call);
  if (!all && call->kind != BROADCAST) return 0;
  size_t first = all ? edge(call, it->rank, it->size) : 0, count = all ? edge(call, it->rank + 1, it->size) - first : call->count;
  const char *from = (all ? (const char *)call->to : (const char *)call->from) + first * width;
  for (int rank = 0; (all || root == it->rank) && rank < it->size; rank++)
    list[number++] = (Transfer){rank, 1, 0, (char *)from, count * width, call->count, BROADCAST, call->type};
  for (int rank = 0; rank < it->size; rank++) {
    if (!all && rank != root) continue;
    if (all) first = edge(call, rank, it->size), count = edge(call, rank + 1, it->size) - first;
    list[number++] = (Transfer){
        rank, 0, 0, (char *)call->to + first * width, count * width, call->count, BROADCAST, call->type};
  }
  return number;
}

/* Carry out an operation. It is over for this rank when it has what it needs, and what it has sent was taken. Once it is
 * aborted it waits for nobody, and what others get of it is nothing that was ever sent. */
static void carry_out(const Operation *operation) {
  Communicator *it = operation->communicator;
  int calls = 0, number = 0;
  for (Call *each = operation->calls; each; each = each->next) calls++;
  Transfer *list = calloc((size_t)calls * 2 * (size_t)(it->size + 1), sizeof *list);
  for (Call *each = operation->calls; each; each = each->next) number += gather(it, each, list + number);
  int whole = move_all(it, list, number);
  for (Call *each = operation->calls; each; each = each->next) {
    if (!each->kept) continue;
    size_t first = for_all(each) ? edge(each, it->rank, it->size) : 0;
    size_t count = for_all(each) ? edge(each, it->rank + 1, it->size) - first : each->count, width = widths[each->type];
    if (whole) combine((char *)each->to + first * width, each->kept, count * width, it->size, count, each->type, each->kind);
    free(each->kept);
  }
  number = 0;
  for (Call *each = operation->calls; each; each = each->next) number += scatter(it, each, list + number);
  if (atomic_load(&it->state) != INVALID_USAGE) move_all(it, list, number);
  free(list);
}

static void let_go(Operation *operation) {
  for (Call *each = operation->calls, *next; each; each = next) {
    next = each->next;
    free(each);
  }
  free(operation);
}

static void *run_queue(void *given) {
  Queue *queue = given;
  for (;;) {
    pthread_mutex_lock(&lock);
    while (!queue->first && !queue->closed) pthread_cond_wait(&changed, &lock);
    Operation *operation = queue->first;
    pthread_mutex_unlock(&lock);
    if (!operation) break;
    Communicator *it = operation->communicator;
    if (atomic_load(&it->state) != INVALID_USAGE) carry_out(operation);
    /* What went wrong stays on the device until it is given up. */
    pthread_mutex_lock(&lock);
    while (atomic_load(&it->state) == INVALID_USAGE && !atomic_load(&it->aborted)) pthread_cond_wait(&changed, &lock);
    if (!(queue->first = operation->next)) queue->last = &queue->first;
    it->pending--, pending--, running--;
    stream_of(operation->stream)->over++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    let_go(operation);
  }
  free(queue);
  return NULL;
}

static Queue *new_queue(void) {
  Queue *queue = calloc(1, sizeof *queue);
  queue->last = &queue->first;
  pthread_t thread;
  pthread_create(&thread, NULL, run_queue, queue);
  pthread_detach(thread);
  return queue;
}

static int one_queue(void) {
  const char *said = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  return said && !strcmp(said, "1");
}

/* Begin a communicator, and put into its queue what it is given. */
static void *run_launcher(void *given) {
  Communicator *it = given;
  atomic_fetch_add(&it->shared->come, 1);
  ring_bell(&it->shared->bell);
  int whole = await(it, all_came, NULL);
  if (whole) unlink(it->path);
  pthread_mutex_lock(&lock);
  if (whole) atomic_store(&it->state, SUCCESS);
  while (!atomic_load(&it->aborted)) {
    Operation *operation = it->launching;
    if (!operation) {
      pthread_cond_wait(&changed, &lock);
      continue;
    }
    while (connects(it, operation) && running) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    if (connects(it, operation)) connect_with(it, operation);
    pthread_mutex_lock(&lock);
    if (atomic_load(&it->aborted)) break;
    it->launching = NULL;
    running++;
    *it->queue->last = operation;
    it->queue->last = &operation->next;
    int before = IN_PROGRESS;
    atomic_compare_exchange_strong(&it->state, &before, SUCCESS);
    pthread_cond_broadcast(&changed);
  }
  if (it->launching) {
    /* It was never launched. */
    it->pending--, pending--;
    stream_of(it->launching->stream)->over++;
    let_go(it->launching);
    it->launching = NULL;
  }
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return NULL;
}

static int check(Communicator *it) {
  if (!it || atomic_load(&it->gone)) return fail(INVALID_ARGUMENT, "the communicator is no more");
  int state = atomic_load(&it->state);
  if (state == IN_PROGRESS)
    return fail(INVALID_ARGUMENT, "Attempt to use communicator before the previous operation returned ncclSuccess");
  return state == SUCCESS ? SUCCESS : fail(state, "the communicator has failed");
}

static int launch(Call *calls) {
  Communicator *it = calls->communicator;
  Operation *operation = calloc(1, sizeof *operation);
  *operation = (Operation){NULL, it, calls, calls->stream};
  pthread_mutex_lock(&lock);
  it->pending++, pending++;
  stream_of(operation->stream)->given++;
  atomic_store(&it->state, IN_PROGRESS);
  it->launching = operation;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return IN_PROGRESS;
}

static int give(Call call) {
  int result = check(call.communicator);
  if (result != SUCCESS) return result;
  if (call.type < 0 || call.type > BFLOAT) return fail(INVALID_ARGUMENT, "there is no such type");
  if ((!call.from && !call.receives) || !call.to) return fail(INVALID_ARGUMENT, "there is no tensor");
  if (call.root >= call.communicator->size || (is_transfer(&call) && (call.root < 0 || call.root == call.communicator->rank)))
    return fail(INVALID_ARGUMENT, "there is no such rank to exchange with here");
  Call *made = malloc(sizeof *made), **last = &given;
  *made = call;
  if (!depth) return launch(made);
  while (*last) last = &(*last)->next;
  *last = made;
  return SUCCESS;
}

/* ---- What NCCL offers ---- */

int ncclGetVersion(int *version) {
  const char *said = getenv("STAND_IN_NCCL_VERSION");
  *version = said ? atoi(said) : RELEASE;
  return SUCCESS;
}

const char *ncclGetErrorString(int result) {
  static const char *const names[] = {
      "no error",         "unhandled cuda error", "unhandled system error", "internal error",
      "invalid argument", "invalid usage",        "remote process exited",  "NCCL operation in progress",
  };
  return result >= 0 && result <= IN_PROGRESS ? names[result] : "unknown result code";
}

const char *ncclGetLastError(Communicator *it) {
  (void)it;
  return last_error;
}

int ncclGetUniqueId(Id *id) {
  unsigned char name[16];
  if (getrandom(name, sizeof name, 0) != sizeof name) return fail(SYSTEM_ERROR, "there are no random numbers");
  memset(id, 0, sizeof *id);
  for (size_t k = 0; k < sizeof name; k++) snprintf(id->content + 2 * k, 3, "%02x", name[k]);
  return SUCCESS;
}

int ncclCommInitRankConfig(Communicator **made, int size, Id id, int rank, Configuration *configuration) {
  *made = NULL;
  if (configuration->magic != 0xCAFEBEEF) return fail(INVALID_ARGUMENT, "the configuration is not one");
  if (configuration->size < sizeof(Configuration) || configuration->blocking != 0)
    return fail(INVALID_USAGE, "communicators that block are not known here");
  if (size < 1 || size > MOST_RANKS || rank < 0 || rank >= size)
    return fail(INVALID_ARGUMENT, "Invalid rank requested");
  Communicator *it = calloc(1, sizeof *it);
  char name[33];
  snprintf(name, sizeof name, "%.32s", id.content);
  it->shared = share(it->path, name, sizeof(Shared) + (size_t)(size * size) * sizeof(Box));
  if (!it->shared) {
    free(it);
    return fail(SYSTEM_ERROR, "no memory can be shared");
  }
  it->rank = rank, it->size = size;
  atomic_store(&it->state, IN_PROGRESS);
  pthread_mutex_lock(&lock);
  if (one_queue() && !only_queue) only_queue = new_queue();
  it->queue = only_queue ? only_queue : new_queue();
  pthread_mutex_unlock(&lock);
  pthread_create(&it->launcher, NULL, run_launcher, it);
  *made = it;
  return IN_PROGRESS;
}

int ncclCommGetAsyncError(Communicator *it, int *state) {
  if (!it || atomic_load(&it->gone)) return fail(INVALID_ARGUMENT, "the communicator is no more");
  *state = atomic_load(&it->state);
  return SUCCESS;
}

int ncclGroupStart(void) {
  depth++;
  return SUCCESS;
}

int ncclGroupEnd(void) {
  if (--depth || !given) return SUCCESS;
  Call *calls = given;
  given = NULL;
  for (Call *each = calls; each; each = each->next)
    if (each->communicator != calls->communicator || each->stream != calls->stream)
      return fail(INVALID_USAGE, "a group is of one communicator and one stream here");
  return launch(calls);
}

static int put_together(Communicator *it, const void *from, void *to, size_t count, int type, int how, int root, void *stream) {
  if (how != SUM && how != MAXIMUM) return fail(INVALID_ARGUMENT, "there is no such reduction here");
  return give((Call){NULL, it, from, to, count, how, type, root, 0, NULL, stream});
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int how, Communicator *it, void *stream) {
  return put_together(it, from, to, count, type, how, -1, stream);
}

int ncclReduce(const void *from, void *to, size_t count, int type, int how, int root, Communicator *it, void *stream) {
  if (root < 0) return fail(INVALID_ARGUMENT, "there is no such rank to exchange with here");
  return put_together(it, from, to, count, type, how, root, stream);
}

int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, Communicator *it, void *stream) {
  if (root < 0) return fail(INVALID_ARGUMENT, "there is no such rank to exchange with here");
  return give((Call){NULL, it, from, to, count, BROADCAST, type, root, 0, NULL, stream});
}

int ncclSend(const void *from, size_t count, int type, int peer, Communicator *it, void *stream) {
  return give((Call){NULL, it, from, (void *)from, count, SEND, type, peer, 0, NULL, stream});
}

int ncclRecv(void *to, size_t count, int type, int peer, Communicator *it, void *stream) {
  return give((Call){NULL, it, to, to, count, SEND, type, peer, 1, NULL, stream});
}

/* All that was given to it has left the device: then it is no more. */
static void reclaim(Communicator *it) {
  pthread_mutex_lock(&lock);
  while (it->pending) pthread_cond_wait(&changed, &lock);
  if (it->queue != only_queue) it->queue->closed = 1;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  munmap(it->shared, sizeof(Shared) + (size_t)(it->size * it->size) * sizeof(Box));
  it->shared = NULL;
}

int ncclCommAbort(Communicator *it) {
  if (!it || atomic_exchange(&it->gone, 1)) return fail(INVALID_ARGUMENT, "the communicator is no more");
  pthread_mutex_lock(&lock);
  atomic_store(&it->aborted, 1);
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  ring_bell(&it->shared->bell);
  pthread_join(it->launcher, NULL);
  if (!all_came(it, NULL)) unlink(it->path);
  reclaim(it);
  return SUCCESS;
}

/* ---- What only the stand-in offers ---- */

static long count(void *stream, int what) {
  pthread_mutex_lock(&lock);
  Stream *found = stream_of(stream);
  long number = what ? found->over : found->given;
  pthread_mutex_unlock(&lock);
  return number;
}

/* How many operations this process has given with a stream, and how many of them are over, in that order. */
long stand_in_given(void *stream) { return count(stream, 0); }

long stand_in_over(void *stream) { return count(stream, 1); }

/* Whether an operation that was given with a stream is not over. */
int stand_in_busy(void *stream) {
  pthread_mutex_lock(&lock);
  Stream *found = stream_of(stream);
  int busy = found->given != found->over;
  pthread_mutex_unlock(&lock);
  return busy;
}

/* An operation that is carried out elsewhere is given with a stream; says how many were before it. */
long stand_in_give(void *stream) {
  pthread_mutex_lock(&lock);
  pending++;
  long before = stream_of(stream)->given++;
  pthread_mutex_unlock(&lock);
  return before;
}

/* It is over. */
void stand_in_end(void *stream) {
  pthread_mutex_lock(&lock);
  pending--;
  stream_of(stream)->over++;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

/* Wait until so many operations that were given with a stream are over. */
void stand_in_await(void *stream, long number) {
  pthread_mutex_lock(&lock);
  while (stream_of(stream)->over < number) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
}

/* How many bytes this process has sent to other ranks. */
long stand_in_sent(void) { return atomic_load(&sent); }

/* How many operations of this process are not over. */
long stand_in_pending(void) {
  pthread_mutex_lock(&lock);
  long number = pending;
  pthread_mutex_unlock(&lock);
  return number;
}
