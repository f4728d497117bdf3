/* Callers over HTTP/1.1, each with one connection and one call at a time, in one thread with epoll.
 *
 *     cc -O2 -o load load.c
 *     ./load < ORDER > FIGURES
 *
 * benchmarks/load_c.py compiles it, writes the order and reads the figures.
 *
 * ORDER    a line "PORT CALLERS SECONDS OWN SPEECHES"; then for each speech a line
 *          "HEAD BODY PROOF FILLING", and that many bytes of its head, its body and its proof.
 *          OWN is 1 if a caller keeps one speech, and 0 if it goes to the next one with each call.
 *          FILLING is how many bytes a filling has at most.
 * FIGURES  a line "CALLS WRONG SECONDS", then as many doubles (of this machine) as there were
 *          calls: the seconds of each, from before the first byte sent to the last byte read.
 *
 * One byte in a head or a body stands for what is of each call: 1 its id, 2 its text, 3 a filling,
 * 4 a traceparent. An answer is right if its status is 200, the text, the proof and the id of its
 * call are in it, and it has as many bytes as it says. Exit code 1 with a sentence on stderr if the
 * load cannot go on: a connection ended, or no answer came for ANSWER_S_MAX.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ID = 1, TEXT, FILLING, TRACE };
enum { HEAD_MAX = 1 << 14, TEXT_MAX = 64, READ_BYTES = 1 << 18, EVENTS_MAX = 256 };
static const int ANSWER_S_MAX = 30;
static const long long ANSWERS_MAX = 1000000000; /* of one caller; as in load.py */

typedef struct {
    char *head, *body, *proof;
    size_t head_bytes, body_bytes, proof_bytes;
    int filling, says_id;
} Speech;

typedef struct {
    int fd, number;
    long long sequence, id;
    const Speech *speech;
    char text[TEXT_MAX], name[TEXT_MAX]; /* what has to be in the answer: text, "id":N */
    size_t text_bytes, name_bytes;
    double sent;
    char *buffer;
    size_t filled, room;
} Caller;

static Speech *speeches;
static int speech_count, own;
static char *request;
static size_t request_room;
static double *latencies;
static size_t calls, latencies_room;
static long wrong;

static void fail(const char *form, ...) {
    va_list rest;
    va_start(rest, form);
    vfprintf(stderr, form, rest);
    va_end(rest);
    fputc('\n', stderr);
    exit(1);
}

static void *enlarged(void *old, size_t bytes) {
    void *made = realloc(old, bytes);
    if (made == NULL) fail("no memory for %zu bytes", bytes);
    return made;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* --- the order ------------------------------------------------------------------------------- */

static char *read_bytes(size_t count) {
    char *found = enlarged(NULL, count + 1);
    if (fread(found, 1, count, stdin) != count) fail("the order ends too soon");
    found[count] = 0;
    return found;
}

static void read_speech(Speech *speech) {
    if (scanf("%zu %zu %zu %d", &speech->head_bytes, &speech->body_bytes, &speech->proof_bytes,
              &speech->filling) != 4 || getchar() != '\n')
        fail("the order has no line for a speech");
    speech->head = read_bytes(speech->head_bytes);
    speech->body = read_bytes(speech->body_bytes);
    speech->proof = read_bytes(speech->proof_bytes);
    speech->says_id = memchr(speech->body, ID, speech->body_bytes) != NULL;
    if (speech->head_bytes > HEAD_MAX / 2) fail("a head has more than %d bytes", HEAD_MAX / 2);
}

/* --- a request ------------------------------------------------------------------------------- */

/* Copies `from`, with what the marks stand for. Gives the end of what it wrote. */
static char *filled_in(char *to, const char *from, size_t bytes, const Caller *caller) {
    const char *end = from + bytes;
    while (from < end) {
        const char *mark = from;
        while (mark < end && (unsigned char)*mark > TRACE) mark++;
        memcpy(to, from, (size_t)(mark - from));
        to += mark - from;
        if (mark < end) {
            int most = caller->speech->filling;
            switch (*mark) {
            case ID: to += sprintf(to, "%lld", caller->id); break;
            case TEXT:
                memcpy(to, caller->text, caller->text_bytes);
                to += caller->text_bytes;
                break;
            case FILLING: /* as in load.py */
                most = (int)((caller->number * 7919LL + caller->sequence * 271LL) % (most + 1));
                memset(to, 'x', (size_t)most);
                to += most;
                break;
            case TRACE:
                to += sprintf(to, "00-0af7651916cd43dd%016llx-%016llx-01", caller->id, caller->id);
                break;
            }
        }
        from = mark + 1;
    }
    return to;
}

static void write_all(int fd, const char *from, size_t bytes) {
    while (bytes) {
        ssize_t count = send(fd, from, bytes, MSG_NOSIGNAL);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) fail("a request could not be sent: %s", strerror(errno));
        from += count;
        bytes -= (size_t)count;
    }
}

