/*
 * The hop that steptap is measured against: libzmq's own zmq_proxy, one thread per flow.
 *
 *   requests   engine DEALER -> [ROUTER bind | DEALER connect] -> frontend ROUTER
 *   outputs    engine PUSH   -> [PULL bind   | PUSH connect]   -> frontend PULL
 *
 * zmq-proxy REQUESTS_BIND OUTPUTS_BIND REQUESTS_CONNECT OUTPUTS_CONNECT HWM
 * prints "bound REQUESTS OUTPUTS" (the addresses engines connect to) and runs until it is killed.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <zmq.h>

struct flow {
    void *engine_side;
    void *frontend_side;
};

static void check(int rc, const char *what)
{
    if (rc == -1) {
        fprintf(stderr, "zmq-proxy: %s: %s\n", what, zmq_strerror(zmq_errno()));
        exit(1);
    }
}

static struct flow open_flow(void *context, int engine_type, const char *bind, int frontend_type,
                             const char *connect, int hwm)
{
    struct flow flow = {zmq_socket(context, engine_type), zmq_socket(context, frontend_type)};
    void *sides[2] = {flow.engine_side, flow.frontend_side};
    for (int i = 0; i < 2; i++) {
        check(zmq_setsockopt(sides[i], ZMQ_SNDHWM, &hwm, sizeof hwm), "ZMQ_SNDHWM");
        check(zmq_setsockopt(sides[i], ZMQ_RCVHWM, &hwm, sizeof hwm), "ZMQ_RCVHWM");
    }
    if (engine_type == ZMQ_ROUTER) {
        /* Without it a ROUTER drops what an engine is too slow to take. */
        int mandatory = 1;
        check(zmq_setsockopt(flow.engine_side, ZMQ_ROUTER_MANDATORY, &mandatory, sizeof mandatory),
              "ZMQ_ROUTER_MANDATORY");
    }
    check(zmq_bind(flow.engine_side, bind), bind);
    check(zmq_connect(flow.frontend_side, connect), connect);
    return flow;
}

static void *run(void *argument)
{
    struct flow *flow = argument;
    zmq_proxy(flow->engine_side, flow->frontend_side, NULL);
    fprintf(stderr, "zmq-proxy: stopped: %s\n", zmq_strerror(zmq_errno()));
    exit(1);
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: zmq-proxy REQUESTS_BIND OUTPUTS_BIND REQUESTS_CONNECT OUTPUTS_CONNECT HWM\n");
        return 64;
    }
    void *context = zmq_ctx_new();
    int hwm = atoi(argv[5]);
    struct flow requests = open_flow(context, ZMQ_ROUTER, argv[1], ZMQ_DEALER, argv[3], hwm);
    struct flow outputs = open_flow(context, ZMQ_PULL, argv[2], ZMQ_PUSH, argv[4], hwm);

    char bound[2][256];
    size_t size = sizeof bound[0];
    check(zmq_getsockopt(requests.engine_side, ZMQ_LAST_ENDPOINT, bound[0], &size), "ZMQ_LAST_ENDPOINT");
    size = sizeof bound[1];
    check(zmq_getsockopt(outputs.engine_side, ZMQ_LAST_ENDPOINT, bound[1], &size), "ZMQ_LAST_ENDPOINT");
    printf("bound %s %s\n", bound[0], bound[1]);
    fflush(stdout);

    pthread_t thread;
    if (pthread_create(&thread, NULL, run, &requests) != 0)
        return 1;
    run(&outputs);
}
