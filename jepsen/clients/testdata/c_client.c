/* The steps of the client test with librabbitmq. */
#include <amqp.h>
#include <amqp_tcp_socket.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *addresses[3];
static const char *prefix;

static void fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

static void done(const char *step) {
    printf("ok %s\n", step);
    fflush(stdout);
}

static void ask(const char *what) {
    char line[100];
    printf("%s\n", what);
    fflush(stdout);
    if (fgets(line, sizeof line, stdin) == NULL) fail("nobody answers %s", what);
}

/* name returns one of the test's names; it is never freed. */
static amqp_bytes_t name(const char *suffix) {
    char *s = malloc(strlen(prefix) + strlen(suffix) + 2);
    sprintf(s, "%s.%s", prefix, suffix);
    return amqp_cstring_bytes(s);
}

static int equal(amqp_bytes_t b, const char *s) {
    return b.len == strlen(s) && memcmp(b.bytes, s, b.len) == 0;
}

static void must_reply(amqp_connection_state_t c, const char *what) {
    amqp_rpc_reply_t r = amqp_get_rpc_reply(c);
    if (r.reply_type != AMQP_RESPONSE_NORMAL) fail("%s: reply %d", what, r.reply_type);
}

static amqp_connection_state_t try_connect(const char *address, int heartbeat) {
    char host[100];
    int port;
    struct timeval limit = {10, 0};
    amqp_table_entry_t capable = {amqp_cstring_bytes("consumer_cancel_notify"),
        {.kind = AMQP_FIELD_KIND_BOOLEAN, .value = {.boolean = 1}}};
    amqp_table_entry_t capabilities = {amqp_cstring_bytes("capabilities"),
        {.kind = AMQP_FIELD_KIND_TABLE, .value = {.table = {1, &capable}}}};
    amqp_table_t properties = {1, &capabilities};
    amqp_connection_state_t c = amqp_new_connection();
    amqp_socket_t *socket = amqp_tcp_socket_new(c);
    sscanf(address, "%99[^:]:%d", host, &port);
    if (amqp_socket_open_noblock(socket, host, port, &limit) == AMQP_STATUS_OK &&
        amqp_login_with_properties(c, "/", 0, 131072, heartbeat, &properties, AMQP_SASL_METHOD_PLAIN, "guest", "guest")
                .reply_type == AMQP_RESPONSE_NORMAL)
        return c;
    amqp_destroy_connection(c);
    return NULL;
}

static amqp_connection_state_t connect_to(const char *address, int heartbeat) {
    amqp_connection_state_t c = try_connect(address, heartbeat);
    if (c == NULL) fail("no connection to %s", address);
    amqp_channel_open(c, 1);
    must_reply(c, "channel.open");
    return c;
}

static amqp_connection_state_t reconnect(void) {
    for (int attempt = 0; attempt < 300; attempt++) {
        amqp_connection_state_t c = try_connect(addresses[attempt % 3], 60);
        if (c != NULL) {
            amqp_channel_open(c, 1);
            must_reply(c, "channel.open");
            return c;
        }
        usleep(100000);
    }
    fail("no node lets us in");
    return NULL;
}

static void confirm(amqp_connection_state_t c) {
    amqp_confirm_select(c, 1);
    must_reply(c, "confirm.select");
}

static void send(amqp_connection_state_t c, amqp_bytes_t exchange, amqp_bytes_t key, const char *body) {
    amqp_basic_properties_t p = {._flags = AMQP_BASIC_DELIVERY_MODE_FLAG, .delivery_mode = 2};
    if (amqp_basic_publish(c, 1, exchange, key, 1, 0, &p, amqp_cstring_bytes(body)) != AMQP_STATUS_OK)
        fail("publish %s", body);
}

/* acknowledged waits until the message with this number is confirmed. */
static void acknowledged(amqp_connection_state_t c, uint64_t number) {
    struct timeval limit = {30, 0};
    uint64_t last = 0;
    while (last < number) {
        amqp_frame_t f;
        if (amqp_simple_wait_frame_noblock(c, &f, &limit) != AMQP_STATUS_OK) fail("no confirm of %d", (int)number);
        if (f.frame_type != AMQP_FRAME_METHOD || f.payload.method.id != AMQP_BASIC_ACK_METHOD)
            fail("frame %x instead of a confirm", f.payload.method.id);
        amqp_basic_ack_t *ack = f.payload.method.decoded;
        if (ack->delivery_tag > last) last = ack->delivery_tag;
    }
}