static void call(Caller *caller) {
    caller->sequence++;
    long long turn = own ? caller->number : caller->number + caller->sequence;
    const Speech *speech = caller->speech = &speeches[turn % speech_count];
    caller->id = caller->number * ANSWERS_MAX + caller->sequence;
    caller->text_bytes = (size_t)sprintf(caller->text, "T%d-%lldT", caller->number, caller->sequence);
    caller->name_bytes = (size_t)sprintf(caller->name, "\"id\":%lld", caller->id);
    size_t room = HEAD_MAX + speech->body_bytes + (size_t)speech->filling + 4 * TEXT_MAX;
    if (room > request_room) request = enlarged(request, request_room = room);
    char head[HEAD_MAX], *body = request + HEAD_MAX;
    size_t body_bytes = (size_t)(filled_in(body, speech->body, speech->body_bytes, caller) - body);
    char *end = filled_in(head, speech->head, speech->head_bytes, caller);
    end += sprintf(end, "Content-Length: %zu\r\n\r\n", body_bytes);
    size_t head_bytes = (size_t)(end - head);
    memcpy(body - head_bytes, head, head_bytes);
    caller->filled = 0;
    caller->sent = now();
    write_all(caller->fd, body - head_bytes, head_bytes + body_bytes);
}

/* --- an answer ------------------------------------------------------------------------------- */

/* The value of a header of a whole head; NULL if it has no such one. `name` ends with a colon. */
static const char *header(const char *head, const char *head_end, const char *name) {
    size_t bytes = strlen(name);
    for (const char *at = head; at < head_end;) {
        const char *line = memchr(at, '\n', (size_t)(head_end - at));
        if (line == NULL || ++line + bytes > head_end) return NULL;
        if (!strncasecmp(line, name, bytes)) {
            line += bytes;
            while (*line == ' ') line++;
            return line;
        }
        at = line;
    }
    return NULL;
}

/* Where the body in chunks ends that begins at `at`; NULL if it is not all there. */
static const char *chunks_end(const char *at, const char *end) {
    for (;;) {
        const char *line = memmem(at, (size_t)(end - at), "\r\n", 2);
        if (line == NULL) return NULL;
        size_t size = strtoul(at, NULL, 16);
        if ((size_t)(end - line) < size + 4) return NULL;
        at = line + 2 + size + 2;
        if (size == 0) return at;
    }
}

/* Is the last byte of the answer there? The buffer ends with a NUL that is not of the answer. */
static int whole(Caller *caller) {
    const char *start = caller->buffer, *end = start + caller->filled;
    const char *head_end = memmem(start, caller->filled, "\r\n\r\n", 4), *value;
    if (head_end == NULL) return 0;
    head_end += 4;
    const char *must_end = NULL;
    if ((value = header(start, head_end, "content-length:")) != NULL) {
        size_t body_bytes = strtoul(value, NULL, 10);
        if ((size_t)(end - head_end) < body_bytes) return 0;
        must_end = head_end + body_bytes;
    } else if ((value = header(start, head_end, "transfer-encoding:")) != NULL) {
        if ((must_end = chunks_end(head_end, end)) == NULL) return 0;
    } else {
        fail("an answer does not say how long it is");
    }
    if (must_end != end) fail("an answer has %zu bytes too many", (size_t)(end - must_end));
    return 1;
}

