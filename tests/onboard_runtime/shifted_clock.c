/* Loaded before libc (LD_PRELOAD): the wall clock and the clock that goes on while a computer sleeps are as far off as
 * the two doubles in the file $CLOCK_SHIFT say. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile double *shift;

__attribute__((constructor)) static void open_shift(void)
{
    const char *path = getenv("CLOCK_SHIFT");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *found = mmap(NULL, 2 * sizeof(double), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (found != MAP_FAILED)
        shift = found;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (failed || !shift)
        return failed;
    double by = 0.0;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        by = shift[0];
    else if (clock == CLOCK_BOOTTIME)
        by = shift[1];
    double whole = floor(by);
    now->tv_sec += (time_t)whole;
    now->tv_nsec += (long)((by - whole) * 1e9);
    if (now->tv_nsec >= 1000000000L) {
        now->tv_nsec -= 1000000000L;
        now->tv_sec += 1;
    }
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact))
        return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result)
{
    struct timespec exact;
    if (clock_gettime(CLOCK_REALTIME, &exact))
        return (time_t)-1;
    if (result)
        *result = exact.tv_sec;
    return exact.tv_sec;
}
