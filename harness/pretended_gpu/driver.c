/* CUDA's driver (libcuda) and its management library (libnvidia-ml), as far as torch asks them without a kernel. */
#include <stdio.h>
#include <stdlib.h>

static int count(void) {
    const char *pretended = getenv("PRETENDED_GPUS");
    return pretended ? atoi(pretended) : 1;
}

int cuInit(unsigned flags) { return 0; }

int cuDeviceGet(int *device, int number) {
    *device = number;
    return 0;
}

int cuDeviceGetCount(int *found) {
    *found = count();
    return 0;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    *flags = 0, *active = 1;
    return 0;
}

int nvmlInit(void) { return 0; }

int nvmlDeviceGetCount_v2(int *found) {
    *found = count();
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(int number, void **handle) {
    *handle = (void *)(long)(number + 1);
    return 0;
}

int nvmlDeviceGetUUID(void *handle, char *name, unsigned size) {
    snprintf(name, size, "GPU-pretended-%ld", (long)handle - 1);
    return 0;
}
