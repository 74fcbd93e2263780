/* Load generator over HTTP/1.1 or gRPC: one request at a time on each connection.
 *
 *   loadgen closed http|grpc PORT REQUEST FIELDS SECONDS CONNECTIONS
 *   loadgen open   http|grpc PORT REQUEST FIELDS SECONDS RATE FIRST MAX REJECTION HINT
 *
 * REQUEST is a file. For http it has the request's bytes. For grpc it has the length of the
 * headers' HPACK block (4 bytes, big endian), the block, and the message with gRPC's five bytes
 * before it. FIELDS is a file that makes all requests differ: each line has the offset in REQUEST,
 * the length and the kind of bytes drawn anew for every request: h for hexadecimal digits, d for
 * decimal digits, b for any bytes. An empty FIELDS file makes all requests equal.
 *
 * closed: each connection sends its next request when it has the response. Prints
 *   succeeded failed seconds p50_us p99_us cpu_seconds
 *
 * open: after FIRST connections were made and used once, RATE requests a second on average become
 * due at random moments (a Poisson process), whatever happened to earlier ones. Each takes a free
 * connection, else a new one up to MAX connections, else it waits for one. A failed response is a
 * rejection if its head contains the bytes of the file REJECTION, and one with a retry hint if it
 * contains those of HINT, too. Prints a line
 *   connections cpu_seconds seconds
 * then for each request in the order of completion four floats: when it was due, how late it was
 * sent and how long after it was due it ended, in seconds, and its outcome: 0 success, 1 rejection
 * with a hint, 2 rejection without a hint, 3 failure.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <math.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* A request of 1,000 rows of 1,024 floats is 4 MB. Pages that are never touched take no memory. */