static uint64_t published;

static void publish(amqp_connection_state_t c, amqp_bytes_t exchange, amqp_bytes_t key, const char *body) {
    send(c, exchange, key, body);
    acknowledged(c, ++published);
}

static void declare(amqp_connection_state_t c, amqp_bytes_t queue, amqp_table_t arguments) {
    amqp_queue_declare(c, 1, queue, 0, 1, 0, 0, arguments);
    must_reply(c, "queue.declare");
}

static amqp_bytes_t consume(amqp_connection_state_t c, amqp_bytes_t queue) {
    amqp_basic_consume_ok_t *ok = amqp_basic_consume(c, 1, queue, amqp_empty_bytes, 0, 0, 0, amqp_empty_table);
    must_reply(c, "basic.consume");
    return amqp_bytes_malloc_dup(ok->consumer_tag);
}

static void cancel(amqp_connection_state_t c, amqp_bytes_t tag) {
    amqp_basic_cancel(c, 1, tag);
    must_reply(c, "basic.cancel");
}

/* receive waits for a message, which must have this body. */
static amqp_envelope_t receive(amqp_connection_state_t c, const char *body, int redelivered) {
    struct timeval limit = {30, 0};
    amqp_envelope_t e;
    amqp_maybe_release_buffers(c);
    amqp_rpc_reply_t r = amqp_consume_message(c, &e, &limit, 0);
    if (r.reply_type != AMQP_RESPONSE_NORMAL) fail("waiting for %s: %d", body, r.library_error);
    if (!equal(e.message.body, body)) fail("got %.*s, want %s", (int)e.message.body.len, (char *)e.message.body.bytes, body);
    if (redelivered >= 0 && e.redelivered != redelivered) fail("%s: redelivered %d", body, e.redelivered);
    return e;
}

/* await_lost reads until the connection is lost. */
static void await_lost(amqp_connection_state_t c) {
    struct timeval limit = {60, 0};
    amqp_frame_t f;
    int status;
    while ((status = amqp_simple_wait_frame_noblock(c, &f, &limit)) == AMQP_STATUS_OK)
        if (f.frame_type == AMQP_FRAME_METHOD && f.payload.method.id == AMQP_CONNECTION_CLOSE_METHOD) return;
    if (status == AMQP_STATUS_TIMEOUT) fail("the connection is not lost");
}

static void simple(amqp_connection_state_t c) {
    amqp_bytes_t x = name("x"), q = name("q"), k = amqp_cstring_bytes("k");
    char body[20];
    amqp_table_entry_t type = {amqp_cstring_bytes("x-queue-type"),
        {.kind = AMQP_FIELD_KIND_UTF8, .value = {.bytes = amqp_cstring_bytes("quorum")}}};
    amqp_exchange_declare(c, 1, x, amqp_cstring_bytes("direct"), 0, 1, 0, 0, amqp_empty_table);
    must_reply(c, "exchange.declare");
    declare(c, q, (amqp_table_t){1, &type});
    amqp_queue_bind(c, 1, q, x, k, amqp_empty_table);
    must_reply(c, "queue.bind");
    done("declare");

    for (int i = 0; i < 100; i++) {
        sprintf(body, "%d", i);
        send(c, x, k, body);
    }
    acknowledged(c, published = 100);
    done("confirms");

    amqp_basic_qos(c, 1, 0, 10, 0);
    must_reply(c, "basic.qos");
    amqp_bytes_t tag = consume(c, q);
    for (int i = 0; i < 100; i++) {
        sprintf(body, "%d", i);
        amqp_envelope_t e = receive(c, body, 0);
        if (i % 10 == 9) {
            struct timeval moment = {0, 50000};
            amqp_envelope_t more;
            if (amqp_consume_message(c, &more, &moment, 0).reply_type == AMQP_RESPONSE_NORMAL) fail("more than the prefetch");
            amqp_basic_ack(c, 1, e.delivery_tag, 1);
        }
    }
    cancel(c, tag);
    done("prefetch");

    publish(c, x, k, "again");
    tag = consume(c, q);
    amqp_envelope_t e = receive(c, "again", 0);
    amqp_basic_nack(c, 1, e.delivery_tag, 0, 1);
    e = receive(c, "again", 1);
    amqp_basic_ack(c, 1, e.delivery_tag, 0);
    cancel(c, tag);
    done("requeue");
}

