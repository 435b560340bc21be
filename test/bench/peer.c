/*
 * The two ends of the benchmark over real libzmq sockets, in C so that neither end is what is measured.
 *
 *   peer frontend HANDSHAKE REQUESTS OUTPUTS ENGINES HWM      binds; ROUTER, ROUTER, PULL
 *       prints "bound HANDSHAKE REQUESTS OUTPUTS", reads "init HEX" (the INIT payload), does the handshake,
 *       prints "ready" once every engine has said READY and registered
 *   peer engine HANDSHAKE ENGINES HWM HELLO READY REGISTRATION    connects; payloads in hex
 *       stands for ENGINES engine cores, each with sockets of its own; prints "ready" when registered
 *
 * Then both obey lines on stdin, one after the other:
 *
 *   send FILE COUNT RATE STAMP    send COUNT messages of FILE, round and round; RATE messages/s, 0 = as fast as
 *                                 it goes; STAMP: the big-endian double that many bytes before the end of frame 0
 *                                 becomes CLOCK_MONOTONIC in seconds, 0 = leave the bytes alone
 *                                 -> "sent COUNT SECONDS"
 *   expect COUNT STAMP            receive COUNT messages
 *                                 -> "received COUNT BYTES SECONDS P50 P99 MAX" (seconds from the first to the last
 *                                 message; latencies in microseconds, 0 without STAMP)
 *
 * FILE: per message, little-endian u32: engine index, number of frames, and per frame: length, bytes.
 * A wait of more than 20 s ends the process with exit code 2.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <zmq.h>

#define MAX_ENGINES 16
#define MAX_ENVELOPE 4
#define WAIT_MS 20000

struct bytes {
    uint8_t *data;
    size_t size;
};

struct message {
    uint32_t engine;
    uint32_t frame_count;
    struct bytes *frames;
};

struct script {
    struct message *messages;
    size_t count;
};

/* The frames that stand before a payload on its way back to an engine: more than one behind a ROUTER hop. */
struct envelope {
    struct bytes frames[MAX_ENVELOPE];
    int count;
};

static void *context;
static int hwm;
static int engine_count;
static int is_frontend;
static struct envelope envelopes[MAX_ENGINES];
static void *senders[MAX_ENGINES];
static void *receivers[MAX_ENGINES];
static int receiver_count;

static void fail(const char *what)
{
    fprintf(stderr, "peer: %s: %s\n", what, zmq_strerror(zmq_errno()));
    exit(zmq_errno() == EAGAIN ? 2 : 1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static struct bytes from_hex(const char *text)
{
    struct bytes out = {malloc(strlen(text) / 2 + 1), strlen(text) / 2};
    for (size_t i = 0; i < out.size; i++) {
        unsigned value;
        if (sscanf(text + 2 * i, "%2x", &value) != 1) {
            fprintf(stderr, "peer: not hex\n");
            exit(64);
        }
        out.data[i] = (uint8_t)value;
    }
    return out;
}

static void *open_socket(int type, int engine)
{
    void *socket = zmq_socket(context, type);
    int wait = WAIT_MS, linger = 0, mandatory = 1;
    if (socket == NULL)
        fail("socket");
    zmq_setsockopt(socket, ZMQ_SNDHWM, &hwm, sizeof hwm);
    zmq_setsockopt(socket, ZMQ_RCVHWM, &hwm, sizeof hwm);
    zmq_setsockopt(socket, ZMQ_SNDTIMEO, &wait, sizeof wait);
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &wait, sizeof wait);
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    if (type == ZMQ_ROUTER)
        zmq_setsockopt(socket, ZMQ_ROUTER_MANDATORY, &mandatory, sizeof mandatory);
    if (type == ZMQ_DEALER) {
        uint8_t identity[2] = {(uint8_t)engine, 0};
        zmq_setsockopt(socket, ZMQ_ROUTING_ID, identity, sizeof identity);
    }
    return socket;
}

static void *bound_socket(int type, const char *address)
{
    void *socket = open_socket(type, 0);
    if (zmq_bind(socket, address) == -1)
        fail(address);
    return socket;
}

static void *connected_socket(int type, int engine, const char *address)
{
    void *socket = open_socket(type, engine);
    if (zmq_connect(socket, address) == -1)
        fail(address);
    return socket;
}

static void send_frame(void *socket, struct bytes frame, int more)
{
    if (zmq_send(socket, frame.data, frame.size, more ? ZMQ_SNDMORE : 0) == -1)
        fail("send");
}

/* Receives one message; returns its number of frames. */
static int receive_frames(void *socket, struct bytes *frames, int max)
{
    int count = 0, more = 1;
    while (more) {
        zmq_msg_t frame;
        zmq_msg_init(&frame);
        if (zmq_msg_recv(&frame, socket, 0) == -1)
            fail("receive");
        if (count < max) {
            frames[count].size = zmq_msg_size(&frame);
            frames[count].data = malloc(frames[count].size + 1);
            memcpy(frames[count].data, zmq_msg_data(&frame), frames[count].size);
        }
        count++;
        more = zmq_msg_more(&frame);
        zmq_msg_close(&frame);
    }
    return count;
}

static void print_bound(void *socket)
{
    char address[256];
    size_t size = sizeof address;
    if (zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, address, &size) == -1)
        fail("ZMQ_LAST_ENDPOINT");
    printf(" %s", address);
}

