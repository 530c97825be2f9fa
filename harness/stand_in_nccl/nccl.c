/* A stand-in for NCCL as a library: its names and its way to call them, over host memory and processes of one host.
 *
 * It is not NCCL. What it keeps of it is what recovery has to live with:
 *   - A communicator that does not block is there at once, and is in progress until all its ranks have come.
 *   - An operation is in progress until it is launched; a communicator's first one until all ranks have come to it,
 *     because connections are made then. Who is in progress takes no other operation.
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
enum { SEND = 100, RECEIVE };
enum { GARBAGE = 0x5a };
enum { MOST_RANKS = 256, CHUNK = 1 << 18, MOST_STREAMS = 1 << 16, RELEASE = 22907 };

/* What a rank shows to the others: how far it is, and in which operation. */
typedef struct {
  _Atomic uint64_t written, taken;
  uint64_t kind, type, count;
} Place;

typedef struct {
  _Atomic uint32_t bell, come, connected;
  Place places[MOST_RANKS];
  char chunks[][CHUNK];
} Shared;

typedef struct Operation {
  struct Operation *next;
  struct Communicator *communicator;
  const void *from;
  void *to;
  size_t count;
  int kind, type;
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
  uint64_t step;
  _Atomic int state, aborted, gone;
  int pending, connected;
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

typedef int (*Condition)(Communicator *);

/* Wait for what other ranks do; says whether it came before this side gave up. */
static int await(Communicator *it, Condition come) {
  for (;;) {
    uint32_t seen = atomic_load(&it->shared->bell);
    if (atomic_load(&it->aborted)) return 0;
    if (come(it)) return 1;
    await_bell(&it->shared->bell, seen);
  }
}

static int all_came(Communicator *it) { return (int)atomic_load(&it->shared->come) == it->size; }

static int all_connected(Communicator *it) { return (int)atomic_load(&it->shared->connected) == it->size; }

static int all_wrote(Communicator *it) {
  for (int k = 0; k < it->size; k++)
    if (atomic_load(&it->shared->places[k].written) <= it->step) return 0;
  return 1;
}

static int all_took(Communicator *it) {
  for (int k = 0; k < it->size; k++)
    if (atomic_load(&it->shared->places[k].taken) < it->step) return 0;
  return 1;
}

/* ---- Operations ---- */

static int agree(Communicator *it, const Operation *operation) {
  for (int k = 0; k < it->size; k++) {
    Place *place = &it->shared->places[k];
    int expected = operation->kind;
    if (k != it->rank && expected == SEND) expected = RECEIVE;
    else if (k != it->rank && expected == RECEIVE) expected = SEND;
    if ((int)place->kind != expected || place->count != operation->count || (int)place->type != operation->type) return 0;
  }
  return 1;
}

/* Carry out an operation, a chunk after the other. It is over for this rank when it has what it needs. Once it is
 * aborted it waits for nobody, and what others read is nothing that was ever sent. */
static void carry_out(const Operation *operation) {
  Communicator *it = operation->communicator;
  size_t width = widths[operation->type], most = CHUNK / width, done = 0;
  Place *mine = &it->shared->places[it->rank];
  do {
    size_t count = operation->count - done < most ? operation->count - done : most;
    int goes_on = await(it, all_took);
    mine->kind = (uint64_t)operation->kind, mine->type = (uint64_t)operation->type, mine->count = operation->count;
    if (goes_on && operation->kind != RECEIVE)
      memcpy(it->shared->chunks[it->rank], (const char *)operation->from + done * width, count * width);
    atomic_store(&mine->written, it->step + 1);
    ring_bell(&it->shared->bell);
    if (!await(it, all_wrote)) {
      memset(it->shared->chunks[it->rank], GARBAGE, count * width);
      atomic_store(&mine->taken, ++it->step);
      ring_bell(&it->shared->bell);
      done += count;
      continue;
    }
    if (!agree(it, operation)) {
      atomic_store(&it->state, INVALID_USAGE);
      return;
    }
    char *to = (char *)operation->to + done * width;
    if (operation->kind == RECEIVE) memcpy(to, it->shared->chunks[1 - it->rank], count * width);
    else if (operation->kind != SEND) combine(to, it->shared->chunks[0], CHUNK, it->size, count, operation->type, operation->kind);
    atomic_store(&mine->taken, ++it->step);
    ring_bell(&it->shared->bell);
    done += count;
  } while (done < operation->count);
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
    free(operation);
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
  int whole = await(it, all_came);
  if (whole) unlink(it->path);
  pthread_mutex_lock(&lock);
  if (whole) atomic_store(&it->state, SUCCESS);
  while (!atomic_load(&it->aborted)) {
    Operation *operation = it->launching;
    if (!operation) {
      pthread_cond_wait(&changed, &lock);
      continue;
    }
    while (!it->connected && running) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    if (!it->connected) {
      atomic_fetch_add(&it->shared->connected, 1);
      ring_bell(&it->shared->bell);
      it->connected = await(it, all_connected);
    }
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
    free(it->launching);
    it->launching = NULL;
  }
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return NULL;
}

static int launch(Communicator *it, int kind, const void *from, void *to, size_t count, int type, void *stream) {
  if (!it || atomic_load(&it->gone)) return fail(INVALID_ARGUMENT, "the communicator is no more");
  if (type < 0 || type > BFLOAT) return fail(INVALID_ARGUMENT, "there is no such type");
  if (!from || !to) return fail(INVALID_ARGUMENT, "there is no tensor");
  int state = atomic_load(&it->state);
  if (state == IN_PROGRESS)
    return fail(INVALID_ARGUMENT, "Attempt to use communicator before the previous operation returned ncclSuccess");
  if (state != SUCCESS) return fail(state, "the communicator has failed");
  Operation *operation = calloc(1, sizeof *operation);
  *operation = (Operation){NULL, it, from, to, count, kind, type, stream};
  pthread_mutex_lock(&lock);
  it->pending++, pending++;
  stream_of(stream)->given++;
  atomic_store(&it->state, IN_PROGRESS);
  it->launching = operation;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return IN_PROGRESS;
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
  it->shared = share(it->path, name, sizeof(Shared) + (size_t)size * CHUNK);
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

int ncclAllReduce(const void *from, void *to, size_t count, int type, int how, Communicator *it, void *stream) {
  if (how != SUM && how != MAXIMUM) return fail(INVALID_ARGUMENT, "there is no such reduction here");
  return launch(it, how, from, to, count, type, stream);
}

static int transfer(Communicator *it, int kind, void *tensor, size_t count, int type, int peer, void *stream) {
  if (it && !atomic_load(&it->gone) && (it->size != 2 || peer != 1 - it->rank))
    return fail(INVALID_ARGUMENT, "transfers are between the two of a communicator here");
  return launch(it, kind, tensor, tensor, count, type, stream);
}

int ncclSend(const void *from, size_t count, int type, int peer, Communicator *it, void *stream) {
  return transfer(it, SEND, (void *)from, count, type, peer, stream);
}

int ncclRecv(void *to, size_t count, int type, int peer, Communicator *it, void *stream) {
  return transfer(it, RECEIVE, to, count, type, peer, stream);
}

/* All that was given to it has left the device: then it is no more. */
static void reclaim(Communicator *it) {
  pthread_mutex_lock(&lock);
  while (it->pending) pthread_cond_wait(&changed, &lock);
  if (it->queue != only_queue) it->queue->closed = 1;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  munmap(it->shared, sizeof(Shared) + (size_t)it->size * CHUNK);
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
  if (!all_came(it)) unlink(it->path);
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

/* How many operations of this process are not over. */
long stand_in_pending(void) {
  pthread_mutex_lock(&lock);
  long number = pending;
  pthread_mutex_unlock(&lock);
  return number;
}