static amqp_table_entry_t *find(amqp_table_t t, const char *key) {
    for (int i = 0; i < t.num_entries; i++)
        if (equal(t.entries[i].key, key)) return &t.entries[i];
    fail("no %s", key);
    return NULL;
}

static void expiry(amqp_connection_state_t c) {
    amqp_bytes_t dead = name("dead"), mortal = name("ttl");
    amqp_table_entry_t arguments[] = {
        {amqp_cstring_bytes("x-message-ttl"), {.kind = AMQP_FIELD_KIND_I32, .value = {.i32 = 200}}},
        {amqp_cstring_bytes("x-dead-letter-exchange"), {.kind = AMQP_FIELD_KIND_UTF8, .value = {.bytes = amqp_empty_bytes}}},
        {amqp_cstring_bytes("x-dead-letter-routing-key"), {.kind = AMQP_FIELD_KIND_UTF8, .value = {.bytes = dead}}},
    };
    declare(c, dead, amqp_empty_table);
    declare(c, mortal, (amqp_table_t){3, arguments});
    publish(c, amqp_empty_bytes, mortal, "mortal");
    amqp_bytes_t tag = consume(c, dead);
    amqp_envelope_t e = receive(c, "mortal", -1);
    amqp_array_t deaths = find(e.message.properties.headers, "x-death")->value.value.array;
    if (deaths.num_entries != 1 || !equal(find(deaths.entries[0].value.table, "reason")->value.value.bytes, "expired"))
        fail("no death by expiry");
    amqp_basic_ack(c, 1, e.delivery_tag, 0);
    cancel(c, tag);
    done("expiry");
}

static void cancelled(amqp_connection_state_t c) {
    struct timeval limit = {30, 0};
    amqp_bytes_t gone = name("gone");
    amqp_frame_t f;
    amqp_connection_state_t other = connect_to(addresses[2], 60);
    declare(c, gone, amqp_empty_table);
    consume(c, gone);
    amqp_queue_delete(other, 1, gone, 0, 0);
    must_reply(other, "queue.delete");
    if (amqp_simple_wait_frame_noblock(c, &f, &limit) != AMQP_STATUS_OK || f.frame_type != AMQP_FRAME_METHOD ||
        f.payload.method.id != AMQP_BASIC_CANCEL_METHOD)
        fail("not cancelled");
    done("cancel");
}

static void silence(amqp_connection_state_t c) {
    amqp_bytes_t q = name("q");
    amqp_connection_state_t silent = connect_to(addresses[1], 2);
    publish(c, name("x"), amqp_cstring_bytes("k"), "held");
    consume(silent, q);
    receive(silent, "held", 0);
    ask("freeze");
    await_lost(silent);
    amqp_bytes_t tag = consume(c, q);
    amqp_envelope_t e = receive(c, "held", 1);
    amqp_basic_ack(c, 1, e.delivery_tag, 0);
    cancel(c, tag);
    done("silence");
}

int main(int argc, char **argv) {
    if (argc != 3) fail("want addresses and a prefix");
    addresses[0] = strtok(argv[1], ",");
    addresses[1] = strtok(NULL, ",");
    addresses[2] = strtok(NULL, ",");
    prefix = argv[2];
    amqp_connection_state_t c = connect_to(addresses[2], 60);
    confirm(c);
    simple(c);
    expiry(c);
    cancelled(c);
    silence(c);

    publish(c, name("x"), amqp_cstring_bytes("k"), "before");
    ask("kill");
    await_lost(c);
    c = reconnect();
    confirm(c);
    published = 0;
    publish(c, name("x"), amqp_cstring_bytes("k"), "after");
    consume(c, name("q"));
    amqp_basic_ack(c, 1, receive(c, "before", -1).delivery_tag, 0);
    amqp_basic_ack(c, 1, receive(c, "after", -1).delivery_tag, 0);
    if (amqp_connection_close(c, AMQP_REPLY_SUCCESS).reply_type != AMQP_RESPONSE_NORMAL) fail("close");
    done("reconnect");
    return 0;
}
