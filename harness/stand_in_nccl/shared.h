/* What both stand-ins for NCCL have of its interface, and how ranks share a communicator's memory and wait for each other. */
#pragma once
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef struct {
  char content[128];
} Id;

typedef struct {
  size_t size;
  unsigned magic, version;
  int blocking, cluster, least, most;
  const char *network;
  int split;
} Configuration;

/* The memory of a communicator, by its name; sets the path of its file. NULL if there is none. */
static inline void *share(char path[PATH_MAX], const char *name, size_t length) {
  const char *folder = getenv("STAND_IN_NCCL_FOLDER");
  snprintf(path, PATH_MAX, "%s/stand-in-nccl-%s", folder ? folder : "/dev/shm", name);
  int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  void *shared = MAP_FAILED;
  if (file >= 0 && !ftruncate(file, (off_t)length))
    shared = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (file >= 0) close(file);
  return shared == MAP_FAILED ? NULL : shared;
}

/* Tell the other ranks that something has changed. */
static inline void ring_bell(_Atomic uint32_t *bell) {
  atomic_fetch_add(bell, 1);
  syscall(SYS_futex, bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Wait until they have told since the bell was looked at, or a little while. */
static inline void await_bell(_Atomic uint32_t *bell, uint32_t seen) {
  struct timespec most = {.tv_nsec = 20 * 1000 * 1000};
  syscall(SYS_futex, bell, FUTEX_WAIT, seen, &most, NULL, 0);
}
