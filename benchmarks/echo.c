/* The smallest HTTP server: read a whole POST, respond with a fixed body, keep the
 * connection. What it reaches is the limit of sockets and of the client, not of a server.
 *
 *   echo PORT BODY_BYTES
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ROOM = 1 << 18, EVENTS = 256, FILES = 65536 };

struct peer {
    size_t have;
    char bytes[ROOM];
};

static struct peer *peers[FILES];
static char answer[ROOM];
static size_t answer_size;

static void must(int ok, const char *what) {
    if (!ok) {
        perror(what);
        exit(1);
    }
}

/* Return the size of the first request in bytes; 0 until its head is complete. */
static size_t request_size(struct peer *peer) {
    peer->bytes[peer->have] = 0;
    char *end = memmem(peer->bytes, peer->have, "\r\n\r\n", 4);
    if (end == NULL)
        return 0;
    char *length = strcasestr(peer->bytes, "\r\ncontent-length:");
    size_t body = length != NULL && length < end ? strtoul(length + 17, NULL, 10) : 0;
    return (size_t)(end - peer->bytes) + 4 + body;
}

static void leave(int file) {
    close(file);
    free(peers[file]);
    peers[file] = NULL;
}

static void serve(int file) {
    struct peer *peer = peers[file];
    ssize_t got = read(file, peer->bytes + peer->have, ROOM - 1 - peer->have);
    if (got <= 0) {
        leave(file);
        return;
    }
    peer->have += (size_t)got;
    for (size_t size; (size = request_size(peer)) != 0 && size <= peer->have;) {
        peer->have -= size;
        memmove(peer->bytes, peer->bytes + size, peer->have);
        if (write(file, answer, answer_size) != (ssize_t)answer_size) {
            leave(file);
            return;
        }
    }
    if (peer->have == ROOM - 1)
        leave(file);
}

int main(int count, char **arguments) {
    must(count == 3, "usage: echo PORT BODY_BYTES");
    size_t body = strtoul(arguments[2], NULL, 10);
    must(body < ROOM - 256, "the body is too large");
    int head = snprintf(answer, ROOM,
        "HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: %zu\r\n\r\n", body);
    memset(answer + head, 'x', body);
    answer_size = (size_t)head + body;
    int listener = socket(AF_INET, SOCK_STREAM, 0), queue = epoll_create1(0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(arguments[1])),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    must(bind(listener, (struct sockaddr *)&address, sizeof address) == 0, "bind");
    must(listen(listener, 1024) == 0, "listen");
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[EVENTS];
    epoll_ctl(queue, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int ready = epoll_wait(queue, events, EVENTS, -1);
        must(ready >= 0 || errno == EINTR, "epoll_wait");
        for (int i = 0; i < ready; i++) {
            int file = events[i].data.fd;
            if (file != listener) {
                serve(file);
                continue;
            }
            file = accept(listener, NULL, NULL);
            must(file >= 0 && file < FILES, "accept");
            setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            peers[file] = malloc(sizeof(struct peer));
            must(peers[file] != NULL, "malloc");
            peers[file]->have = 0;
            event.events = EPOLLIN;
            event.data.fd = file;
            epoll_ctl(queue, EPOLL_CTL_ADD, file, &event);
        }
    }
}