static void start_frontend(char **argv)
{
    static char line[65536];
    void *handshake = bound_socket(ZMQ_ROUTER, argv[2]);
    void *requests = bound_socket(ZMQ_ROUTER, argv[3]);
    void *outputs = bound_socket(ZMQ_PULL, argv[4]);
    printf("bound");
    print_bound(handshake);
    print_bound(requests);
    print_bound(outputs);
    printf("\n");
    fflush(stdout);

    if (fgets(line, sizeof line, stdin) == NULL || strncmp(line, "init ", 5) != 0)
        exit(64);
    line[strcspn(line, "\n")] = 0;
    struct bytes init = from_hex(line + 5);

    /* HELLO from each, answered by INIT, then READY from each, in whatever order they come. */
    int greeted[MAX_ENGINES] = {0};
    for (int i = 0; i < 2 * engine_count; i++) {
        struct bytes frames[2];
        int count = receive_frames(handshake, frames, 2);
        int engine = count == 2 && frames[0].size == 2 ? frames[0].data[0] : MAX_ENGINES;
        if (engine >= engine_count) {
            fprintf(stderr, "peer: unexpected handshake message\n");
            exit(1);
        }
        if (greeted[engine]++ == 0) {
            send_frame(handshake, frames[0], 1);
            send_frame(handshake, init, 0);
        }
    }
    for (int i = 0; i < engine_count; i++) {
        struct bytes frames[MAX_ENVELOPE + 1];
        int count = receive_frames(requests, frames, MAX_ENVELOPE + 1);
        struct bytes identity = frames[count - 2];
        struct envelope *envelope = &envelopes[identity.data[0]];
        envelope->count = count - 1;
        memcpy(envelope->frames, frames, sizeof frames[0] * (size_t)(count - 1));
    }
    zmq_close(handshake);
    for (int i = 0; i < engine_count; i++)
        senders[i] = requests;
    receivers[0] = outputs;
    receiver_count = 1;
}

/* The first two addresses in INIT, which are inputs[0] and outputs[0]; the byte before one is its length. */
static void read_addresses(struct bytes init, char addresses[2][256])
{
    int found = 0;
    for (size_t i = 1; i + 6 < init.size && found < 2; i++) {
        if (memcmp(init.data + i, "ipc://", 6) != 0 && memcmp(init.data + i, "tcp://", 6) != 0)
            continue;
        uint8_t head = init.data[i - 1];
        size_t length = i > 1 && init.data[i - 2] == 0xd9 ? head : head & 0x1f;
        memcpy(addresses[found], init.data + i, length);
        addresses[found++][length] = 0;
    }
    if (found < 2) {
        fprintf(stderr, "peer: INIT without addresses\n");
        exit(1);
    }
}

