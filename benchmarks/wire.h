/* One request at a time on each connection, over HTTP/1.1 or gRPC: what the load clients share.
 *
 * For http the request file has the request's bytes. For grpc it has the HPACK block of the
 * headers after its length (4 bytes, big endian), and then the message with gRPC's five bytes
 * before it. A client says in `done` and `parted` what becomes of a connection then.
 *
 * A file of fields makes all requests differ: each line has the offset in the request file, the
 * length and the kind of bytes that every request has anew: h for hexadecimal digits, d for
 * decimal ones, b for any bytes.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
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

enum { ROOM = 1 << 18, EVENTS = 256, FRAME = 9, MAX_FRAME = 16384, REFILL = 1 << 15 };
enum { DATA = 0, HEADERS = 1, RESET = 3, SETTINGS = 4, PING = 6, GOAWAY = 7, WINDOW = 8 };
enum { END_STREAM = 1, ACK = 1, END_HEADERS = 4 };
static const char PREFACE[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

struct connection {
    int file, answered, leaving, waiting;
    uint32_t stream, taken;
    int64_t window; /* what the server takes on the connection */
    double since;   /* when the request was sent, or was due */
    float late;     /* for how long it was not sent then */
    size_t have;
    unsigned char bytes[ROOM];
};

static int grpc, port, queue;
static unsigned char *request, *message, wire[1 << 20];
static size_t request_size, block_size, message_size;

/* The request is over: `ok` if there is an answer; `head` are its headers, or its trailers. */
static void done(struct connection *from, int ok, const unsigned char *head, size_t size);
/* The server hung up. */
static void parted(struct connection *from);

struct field {
    size_t offset, length;
    char kind;
};

static struct field *fields;
static size_t field_count;
static uint64_t random_state = 0x9e3779b97f4a7c15;