static int right(const Caller *caller) {
    const char *answer = caller->buffer;
    size_t bytes = caller->filled;
    const Speech *speech = caller->speech;
    if (bytes < 12 || memcmp(answer, "HTTP/1.1 200", 12)) return 0;
    if (!memmem(answer, bytes, caller->text, caller->text_bytes)) return 0;
    if (!memmem(answer, bytes, speech->proof, speech->proof_bytes)) return 0;
    if (!speech->says_id) return 1;
    const char *name = memmem(answer, bytes, caller->name, caller->name_bytes);
    return name != NULL && (name[caller->name_bytes] < '0' || name[caller->name_bytes] > '9');
}

/* Reads what there is. Gives 1 if the answer is whole. */
static int heard(Caller *caller) {
    if (caller->room < caller->filled + READ_BYTES + 1) {
        caller->room = 2 * caller->filled + READ_BYTES + 1;
        caller->buffer = enlarged(caller->buffer, caller->room);
    }
    ssize_t count = recv(caller->fd, caller->buffer + caller->filled, READ_BYTES, 0);
    double heard_at = now();
    if (count < 0 && errno == EINTR) return 0;
    if (count < 0) fail("an answer could not be read: %s", strerror(errno));
    if (count == 0) fail("a connection ended before its answer was whole");
    caller->filled += (size_t)count;
    caller->buffer[caller->filled] = 0;
    if (!whole(caller)) return 0;
    if (calls == latencies_room) {
        latencies_room = latencies_room ? 2 * latencies_room : 1 << 16;
        latencies = enlarged(latencies, latencies_room * sizeof *latencies);
    }
    latencies[calls++] = heard_at - caller->sent;
    wrong += !right(caller);
    return 1;
}

/* --- all of them ----------------------------------------------------------------------------- */

static int connected(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct timeval patience = {.tv_sec = ANSWER_S_MAX};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address))
        fail("nobody listens at port %d: %s", port, strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    return fd;
}

static double run(Caller *callers, int count, double seconds) {
    struct epoll_event events[EVENTS_MAX];
    int poll = epoll_create1(EPOLL_CLOEXEC), open_calls = count;
    for (int at = 0; at < count; at++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &callers[at]};
        epoll_ctl(poll, EPOLL_CTL_ADD, callers[at].fd, &event);
    }
    double start = now(), end = start + seconds;
    for (int at = 0; at < count; at++) call(&callers[at]);
    while (open_calls) {
        int ready = epoll_wait(poll, events, EVENTS_MAX, ANSWER_S_MAX * 1000);
        if (ready < 0 && errno == EINTR) continue;
        if (ready <= 0) fail("%d calls got no answer within %d s", open_calls, ANSWER_S_MAX);
        for (int at = 0; at < ready; at++) {
            Caller *caller = events[at].data.ptr;
            if (!heard(caller)) continue;
            if (now() < end) {
                call(caller);
            } else {
                epoll_ctl(poll, EPOLL_CTL_DEL, caller->fd, NULL);
                open_calls--;
            }
        }
    }
    return now() - start;
}

int main(void) {
    int port, count;
    double seconds;
    if (scanf("%d %d %lf %d %d", &port, &count, &seconds, &own, &speech_count) != 5
        || getchar() != '\n' || count < 1 || speech_count < 1)
        fail("the order does not begin with PORT CALLERS SECONDS OWN SPEECHES");
    speeches = enlarged(NULL, (size_t)speech_count * sizeof *speeches);
    for (int at = 0; at < speech_count; at++) read_speech(&speeches[at]);
    Caller *callers = calloc((size_t)count, sizeof *callers);
    if (callers == NULL) fail("no memory for %d callers", count);
    for (int at = 0; at < count; at++) {
        callers[at].number = at;
        callers[at].fd = connected(port);
    }
    double took = run(callers, count, seconds);
    printf("%zu %ld %.9f\n", calls, wrong, took);
    if (fwrite(latencies, sizeof *latencies, calls, stdout) != calls || fflush(stdout))
        fail("the figures could not be written");
    return 0;
}
