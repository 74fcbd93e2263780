/* Loaded before the C library (LD_PRELOAD): a wall clock that steps and a disk that fills.
 *
 * FAULTY_OS_CONTROL names a file of two 64-bit numbers that every process maps: by how many
 * seconds the wall clock is off, and how many bytes may still be written to files below
 * FAULTY_OS_DISK (negative: any number). The test changes them while the processes run.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t *control;
static const char *disk;

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("FAULTY_OS_CONTROL");
  int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *mapped = mmap(NULL, 16, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  disk = getenv("FAULTY_OS_DISK");
  if (mapped != MAP_FAILED) control = mapped;
}

static int64_t offset(void) { return control ? __atomic_load_n(&control[0], __ATOMIC_RELAXED) : 0; }

int clock_gettime(clockid_t which, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int result = real(which, now);
  if (result == 0 && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE))
    now->tv_sec += offset();
  return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  static int (*real)(struct timeval *, void *);
  if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
  int result = real(now, zone);
  if (result == 0) now->tv_sec += offset();
  return result;
}

time_t time(time_t *where) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (where) *where = now.tv_sec;
  return now.tv_sec;
}

static int on_the_disk(int file) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = '\0';
  return strncmp(path, disk, strlen(disk)) == 0;
}

/* Whether `size` bytes are refused: all of them, as a file system without a free block does. */
static int is_full(int file, size_t size) {
  if (!control || !disk || __atomic_load_n(&control[1], __ATOMIC_RELAXED) < 0 || !on_the_disk(file))
    return 0;
  int64_t room = __atomic_load_n(&control[1], __ATOMIC_RELAXED);
  do {
    if (room < 0) return 0;
    if (room < (int64_t)size) {
      errno = ENOSPC;
      return 1;
    }
  } while (!__atomic_compare_exchange_n(&control[1], &room, room - (int64_t)size, 0,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return 0;
}

ssize_t write(int file, const void *content, size_t size) {
  static ssize_t (*real)(int, const void *, size_t);
  if (!real) real = dlsym(RTLD_NEXT, "write");
  return is_full(file, size) ? -1 : real(file, content, size);
}

ssize_t pwrite64(int file, const void *content, size_t size, off64_t at) {
  static ssize_t (*real)(int, const void *, size_t, off64_t);
  if (!real) real = dlsym(RTLD_NEXT, "pwrite64");
  return is_full(file, size) ? -1 : real(file, content, size, at);
}

ssize_t pwrite(int file, const void *content, size_t size, off_t at) {
  return pwrite64(file, content, size, at);
}