static void must(int ok, const char *what) {
    if (!ok) {
        perror(what);
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

static uint32_t number(const unsigned char *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static unsigned char *put(unsigned char *at, uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8)
        *at++ = (unsigned char)(value >> shift);
    return at;
}

static unsigned char *frame(unsigned char *at, size_t size, int type, int flags, uint32_t stream) {
    at = put(at, (uint32_t)size << 8 | (uint32_t)type);
    *at++ = (unsigned char)flags;
    return put(at, stream);
}

static void send_all(struct connection *to, const void *bytes, size_t size) {
    must(write(to->file, bytes, size) == (ssize_t)size, "write");
}

/* xorshift64: fast, and never the same request twice. */
static uint64_t next_random(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* Write new bytes into each field of the request. */
static void vary(void) {
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

static void ask_grpc(struct connection *to) {
    if ((to->waiting = to->window < (int64_t)message_size))
        return; /* a WINDOW_UPDATE goes on */
    unsigned char *at = frame(wire, block_size, HEADERS, END_HEADERS, to->stream);
    memcpy(at, request + 4, block_size);
    at += block_size;
    for (size_t done = 0, size; done < message_size; done += size) {
        size = message_size - done < MAX_FRAME ? message_size - done : MAX_FRAME;
        int last = done + size == message_size;
        at = frame(at, size, DATA, last ? END_STREAM : 0, to->stream);
        memcpy(at, message + done, size);
        at += size;
    }
    to->window -= (int64_t)message_size;
    send_all(to, wire, (size_t)(at - wire));
}

/* Send the request on a connection that is free. */
static void ask(struct connection *to) {
    to->answered = 0;
    to->stream += 2;
    vary();
    if (grpc)
        ask_grpc(to);
    else
        send_all(to, request, request_size);
}

static void dial(struct connection *to) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1;
    to->file = socket(AF_INET, SOCK_STREAM, 0);
    must(connect(to->file, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    setsockopt(to->file, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = to};
    epoll_ctl(queue, EPOLL_CTL_ADD, to->file, &event);
    to->have = to->taken = 0;
    to->leaving = to->waiting = 0;
    to->stream = (uint32_t)-1; /* the first one is 1 */
    to->window = 65535;
    if (grpc) {
        memcpy(wire, PREFACE, sizeof PREFACE - 1);
        unsigned char *at = frame(wire + sizeof PREFACE - 1, 0, SETTINGS, 0, 0);
        send_all(to, wire, (size_t)(at - wire));
    }
}

static void hang_up(struct connection *to) {
    close(to->file);
    to->file = -1;
}

/* Each of these returns the bytes it used of what has come; 0 if it wants more. */
static size_t read_http(struct connection *from) {
    from->bytes[from->have] = 0;
    unsigned char *stop = memmem(from->bytes, from->have, "\r\n\r\n", 4);
    if (stop == NULL)
        return 0;
    char *length = strcasestr((char *)from->bytes, "\r\ncontent-length:");
    must(length != NULL && (unsigned char *)length < stop, "an answer without a length");
    size_t head = (size_t)(stop - from->bytes) + 4, size = head + strtoul(length + 17, NULL, 10);
    if (size > from->have)
        return 0;
    from->have = 0;
    done(from, memcmp(from->bytes + 8, " 200", 4) == 0, from->bytes, head);
    return size;
}

static void reply(struct connection *to, int type, int flags, const void *bytes, size_t size) {
    unsigned char buffer[64], *at = frame(buffer, size, type, flags, 0);
    if (size)
        memcpy(at, bytes, size);
    send_all(to, buffer, (size_t)(at - buffer) + size);
}

static void take_data(struct connection *from, size_t size) {
    unsigned char window[4];
    from->answered |= size > 5; /* a call that failed has no message */
    from->taken += (uint32_t)size;
    if (from->taken >= REFILL) {
        put(window, from->taken);
        reply(from, WINDOW, 0, window, sizeof window);
        from->taken = 0;
    }
}

static size_t read_frame(struct connection *from) {
    unsigned char *at = from->bytes, head[MAX_FRAME];
    size_t size = from->have < FRAME ? 0 : number(at) >> 8;
    if (from->have < FRAME || from->have < FRAME + size)
        return 0;
    int type = at[3], flags = at[4];
    uint32_t stream = number(at + 5) & 0x7fffffff;
    if (type == DATA)
        take_data(from, size);
    else if (type == SETTINGS && !(flags & ACK))
        reply(from, SETTINGS, ACK, NULL, 0);
    else if (type == PING && !(flags & ACK))
        reply(from, PING, ACK, at + FRAME, 8);
    else if (type == GOAWAY)
        from->leaving = 1;
    else if (type == WINDOW && stream == 0)
        from->window += number(at + FRAME);
    size_t kept = type == HEADERS ? size : 0;
    memcpy(head, at + FRAME, kept);
    from->have -= FRAME + size;
    memmove(from->bytes, from->bytes + FRAME + size, from->have);
    int over = (type == HEADERS || type == DATA) && flags & END_STREAM;
    if (stream == from->stream && (over || type == RESET))
        done(from, over && from->answered, head, kept);
    else if (from->waiting)
        ask_grpc(from);
    return FRAME + size;
}

static void hear(struct connection *from) {
    ssize_t got = read(from->file, from->bytes + from->have, ROOM - 1 - from->have);
    if (got <= 0) {
        parted(from);
        return;
    }
    from->have += (size_t)got;
    while (from->file >= 0 && from->have > 0 && (grpc ? read_frame(from) : read_http(from)) > 0)
        continue;
}

static size_t read_file(const char *path, unsigned char *bytes, size_t most) {
    FILE *file = fopen(path, "rb");
    must(file != NULL, path);
    size_t size = fread(bytes, 1, most, file);
    fclose(file);
    return size;
}

static void read_fields(const char *path) {
    FILE *file = fopen(path, "r");
    must(file != NULL, path);
    struct field found;
    while (fscanf(file, "%zu %zu %c", &found.offset, &found.length, &found.kind) == 3) {
        fields = realloc(fields, (field_count + 1) * sizeof *fields);
        must(fields != NULL, "realloc");
        fields[field_count++] = found;
    }
    fclose(file);
}

static void begin(const char *protocol, const char *port_text, const char *path) {
    grpc = strcmp(protocol, "grpc") == 0;
    port = atoi(port_text);
    queue = epoll_create1(0);
    request = malloc(sizeof wire);
    must(request != NULL, "malloc");
    request_size = read_file(path, request, sizeof wire / 2);
    if (grpc) {
        block_size = number(request);
        message = request + 4 + block_size;
        message_size = request_size - 4 - block_size;
    }
}
