/* An open-loop client: requests come when they are due, whatever became of those before.
 *
 *   open http|grpc PORT RATE SECONDS FIRST MOST REQUEST_FILE REFUSAL_FILE HINT_FILE
 *
 * FIRST connections are made and used once. Then RATE requests a second on average come, at
 * random moments (a Poisson process). Each takes a connection that is free or, as long as there
 * are not MOST of them, a new one; else it waits for one. An answer
 * that is none is a refusal if its head has the bytes of REFUSAL_FILE, told with a hint if it
 * has those of HINT_FILE, too. See wire.h for the request.
 *
 * Prints a line "connections cpu_seconds seconds", then for each request in the order of their
 * ends four floats: when it was due, how late it was sent and how long after it was due it was
 * over, in seconds, and what became of it: 0 an answer, 1 a refusal with a hint, 2 one without,
 * 3 anything else.
 */
#include "wire.h"

#include <math.h>

enum { LEAST_ROOM = 1 << 16, LINE = 1 << 20 };
enum { ANSWER, HINTED, REFUSED, FAILED };

struct record {
    float due, late, latency, outcome;
};

/* Numbers and not places, so that a full line is told from an empty one. */
struct line {
    size_t first, last;
    void *places[LINE];
};

static double start;
static int counting, most, opened, busy;
static unsigned char refusal[256], hint[256];
static size_t refusal_size, hint_size;
static struct record *records;
static size_t recorded, room;
static struct line idle;     /* connections */
static double waiting[LINE]; /* when they were due */
static size_t first_waiting, last_waiting;

static void record(double due, float late, int outcome) {
    if (recorded == room) {
        room = room ? 2 * room : LEAST_ROOM;
        records = realloc(records, room * sizeof *records);
        must(records != NULL, "realloc");
    }
    float latency = (float)(now() - due);
    records[recorded++] = (struct record){(float)(due - start), late, latency, (float)outcome};
}

/* One that is free and that the server has not closed, or a new one; NULL if there are enough. */
static struct connection *find_connection(void) {
    while (idle.first != idle.last) {
        struct connection *each = idle.places[idle.first++ % LINE];
        if (each->file >= 0)
            return each;
        opened--;
        free(each);
    }
    if (opened == most)
        return NULL;
    struct connection *each = calloc(1, sizeof *each);
    must(each != NULL, "calloc");
    opened++;
    dial(each);
    return each;
}

static void send_due(struct connection *to, double due) {
    to->since = due;
    to->late = (float)(now() - due);
    busy++;
    ask(to);
}

static void offer(double due) {
    struct connection *each = find_connection();
    if (each != NULL) {
        send_due(each, due);
    } else {
        must(last_waiting - first_waiting < LINE, "too many wait");
        waiting[last_waiting++ % LINE] = due;
    }
}

static void release(struct connection *from) {
    busy--;
    if (from->leaving) {
        hang_up(from);
        dial(from);
    }
    if (first_waiting != last_waiting)
        send_due(from, waiting[first_waiting++ % LINE]);
    else
        idle.places[idle.last++ % LINE] = from;
}

static int has(const unsigned char *head, size_t size, const unsigned char *part, size_t length) {
    return memmem(head, size, part, length) != NULL;
}

static void done(struct connection *from, int ok, const unsigned char *head, size_t size) {
    int outcome = ANSWER;
    must(ok || counting, "a request before the load had no answer");
    if (!ok && !has(head, size, refusal, refusal_size))
        outcome = FAILED;
    else if (!ok)
        outcome = has(head, size, hint, hint_size) ? HINTED : REFUSED;
    if (counting)
        record(from->since, from->late, outcome);
    from->since = 0;
    release(from);
}

static void parted(struct connection *from) {
    if (from->since == 0) { /* it was idle: whoever finds it, drops it */
        hang_up(from);
        return;
    }
    record(from->since, from->late, FAILED);
    from->since = 0;
    from->leaving = 1;
    release(from);
}

static void wait_for_events(double seconds) {
    struct epoll_event events[EVENTS];
    struct timespec limit = {0, seconds <= 0 ? 0 : (long)(fmin(seconds, 0.9) * 1e9)};
    int ready = epoll_pwait2(queue, events, EVENTS, &limit, NULL);
    for (int i = 0; i < ready; i++)
        hear(events[i].data.ptr);
}

/* One after the other, so that none of them is refused. */
static void connect_first(int first) {
    for (double until = now() + 60; opened < first; idle.first = idle.last - (size_t)opened) {
        idle.first = idle.last; /* so that it takes a new one */
        offer(now());
        while (busy > 0) {
            must(now() < until, "the server does not answer");
            wait_for_events(0.9);
        }
    }
    counting = 1;
}

static double gap(double rate) {
    return -log(1 - drand48()) / rate;
}

int main(int count, char **arguments) {
    must(count == 10, "usage: open http|grpc PORT RATE SECONDS FIRST MOST REQUEST REFUSAL HINT");
    begin(arguments[1], arguments[2], arguments[7]);
    double rate = atof(arguments[3]), seconds = atof(arguments[4]);
    most = atoi(arguments[6]);
    refusal_size = read_file(arguments[8], refusal, sizeof refusal);
    hint_size = read_file(arguments[9], hint, sizeof hint);
    srand48(1);
    connect_first(atoi(arguments[5]));
    start = now();
    double used = cpu_seconds(), end = start + seconds, due = start + gap(rate);
    for (double time = start; due < end || (busy > 0 && time < end + 10); time = now()) {
        for (; due <= time && due < end; due += gap(rate))
            offer(due);
        wait_for_events(due < end ? due - now() : 0.1);
    }
    for (; busy > 0; busy--) /* they never had their answer */
        record(end, 0, FAILED);
    for (; first_waiting != last_waiting; first_waiting++)
        record(waiting[first_waiting % LINE], 0, FAILED);
    printf("%d %.4f %.4f\n", opened, cpu_seconds() - used, now() - start);
    must(fwrite(records, sizeof *records, recorded, stdout) == recorded, "write");
    return 0;
}