static void start_engines(char **argv)
{
    struct bytes hello = from_hex(argv[5]), ready = from_hex(argv[6]), registration = from_hex(argv[7]);
    void *handshakes[MAX_ENGINES];
    for (int i = 0; i < engine_count; i++) {
        handshakes[i] = connected_socket(ZMQ_DEALER, i, argv[2]);
        send_frame(handshakes[i], hello, 0);
    }
    for (int i = 0; i < engine_count; i++) {
        struct bytes init;
        char addresses[2][256];
        receive_frames(handshakes[i], &init, 1);
        read_addresses(init, addresses);
        receivers[i] = connected_socket(ZMQ_DEALER, i, addresses[0]);
        senders[i] = connected_socket(ZMQ_PUSH, i, addresses[1]);
        send_frame(handshakes[i], ready, 0);
        send_frame(receivers[i], registration, 0);
    }
    receiver_count = engine_count;
}

static uint32_t read_u32(FILE *file)
{
    uint8_t b[4];
    if (fread(b, 1, 4, file) != 4)
        exit(65);
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static struct script load(const char *path)
{
    struct script script = {NULL, 0};
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        fail(path);
    int c;
    while ((c = fgetc(file)) != EOF) {
        ungetc(c, file);
        script.messages = realloc(script.messages, sizeof(struct message) * (script.count + 1));
        struct message *message = &script.messages[script.count++];
        message->engine = read_u32(file);
        message->frame_count = read_u32(file);
        message->frames = malloc(sizeof(struct bytes) * message->frame_count);
        for (uint32_t i = 0; i < message->frame_count; i++) {
            struct bytes *frame = &message->frames[i];
            frame->size = read_u32(file);
            frame->data = malloc(frame->size + 1);
            if (fread(frame->data, 1, frame->size, file) != frame->size)
                exit(65);
        }
    }
    fclose(file);
    return script;
}

static void release(struct script script)
{
    for (size_t i = 0; i < script.count; i++) {
        for (uint32_t k = 0; k < script.messages[i].frame_count; k++)
            free(script.messages[i].frames[k].data);
        free(script.messages[i].frames);
    }
    free(script.messages);
}

static void write_stamp(struct bytes frame, long stamp)
{
    double time = now();
    uint64_t bits;
    memcpy(&bits, &time, 8);
    for (int i = 0; i < 8; i++)
        frame.data[frame.size - (size_t)stamp + (size_t)i] = (uint8_t)(bits >> (56 - 8 * i));
}

static double read_stamp(const uint8_t *data, size_t size, long stamp)
{
    double time;
    uint64_t bits = 0;
    for (int i = 0; i < 8; i++)
        bits = bits << 8 | data[size - (size_t)stamp + (size_t)i];
    memcpy(&time, &bits, 8);
    return time;
}

static void sleep_until(double due)
{
    struct timespec t = {(time_t)due, (long)((due - (double)(time_t)due) * 1e9)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        ;
}

static void send_script(const char *path, long count, double rate, long stamp)
{
    struct script script = load(path);
    double start = now();
    for (long i = 0; i < count; i++) {
        struct message *message = &script.messages[(size_t)i % script.count];
        void *socket = senders[message->engine];
        if (rate > 0)
            sleep_until(start + (double)i / rate);
        if (is_frontend) {
            struct envelope *envelope = &envelopes[message->engine];
            for (int k = 0; k < envelope->count; k++)
                send_frame(socket, envelope->frames[k], 1);
        }
        if (stamp > 0)
            write_stamp(message->frames[0], stamp);
        for (uint32_t k = 0; k < message->frame_count; k++)
            send_frame(socket, message->frames[k], k + 1 < message->frame_count);
    }
    printf("sent %ld %.9f\n", count, now() - start);
    release(script);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Nearest rank: the smallest value that at least this part of all values does not exceed. */
static double quantile(const double *sorted, long count, double part)
{
    long rank = (long)(part * (double)count + 0.999999);
    return sorted[rank < 1 ? 0 : rank - 1];
}

struct tally {
    long messages;
    uint64_t bytes;
    double first;
    long stamp;
    double *latencies;
};

/* Takes one message off a socket; 0 when there is none and we do not want to wait. */
static int take(void *socket, int flags, struct tally *tally)
{
    int first = 1, more = 1;
    while (more) {
        zmq_msg_t frame;
        zmq_msg_init(&frame);
        if (zmq_msg_recv(&frame, socket, first ? flags : 0) == -1) {
            if (first && (flags & ZMQ_DONTWAIT) && zmq_errno() == EAGAIN)
                return 0;
            fprintf(stderr, "peer: %ld messages received, then: ", tally->messages);
            fail("receive");
        }
        size_t size = zmq_msg_size(&frame);
        if (first && tally->stamp > 0)
            tally->latencies[tally->messages] = (now() - read_stamp(zmq_msg_data(&frame), size, tally->stamp)) * 1e6;
        tally->bytes += size;
        first = 0;
        more = zmq_msg_more(&frame);
        zmq_msg_close(&frame);
    }
    if (tally->messages++ == 0)
        tally->first = now();
    return 1;
}

static void take_from_any(struct tally *tally, long count)
{
    zmq_pollitem_t items[MAX_ENGINES];
    memset(items, 0, sizeof items);
    for (int i = 0; i < receiver_count; i++) {
        items[i].socket = receivers[i];
        items[i].events = ZMQ_POLLIN;
    }
    if (zmq_poll(items, receiver_count, WAIT_MS) <= 0) {
        fprintf(stderr, "peer: %ld of %ld messages received, no more for 20 s\n", tally->messages, count);
        exit(2);
    }
    for (int i = 0; i < receiver_count; i++)
        while (tally->messages < count && (items[i].revents & ZMQ_POLLIN) && take(receivers[i], ZMQ_DONTWAIT, tally))
            ;
}

static void expect(long count, long stamp)
{
    struct tally tally = {0, 0, 0, stamp, stamp > 0 ? malloc(sizeof(double) * (size_t)count) : NULL};
    while (tally.messages < count) {
        if (receiver_count == 1)
            take(receivers[0], 0, &tally);
        else
            take_from_any(&tally, count);
    }
    double seconds = now() - tally.first;
    double p50 = 0, p99 = 0, max = 0;
    if (stamp > 0) {
        qsort(tally.latencies, (size_t)count, sizeof(double), by_value);
        p50 = quantile(tally.latencies, count, 0.5);
        p99 = quantile(tally.latencies, count, 0.99);
        max = tally.latencies[count - 1];
        free(tally.latencies);
    }
    printf("received %ld %llu %.9f %.3f %.3f %.3f\n", count, (unsigned long long)tally.bytes, seconds, p50, p99, max);
}

int main(int argc, char **argv)
{
    is_frontend = argc == 7 && strcmp(argv[1], "frontend") == 0;
    if (!is_frontend && !(argc == 8 && strcmp(argv[1], "engine") == 0)) {
        fprintf(stderr, "usage: see the head of peer.c\n");
        return 64;
    }
    /* The default slack of 50 us would be most of the interval at 10,000 messages/s. */
    prctl(PR_SET_TIMERSLACK, 1000UL);
    context = zmq_ctx_new();
    engine_count = atoi(argv[is_frontend ? 5 : 3]);
    hwm = atoi(argv[is_frontend ? 6 : 4]);
    if (engine_count < 1 || engine_count > MAX_ENGINES)
        return 64;
    if (is_frontend)
        start_frontend(argv);
    else
        start_engines(argv);
    printf("ready\n");
    fflush(stdout);

    char line[4096], path[2048];
    while (fgets(line, sizeof line, stdin) != NULL) {
        long count, stamp;
        double rate;
        if (sscanf(line, "send %2047s %ld %lf %ld", path, &count, &rate, &stamp) == 4)
            send_script(path, count, rate, stamp);
        else if (sscanf(line, "expect %ld %ld", &count, &stamp) == 2)
            expect(count, stamp);
        else
            return 64;
        fflush(stdout);
    }
    return 0;
}
