/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded into an engine: ends it, as a fault of its own would, as soon as it serves while a
 * request with the marker lies in the journal. One that only stands by lives on. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char kMarker[] = "<<poison>>";
static int journal = -1;

/* The journal's lock is this process's: so the kernel says. */
static int serves(ino_t inode) {
    char line[256], file[64];
    int found = 0;
    FILE* locks = fopen("/proc/locks", "re");
    if (locks == NULL)
        return 0;
    while (fgets(line, sizeof line, locks) != NULL) {
        long pid = 0;
        if (sscanf(line, "%*s POSIX %*s WRITE %ld %63s", &pid, file) != 2)
            continue;
        const char* number = strrchr(file, ':');
        if (pid == (long)getpid() && number != NULL && strtoull(number + 1, NULL, 10) == inode)
            found = 1;
    }
    fclose(locks);
    return found;
}

static int holds_marker(char* page) {
    off_t at = 0;
    while ((at = lseek(journal, at, SEEK_DATA)) >= 0) {
        const ssize_t got = pread(journal, page, 1 << 16, at);
        if (got <= 0)
            break;
        if (memmem(page, (size_t)got, kMarker, sizeof kMarker - 1) != NULL)
            return 1;
        at += got;
    }
    return 0;
}

static void* watch(void* nothing) {
    const struct timespec often = {0, 1000000};
    char* page = malloc(1 << 16);
    struct stat facts;
    if (page == NULL || fstat(journal, &facts) != 0)
        return nothing;
    for (;;) {
        if (holds_marker(page) && serves(facts.st_ino)) {
            fputs("poisoned\n", stderr);
            abort();
        }
        nanosleep(&often, NULL);
    }
}

/* An open file of its own, whose position nobody else moves; it is never closed, as that would
 * drop the lock. */
__attribute__((constructor)) static void begin(void) {
    const char* names = getenv("LISTEN_FDNAMES");
    pthread_t thread;
    char path[32];
    int fd = 3;
    if (names == NULL)
        return;
    for (; strncmp(names, "berth-journal", strlen("berth-journal")) != 0; ++fd) {
        names = strchr(names, ':');
        if (names == NULL)
            return;
        ++names;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    journal = open(path, O_RDONLY | O_CLOEXEC);
    if (journal >= 0)
        pthread_create(&thread, NULL, watch, NULL);
}