enum { BUFFER = 1 << 22, MAX_REQUEST = 1 << 23, EVENTS = 256, FRAME = 9, MAX_FRAME = 16384, REFILL = 1 << 15, RING = 1 << 20 };
enum { DATA = 0, HEADERS = 1, RESET = 3, SETTINGS = 4, PING = 6, GOAWAY = 7, WINDOW = 8 };
enum { END_STREAM = 1, ACK = 1, END_HEADERS = 4 };
enum { SUCCESS, HINTED, REJECTED, FAILED };
static const char PREFACE[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

struct connection {
    int file, has_message, goaway, blocked, in_flight;
    uint32_t stream, unacknowledged;
    int64_t window; /* bytes that the server accepts on the connection */
    double since;   /* when the request was sent (closed) or due (open) */
    float late;     /* seconds from due to sent */
    size_t size;
    unsigned char bytes[BUFFER];
};

struct field {
    size_t offset, length;
    char kind;
};

struct record {
    float due, late, latency, outcome;
};

static int grpc, open_loop, port, queue;
static unsigned char *request, *message, wire[2 * MAX_REQUEST];
static size_t request_size, block_size, message_size;
static struct field *fields;
static size_t field_count;
static uint64_t random_state = 0x9e3779b97f4a7c15;

/* Complete the request on `from`; `head` are the response's headers, or gRPC's trailers. */
static void complete(struct connection *from, int ok, const unsigned char *head, size_t size);
/* Handle a connection that the server closed. */
static void closed_by_server(struct connection *from);

static void check(int ok, const char *message_text) {
    if (!ok) {
        perror(message_text);
        exit(1);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static double cpu_seconds(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

static void *grow(void *items, size_t count, size_t size) {
    if (count < 1 << 16 ? count == 0 : (count & (count - 1)) == 0) {
        items = realloc(items, (count ? 2 * count : 1 << 16) * size);
        check(items != NULL, "realloc");
    }
    return items;
}

/* ---- the wire ---- */

static uint32_t read_uint32(const unsigned char *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static unsigned char *put_uint32(unsigned char *at, uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8)
        *at++ = (unsigned char)(value >> shift);
    return at;
}

static unsigned char *put_frame(unsigned char *at, size_t size, int type, int flags, uint32_t stream) {
    at = put_uint32(at, (uint32_t)size << 8 | (uint32_t)type);
    *at++ = (unsigned char)flags;
    return put_uint32(at, stream);
}

static void send_all(struct connection *to, const void *bytes, size_t size) {
    check(write(to->file, bytes, size) == (ssize_t)size, "write");
}

/* xorshift64 (Marsaglia, 2003). */
static uint64_t next_random(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* Write new random bytes into each field of the request. */
static void randomize_fields(void) {
    for (size_t i = 0; i < field_count; i++) {
        unsigned char *at = request + fields[i].offset;
        uint64_t bits = 0;
        for (size_t n = 0; n < fields[i].length; n++, bits >>= 8) {
            if (n % 8 == 0)
                bits = next_random();
            unsigned byte = bits & 0xff;
            at[n] = (unsigned char)(fields[i].kind == 'h'   ? "0123456789abcdef"[byte & 15]
                                    : fields[i].kind == 'd' ? '0' + byte % 10
                                                            : byte);
        }
    }
}

static void send_grpc(struct connection *to) {
    if ((to->blocked = to->window < (int64_t)message_size))
        return; /* continues at the next WINDOW_UPDATE */
    unsigned char *at = put_frame(wire, block_size, HEADERS, END_HEADERS, to->stream);
    memcpy(at, request + 4, block_size);
    at += block_size;
    for (size_t sent = 0, size; sent < message_size; sent += size) {
        size = message_size - sent < MAX_FRAME ? message_size - sent : MAX_FRAME;
        int last = sent + size == message_size;
        at = put_frame(at, size, DATA, last ? END_STREAM : 0, to->stream);
        memcpy(at, message + sent, size);
        at += size;
    }
    to->window -= (int64_t)message_size;
    send_all(to, wire, (size_t)(at - wire));
}

/* Send the request on a free connection; `due` is when its latency starts. */
static void send_request(struct connection *to, double due) {
    to->since = due;
    to->late = (float)(now() - due);
    to->in_flight = 1;
    to->has_message = 0;
    to->stream += 2;
    randomize_fields();
    if (grpc)
        send_grpc(to);
    else
        send_all(to, request, request_size);
}

static void open_connection(struct connection *to) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1;
    to->file = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(to->file, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    setsockopt(to->file, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = to};
    epoll_ctl(queue, EPOLL_CTL_ADD, to->file, &event);
    to->size = to->unacknowledged = 0;
    to->goaway = to->blocked = to->in_flight = 0;
    to->stream = (uint32_t)-1; /* the first stream is 1 */
    to->window = 65535;
    if (grpc) {
        memcpy(wire, PREFACE, sizeof PREFACE - 1);
        unsigned char *at = put_frame(wire + sizeof PREFACE - 1, 0, SETTINGS, 0, 0);
        send_all(to, wire, (size_t)(at - wire));
    }
}

static struct connection *new_connection(void) {
    struct connection *each = calloc(1, sizeof *each);
    check(each != NULL, "calloc");
    open_connection(each);
    return each;
}

static void close_connection(struct connection *to) {
    close(to->file);
    to->file = -1;
}

/* The readers return the number of bytes that they consumed; 0 if they need more. */
static size_t read_http(struct connection *from) {
    from->bytes[from->size] = 0;
    unsigned char *stop = memmem(from->bytes, from->size, "\r\n\r\n", 4);
    if (stop == NULL)
        return 0;
    char *length = strcasestr((char *)from->bytes, "\r\ncontent-length:");
    check(length != NULL && (unsigned char *)length < stop, "a response without content-length");
    size_t head = (size_t)(stop - from->bytes) + 4, size = head + strtoul(length + 17, NULL, 10);
    if (size > from->size)
        return 0;
    from->size = 0;
    complete(from, memcmp(from->bytes + 8, " 200", 4) == 0, from->bytes, head);
    return size;
}

static void reply(struct connection *to, int type, int flags, const void *bytes, size_t size) {
    unsigned char buffer[64], *at = put_frame(buffer, size, type, flags, 0);
    if (size)
        memcpy(at, bytes, size);
    send_all(to, buffer, (size_t)(at - buffer) + size);
}

static void take_data(struct connection *from, size_t size) {
    unsigned char window[4];
    from->has_message |= size > 5; /* a failed call has no message */
    from->unacknowledged += (uint32_t)size;
    if (from->unacknowledged >= REFILL) {
        put_uint32(window, from->unacknowledged);
        reply(from, WINDOW, 0, window, sizeof window);
        from->unacknowledged = 0;
    }
}

static size_t read_frame(struct connection *from) {
    unsigned char *at = from->bytes, head[MAX_FRAME];
    size_t size = from->size < FRAME ? 0 : read_uint32(at) >> 8;
    if (from->size < FRAME || from->size < FRAME + size)
        return 0;
    int type = at[3], flags = at[4];
    uint32_t stream = read_uint32(at + 5) & 0x7fffffff;
    if (type == DATA)
        take_data(from, size);
    else if (type == SETTINGS && !(flags & ACK))
        reply(from, SETTINGS, ACK, NULL, 0);
    else if (type == PING && !(flags & ACK))
        reply(from, PING, ACK, at + FRAME, 8);
    else if (type == GOAWAY)
        from->goaway = 1;
    else if (type == WINDOW && stream == 0)
        from->window += read_uint32(at + FRAME);
    size_t head_size = type == HEADERS ? size : 0;
    memcpy(head, at + FRAME, head_size);
    from->size -= FRAME + size;
    memmove(from->bytes, from->bytes + FRAME + size, from->size);
    int last = (type == HEADERS || type == DATA) && flags & END_STREAM;
    if (stream == from->stream && (last || type == RESET))
        complete(from, last && from->has_message, head, head_size);
    else if (from->blocked)
        send_grpc(from);
    return FRAME + size;
}

static void receive(struct connection *from) {
    ssize_t got = read(from->file, from->bytes + from->size, BUFFER - 1 - from->size);
    if (got <= 0) {
        closed_by_server(from);
        return;
    }
    from->size += (size_t)got;
    while (from->file >= 0 && from->size > 0 && (grpc ? read_frame(from) : read_http(from)) > 0)
        continue;
}

static void wait_for_events(double seconds) {
    struct epoll_event events[EVENTS];
    struct timespec limit = {0, seconds <= 0 ? 0 : (long)(fmin(seconds, 0.9) * 1e9)};
    int ready = epoll_pwait2(queue, events, EVENTS, &limit, NULL);
    for (int i = 0; i < ready; i++)
        receive(events[i].data.ptr);
}

static size_t read_file(const char *path, unsigned char *bytes, size_t max_size) {
    FILE *file = fopen(path, "rb");
    check(file != NULL, path);
    size_t size = fread(bytes, 1, max_size, file);
    check(fgetc(file) == EOF, "a file is too large");
    fclose(file);
    return size;
}

static void read_fields(const char *path) {
    FILE *file = fopen(path, "r");
    check(file != NULL, path);
    struct field found;
    while (fscanf(file, "%zu %zu %c", &found.offset, &found.length, &found.kind) == 3) {
        check(found.offset + found.length <= request_size, "a field is outside of the request");
        fields = grow(fields, field_count, sizeof *fields);
        fields[field_count++] = found;
    }
    fclose(file);
}

/* ---- closed loop ---- */

static int connection_count;
static double end;
static float *latencies;
static size_t succeeded, failed;

static void complete_closed(struct connection *from, int ok) {
    double time = now();
    if (ok) {
        latencies = grow(latencies, succeeded, sizeof *latencies);
        latencies[succeeded++] = (float)((time - from->since) * 1e6);
    } else {
        failed++;
    }
    if (time >= end) {
        close_connection(from);
        connection_count--;
        return;
    }
    if (from->goaway) {
        close_connection(from);
        open_connection(from);
    }
    send_request(from, now());
}

static int compare(const void *a, const void *b) {
    float first = *(const float *)a, second = *(const float *)b;
    return (first > second) - (first < second);
}

static void run_closed(double seconds, int connections) {
    double start = now();
    end = start + seconds;
    for (connection_count = 0; connection_count < connections; connection_count++)
        send_request(new_connection(), now());
    while (connection_count > 0 && now() < end + 10)
        wait_for_events(0.9);
    failed += (size_t)connection_count; /* never answered */
    double elapsed = now() - start;
    if (succeeded > 0)
        qsort(latencies, succeeded, sizeof *latencies, compare);
    printf("%zu %zu %.4f %.1f %.1f %.4f\n", succeeded, failed, elapsed,
           succeeded ? latencies[succeeded / 2] : 0.0,
           succeeded ? latencies[succeeded * 99 / 100] : 0.0, cpu_seconds());
}

/* ---- open loop ---- */

static double start_time;
static int recording, max_connections, in_flight_count;
static unsigned char rejection[256], hint[256];
static size_t rejection_size, hint_size;
static struct record *records;
static size_t record_count;
static struct connection *idle[RING]; /* a ring; first == last if it is empty */
static size_t first_idle, last_idle;
static double waiting[RING]; /* a ring of due times */
static size_t first_waiting, last_waiting;

static void add_record(double due, float late, int outcome) {
    records = grow(records, record_count, sizeof *records);
    float latency = (float)(now() - due);
    records[record_count++] = (struct record){(float)(due - start_time), late, latency, (float)outcome};
}

/* Return a free connection that the server has not closed, or a new one; NULL at the limit. */
static struct connection *find_connection(void) {
    while (first_idle != last_idle) {
        struct connection *each = idle[first_idle++ % RING];
        if (each->file >= 0)
            return each;
        connection_count--;
        free(each);
    }
    if (connection_count == max_connections)
        return NULL;
    connection_count++;
    return new_connection();
}

static void offer(double due) {
    struct connection *each = find_connection();
    if (each != NULL) {
        in_flight_count++;
        send_request(each, due);
    } else {
        check(last_waiting - first_waiting < RING, "too many requests wait for a connection");
        waiting[last_waiting++ % RING] = due;
    }
}

static void release(struct connection *from) {
    in_flight_count--;
    from->in_flight = 0;
    if (from->goaway) {
        close_connection(from);
        open_connection(from);
    }
    if (first_waiting == last_waiting) {
        idle[last_idle++ % RING] = from;
        return;
    }
    in_flight_count++;
    send_request(from, waiting[first_waiting++ % RING]);
}

static void complete_open(struct connection *from, int ok, const unsigned char *head, size_t size) {
    int outcome = SUCCESS;
    check(ok || recording, "a request before the measurement failed");
    if (!ok && memmem(head, size, rejection, rejection_size) == NULL)
        outcome = FAILED;
    else if (!ok)
        outcome = memmem(head, size, hint, hint_size) != NULL ? HINTED : REJECTED;
    if (recording)
        add_record(from->since, from->late, outcome);
    release(from);
}

/* Use new connections one after the other, so that no request is rejected. */
static void connect_first(int count) {
    for (double limit = now() + 60; connection_count < count;) {
        first_idle = last_idle; /* forces a new connection */
        offer(now());
        while (in_flight_count > 0) {
            check(now() < limit, "the server does not answer");
            wait_for_events(0.9);
        }
    }
    first_idle = last_idle - (size_t)connection_count;
    recording = 1;
}

static double next_gap(double rate) {
    return -log(1 - drand48()) / rate;
}

static void run_open(double seconds, double rate, int first_connections) {
    srand48(1);
    connect_first(first_connections);
    start_time = now();
    double cpu = cpu_seconds(), stop = start_time + seconds, due = start_time + next_gap(rate);
    for (double time = start_time; due < stop || (in_flight_count > 0 && time < stop + 10); time = now()) {
        for (; due <= time && due < stop; due += next_gap(rate))
            offer(due);
        wait_for_events(due < stop ? due - now() : 0.1);
    }
    for (; in_flight_count > 0; in_flight_count--) /* never answered */
        add_record(stop, 0, FAILED);
    for (; first_waiting != last_waiting; first_waiting++)
        add_record(waiting[first_waiting % RING], 0, FAILED);
    printf("%d %.4f %.4f\n", connection_count, cpu_seconds() - cpu, now() - start_time);
    check(fwrite(records, sizeof *records, record_count, stdout) == record_count, "write");
}

/* ---- both ---- */

static void complete(struct connection *from, int ok, const unsigned char *head, size_t size) {
    if (open_loop)
        complete_open(from, ok, head, size);
    else
        complete_closed(from, ok);
}

static void closed_by_server(struct connection *from) {
    if (!open_loop) {
        failed++;
        close_connection(from);
        connection_count--;
    } else if (from->in_flight) {
        add_record(from->since, from->late, FAILED);
        from->goaway = 1;
        release(from);
    } else {
        close_connection(from); /* find_connection() drops it */
    }
}

int main(int count, char **arguments) {
    open_loop = count > 1 && strcmp(arguments[1], "open") == 0;
    check(count == (open_loop ? 12 : 8), "usage: see the head of loadgen.c");
    grpc = strcmp(arguments[2], "grpc") == 0;
    port = atoi(arguments[3]);
    queue = epoll_create1(0);
    request = malloc(MAX_REQUEST);
    check(request != NULL, "malloc");
    request_size = read_file(arguments[4], request, MAX_REQUEST);
    if (grpc) {
        block_size = read_uint32(request);
        message = request + 4 + block_size;
        message_size = request_size - 4 - block_size;
    }
    read_fields(arguments[5]);
    double seconds = atof(arguments[6]);
    if (!open_loop) {
        run_closed(seconds, atoi(arguments[7]));
        return 0;
    }
    max_connections = atoi(arguments[9]);
    rejection_size = read_file(arguments[10], rejection, sizeof rejection);
    hint_size = read_file(arguments[11], hint, sizeof hint);
    run_open(seconds, atof(arguments[7]), atoi(arguments[8]));
    return 0;
}
