/* A wrong clock for a program in Go: see ../clock.go. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t none, *offset = &none; /* seconds */

/* Go calls this on a stack of its own, and expects no errno. */
static long ask(clockid_t clock, struct timespec *t)
{
	long result;
#if defined(__x86_64__)
	__asm__ volatile("syscall" : "=a"(result) : "a"((long)SYS_clock_gettime), "D"((long)clock), "S"(t) : "rcx", "r11", "memory");
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = SYS_clock_gettime, x0 __asm__("x0") = clock, x1 __asm__("x1") = (long)t;
	__asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1) : "memory");
	result = x0;
#else
#error this processor is not known
#endif
	if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		t->tv_sec += *offset;
	return result;
}

/* What C asks. */
int clock_gettime(clockid_t clock, struct timespec *t) { return ask(clock, t) == 0 ? 0 : -1; }

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
	struct timespec now;
	(void)zone;
	ask(CLOCK_REALTIME, &now);
	t->tv_sec = now.tv_sec;
	t->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *to)
{
	struct timespec now;
	ask(CLOCK_REALTIME, &now);
	if (to != NULL)
		*to = now.tv_sec;
	return now.tv_sec;
}

static int first(struct dl_phdr_info *info, size_t size, void *base)
{
	(void)size;
	*(uintptr_t *)base = info->dlpi_addr;
	return 1; /* the program itself comes first */
}

/* Before the program begins: Go finds no clock of the kernel's, and has ours in its place. */
__attribute__((constructor)) static void begin(int argc, char **argv, char **envp)
{
	const char *file = getenv("TEST_CLOCK_OFFSET"), *symbol = getenv("TEST_CLOCK_SYMBOL");
	char *preload;
	uintptr_t base = 0;
	int fd;
	void *mapped;
	(void)argc, (void)argv;
	if (file == NULL || symbol == NULL || (fd = open(file, O_RDONLY | O_CLOEXEC)) < 0)
		abort();
	if ((mapped = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0)) == MAP_FAILED)
		abort();
	close(fd);
	offset = mapped;
	while (*envp != NULL)
		envp++;
	for (ElfW(auxv_t) *a = (ElfW(auxv_t) *)(envp + 1); a->a_type != AT_NULL; a++)
		if (a->a_type == AT_SYSINFO_EHDR)
			a->a_type = AT_IGNORE;
	dl_iterate_phdr(first, &base);
	*(uintptr_t *)(base + strtoull(symbol, NULL, 10)) = (uintptr_t)ask;
	/* A program that this one starts has the symbol elsewhere. unsetenv would move the list behind which Go looks. */
	if ((preload = getenv("LD_PRELOAD")) != NULL)
		*preload = '\0';
}
