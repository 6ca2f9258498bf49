/* A layer between a program and its disk, for LD_PRELOAD: counts what is done to files below a folder, over all
 * processes of a run, and at the n-th such event waits, fails, tears the write or jumps the clock.
 *
 *   SAPO_FAULT_STATE  file of two 64-bit integers, shared by all processes: events so far, gate (see GATE_*)
 *   SAPO_FAULT_ROOT   the folder; SAPO_FAULT_MATCH: only paths that contain this
 *   SAPO_FAULT_AT     n, counted from 1; 0: only count
 *   SAPO_FAULT_DO     wait (until the gate is opened) | fail E (errno E) | tear B (write B bytes, then SIGKILL to itself)
 *                     | clock S (wall clock + S seconds from then on)
 *   SAPO_FAULT_STAYS  1: every event after the n-th fails too, as on a full disk
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { GATE_SHUT = 0, GATE_REACHED = 1, GATE_OPEN = 2 };
enum { NOT_OURS = -2, GO_ON = -1 }; /* what `event` says beside the number of bytes before a tear */

static int64_t *state;
static const char *root, *match, *action;
static size_t root_length;
static int64_t at, stays, argument;

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

/* Read the orders; for a forked child, which has got its environment after its start, once more. */
__attribute__((constructor)) void sapo_fault_begin(void) {
    const char *path = getenv("SAPO_FAULT_STATE");
    root = getenv("SAPO_FAULT_ROOT");
    if (!path || !root) return;
    root_length = strlen(root);
    match = getenv("SAPO_FAULT_MATCH") ? getenv("SAPO_FAULT_MATCH") : "";
    action = getenv("SAPO_FAULT_DO") ? getenv("SAPO_FAULT_DO") : "";
    at = getenv("SAPO_FAULT_AT") ? atoll(getenv("SAPO_FAULT_AT")) : 0;
    stays = getenv("SAPO_FAULT_STAYS") ? atoll(getenv("SAPO_FAULT_STAYS")) : 0;
    const char *space = strchr(action, ' ');
    argument = space ? atoll(space + 1) : 0;
    int handle = open(path, O_RDWR | O_CLOEXEC);
    if (handle < 0) return;
    void *found = mmap(NULL, 2 * sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
    close(handle);
    if (found != MAP_FAILED) state = found;
}

static int begins(const char *word) { return strncmp(action, word, strlen(word)) == 0; }

/* Count an event. GO_ON, NOT_OURS, or 0 and more: write so many bytes and die. A failure is left in errno. */
static int64_t event(const char *path, int *fails) {
    *fails = 0;
    if (!state || strncmp(path, root, root_length) || !strstr(path, match)) return NOT_OURS;
    if (path[root_length] != '/' && path[root_length] != 0) return NOT_OURS; /* a folder with a longer name */
    int64_t n = __atomic_add_fetch(&state[0], 1, __ATOMIC_SEQ_CST);
    if (!at || n < at) return GO_ON;
    if (begins("fail") && (n == at || stays)) {
        *fails = 1;
        errno = (int)argument;
    } else if (begins("tear") && n == at) {
        return argument;
    } else if (begins("wait") && n == at) {
        __atomic_store_n(&state[1], GATE_REACHED, __ATOMIC_SEQ_CST);
        while (__atomic_load_n(&state[1], __ATOMIC_SEQ_CST) != GATE_OPEN) usleep(500);
    }
    return GO_ON;
}

static int64_t event_of(int handle, int *fails) {
    char link[32], path[PATH_MAX];
    *fails = 0;
    if (!state) return NOT_OURS;
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return NOT_OURS;
    path[length] = 0;
    return event(path, fails);
}

static void die(void) { kill(getpid(), SIGKILL); }

static int64_t event_at(const char *path, int *fails) {
    char whole[PATH_MAX];
    if (path[0] != '/' && state && getcwd(whole, sizeof whole)) {
        size_t length = strlen(whole);
        snprintf(whole + length, sizeof whole - length, "/%s", path);
        path = whole;
    }
    int64_t tear = event(path, fails);
    if (tear >= 0) die(); /* not a write: nothing of it is done */
    return tear;
}

ssize_t write(int handle, const void *data, size_t size) {
    REAL(write);
    int fails;
    int64_t tear = event_of(handle, &fails);
    if (fails) return -1;
    if (tear < 0) return real(handle, data, size);
    if (tear > 0) (void)!real(handle, data, (size_t)tear < size ? (size_t)tear : size);
    die();
    return -1;
}

ssize_t pwrite64(int handle, const void *data, size_t size, off64_t offset) {
    REAL(pwrite64);
    int fails;
    int64_t tear = event_of(handle, &fails);
    if (fails) return -1;
    if (tear < 0) return real(handle, data, size, offset);
    if (tear > 0) (void)!real(handle, data, (size_t)tear < size ? (size_t)tear : size, offset);
    die();
    return -1;
}

ssize_t pwrite(int handle, const void *data, size_t size, off_t offset) { return pwrite64(handle, data, size, offset); }

ssize_t writev(int handle, const struct iovec *parts, int count) {
    REAL(writev);
    int fails;
    int64_t tear = event_of(handle, &fails);
    if (fails) return -1;
    if (tear >= 0) die();
    return real(handle, parts, count);
}

int fsync(int handle) {
    REAL(fsync);
    int fails;
    if (event_of(handle, &fails) >= 0) die();
    return fails ? -1 : real(handle);
}

int ftruncate64(int handle, off64_t size) {
    REAL(ftruncate64);
    int fails;
    if (event_of(handle, &fails) >= 0) die();
    return fails && (size || errno != ENOSPC) ? -1 : real(handle, size);
}

int ftruncate(int handle, off_t size) { return ftruncate64(handle, size); }

int rename(const char *from, const char *to) {
    REAL(rename);
    int fails;
    event_at(to, &fails);
    return fails ? -1 : real(from, to);
}

int link(const char *from, const char *to) {
    REAL(link);
    int fails;
    event_at(to, &fails);
    return fails ? -1 : real(from, to);
}

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    int fails;
    event_at(path, &fails);
    return fails ? -1 : real(path, mode);
}

int unlink(const char *path) {
    REAL(unlink);
    int fails;
    event_at(path, &fails);
    return fails && errno != ENOSPC ? -1 : real(path); /* a full disk lets go of files */
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        int fails = 0; \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        if (flags & (O_CREAT | O_TRUNC)) event_at(path, &fails); \
        return fails ? -1 : real(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

static int64_t shift(void) {
    if (!state || !at || !begins("clock") || __atomic_load_n(&state[0], __ATOMIC_SEQ_CST) < at) return 0;
    return argument;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL(clock_gettime);
    int result = real(clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += shift();
    return result;
}

time_t time(time_t *where) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (where) *where = now.tv_sec;
    return now.tv_sec;
}
