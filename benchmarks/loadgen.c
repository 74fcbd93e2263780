/* A closed-loop client that costs little: one request after the other on each connection.
 *
 *   loadgen http|grpc PORT CONNECTIONS SECONDS REQUEST_FILE [FIELDS_FILE]
 *
 * See wire.h for the files. Prints: answered failed seconds p50_us p99_us cpu_seconds.
 */
#include "wire.h"

static int open_connections;
static double end;
static float *latencies;
static size_t answered, failed, room;

static void ask_now(struct connection *to) {
    to->since = now();
    ask(to);
}

static void end_of(struct connection *to) {
    hang_up(to);
    open_connections--;
}

/* Count the request, and send the next one. */
static void done(struct connection *to, int ok, const unsigned char *head, size_t size) {
    (void)head, (void)size;
    double time = now();
    if (ok && answered == room) {
        room = room ? 2 * room : 1 << 16;
        latencies = realloc(latencies, room * sizeof *latencies);
        must(latencies != NULL, "realloc");
    }
    if (ok)
        latencies[answered++] = (float)((time - to->since) * 1e6);
    else
        failed++;
    if (time >= end) {
        end_of(to);
        return;
    }
    if (to->leaving) {
        close(to->file);
        dial(to);
    }
    ask_now(to);
}

static void parted(struct connection *from) {
    failed++;
    end_of(from);
}

static int compare(const void *a, const void *b) {
    float left = *(const float *)a, right = *(const float *)b;
    return (left > right) - (left < right);
}

int main(int count, char **arguments) {
    must(count == 6 || count == 7, "usage: loadgen http|grpc PORT CONNECTIONS SECONDS REQUEST_FILE [FIELDS_FILE]");
    begin(arguments[1], arguments[2], arguments[5]);
    if (count == 7)
        read_fields(arguments[6]);
    open_connections = atoi(arguments[3]);
    double start = now();
    end = start + atof(arguments[4]);
    for (int left = open_connections; left > 0; left--) {
        struct connection *each = calloc(1, sizeof *each);
        must(each != NULL, "calloc");
        dial(each);
        ask_now(each);
    }
    struct epoll_event events[EVENTS];
    while (open_connections > 0 && now() < end + 10) {
        int ready = epoll_wait(queue, events, EVENTS, 1000);
        for (int i = 0; i < ready; i++)
            hear(events[i].data.ptr);
    }
    failed += (size_t)open_connections; /* they never had their answer */
    double taken = now() - start;
    if (answered > 0)
        qsort(latencies, answered, sizeof *latencies, compare);
    printf("%zu %zu %.4f %.1f %.1f %.4f\n", answered, failed, taken, answered ? latencies[answered / 2] : 0.0,
           answered ? latencies[answered * 99 / 100] : 0.0, cpu_seconds());
    return 0;
}
