// Taupe's additions: names of errors, cookies, timeouts, batches, work in place, changes at run
// time, hybrid handshakes, counters, log levels.

#include "taupe.h"

#include <unistd.h>

#include "check.h"

static uint8_t out[MAX_WIREGUARD_PACKET_SIZE], in[MAX_WIREGUARD_PACKET_SIZE];
static struct wireguard_tunnel *a, *b;
static const struct taupe_address at_a = {4, 1111, {192, 0, 2, 1}, 0};
static const struct taupe_address at_b = {6, 2222, {0x20, 1, 0xd, 0xb8}, 0};
static int lines;

// Checks the form of a line, which is boringtun's: "2026-01-01T00:00:00.000000Z text\n".
static void print(const char *line) {
    size_t length = strlen(line);
    CHECK(length > 29 && line[10] == 'T' && line[19] == '.' && line[26] == 'Z' && line[27] == ' ');
    CHECK(strchr(line, '\n') == line + length - 1);
    lines++;
    // A log function may call the library, also if that call would log. It uses its own buffer,
    // because the call that logs is using the others.
    uint8_t own[148];
    struct wireguard_result result = wireguard_read(b, (const uint8_t *)"odd", 3, own, sizeof own);
    CHECK(result.op == WIREGUARD_ERROR && result.size == TAUPE_INVALID_PACKET);
}

static void make(struct wireguard_tunnel **x, struct wireguard_tunnel **y) {
    struct x25519_key x_key = x25519_secret_key(), y_key = x25519_secret_key();
    const char *texts[] = {
        x25519_key_to_hex(x_key), x25519_key_to_hex(x25519_public_key(y_key)),
        x25519_key_to_hex(y_key), x25519_key_to_hex(x25519_public_key(x_key)),
    };
    *x = new_tunnel(texts[0], texts[1], NULL, 0, 1);
    *y = new_tunnel(texts[2], texts[3], NULL, 0, 2);
    CHECK(*x && *y);
    for (int i = 0; i < 4; i++) x25519_key_to_str_free(texts[i]);
    taupe_erase(x_key.key, 32);
    for (int i = 0; i < 32; i++) CHECK(x_key.key[i] == 0);
}

// Carries the datagrams of a tunnel, and all answers, until none is left.
static int settle(struct wireguard_tunnel *from, struct wireguard_tunnel *to,
                  const struct taupe_address *source, struct wireguard_result first) {
    int datagrams = 0;
    for (struct wireguard_result result = first; result.op == WRITE_TO_NETWORK;
         result = wireguard_read(from, NULL, 0, out, sizeof out)) {
        uint8_t datagram[2048], answer[2048];
        CHECK(result.size <= sizeof datagram);
        memcpy(datagram, out, result.size);
        datagrams++;
        struct wireguard_result answered =
            taupe_read_from(to, source, datagram, (uint32_t)result.size, answer, sizeof answer);
        CHECK(answered.op != WIREGUARD_ERROR);
        while (answered.op == WRITE_TO_NETWORK) {
            datagrams++;
            struct wireguard_result third = taupe_read_from(
                from, source == &at_a ? &at_b : &at_a, answer, (uint32_t)answered.size, out, sizeof out);
            CHECK(third.op != WIREGUARD_ERROR);
            if (third.op == WRITE_TO_NETWORK)
                datagrams += settle(from, to, source, third);
            answered = wireguard_read(to, NULL, 0, answer, sizeof answer);
        }
    }
    return datagrams;
}

static int handshake(void) {
    return settle(a, b, &at_a, wireguard_force_handshake(a, out, sizeof out));
}

static void one_packet(struct wireguard_tunnel *from, struct wireguard_tunnel *to) {
    uint8_t packet[200];
    make_packet(packet, sizeof packet, 4, 5);
    struct wireguard_result result = wireguard_write(from, packet, sizeof packet, out, sizeof out);
    CHECK(result.op == WRITE_TO_NETWORK && result.size == 208 + 32);
    result = wireguard_read(to, out, (uint32_t)result.size, in, sizeof in);
    CHECK(result.op == WRITE_TO_TUNNEL_IPV4 && result.size == sizeof packet);
    CHECK(!memcmp(in, packet, sizeof packet));
}

static void names(void) {
    CHECK(strlen(taupe_version()) >= 5);
    CHECK(!strcmp(taupe_error_name(TAUPE_UNDER_LOAD), "UnderLoad"));
    CHECK(!strcmp(taupe_error_name(TAUPE_DUPLICATE_COUNTER), "DuplicateCounter"));
    CHECK(!strcmp(taupe_error_name(4711), "Unknown"));
    CHECK(strlen(taupe_error_to_string(TAUPE_CONNECTION_EXPIRED)) > 20);
    CHECK(strlen(taupe_error_to_string(4711)) > 20);
    size_t reasons = 0;
    while (taupe_drop_reason(reasons)) reasons++;
    CHECK(reasons >= 20 && taupe_dropped(a, reasons) == 0 && taupe_dropped(NULL, 0) == 0);
    CHECK(!taupe_set_numbering(a, 2) && !taupe_set_numbering(NULL, 0));
    CHECK(!taupe_set_log_level(0));
    CHECK(set_logging_function(print) && !set_logging_function(print));
    CHECK(taupe_set_log_level(TAUPE_LOG_INFO) && !taupe_set_log_level(4));
}

static void timeouts(void) {
    CHECK(taupe_next_timeout(a) == -1 && taupe_next_timeout(NULL) == -1);
    CHECK(handshake() == 3);
    CHECK(lines == 2);  // a session has begun, on each side
    CHECK(taupe_set_log_level(TAUPE_LOG_TRACE));
    CHECK(wireguard_read(a, (const uint8_t *)"odd", 3, in, sizeof in).op == WIREGUARD_ERROR);
    CHECK(lines == 3 && taupe_set_log_level(TAUPE_LOG_INFO));
    // The next timer erases the session, 540 s after its start.
    int timeout = taupe_next_timeout(b);
    CHECK(timeout > 500000 && timeout <= 540000);
    struct taupe_address address;
    // Compare the fields; the padding between them is undefined.
    CHECK(taupe_peer_address(b, &address) && address.version == at_a.version);
    CHECK(address.port == at_a.port && address.scope == at_a.scope);
    CHECK(!memcmp(address.ip, at_a.ip, sizeof address.ip));
    CHECK(taupe_peer_address(a, &address) && address.version == 6 && address.port == 2222);
    CHECK(!memcmp(address.ip, at_b.ip, 16));
    CHECK(!taupe_peer_address(NULL, &address) && !taupe_peer_address(a, NULL));
    // After data, a keepalive is due within 10 s, unless an answer is sent.
    one_packet(a, b);
    timeout = taupe_next_timeout(b);
    CHECK(timeout > 5000 && timeout <= 10000);
    one_packet(b, a);
    // A persistent keepalive is due at once when it is set, and then every second.
    CHECK(taupe_set_keep_alive(a, 1) && !taupe_set_keep_alive(NULL, 1));
    CHECK(taupe_next_timeout(a) == 0);
    CHECK(wireguard_tick(a, out, sizeof out).size == 32);
    timeout = taupe_next_timeout(a);
    CHECK(timeout > 0 && timeout <= 1000);
    usleep((useconds_t)timeout * 1000 + 2000);
    CHECK(taupe_next_timeout(a) == 0);
    struct wireguard_result result = wireguard_tick(a, out, sizeof out);
    CHECK(result.op == WRITE_TO_NETWORK && result.size == 32);
    CHECK(taupe_set_keep_alive(a, 0));
}

enum { COUNT = 100, STRIDE = 1500 };

static void batches(void) {
    static uint8_t packets[COUNT * STRIDE], messages[COUNT * STRIDE];
    size_t sizes[COUNT], sealed[COUNT];
    struct wireguard_result results[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        sizes[i] = i % 3 ? 1400 : 60 + i;
        make_packet(packets + i * STRIDE, sizes[i], i % 2 ? 4 : 6, (uint8_t)i);
    }
    struct wireguard_result result =
        taupe_write_batch(a, packets, STRIDE, sizes, COUNT, messages, STRIDE, sealed);
    CHECK(result.op == WRITE_TO_NETWORK && result.size == COUNT);
    // One message is changed, one is repeated, one is garbage.
    messages[7 * STRIDE + 40] ^= 1;
    memcpy(messages + 9 * STRIDE, messages + 8 * STRIDE, STRIDE);
    sealed[9] = sealed[8];
    memset(messages + 11 * STRIDE, 0xee, STRIDE);
    result = taupe_read_batch(b, &at_a, messages, STRIDE, sealed, COUNT, results);
    CHECK(result.op == WIREGUARD_DONE && result.size == COUNT - 3);
    for (size_t i = 0; i < COUNT; i++) {
        if (i == 7 || i == 9 || i == 11) {
            size_t error = i == 7   ? TAUPE_INVALID_AEAD_TAG
                           : i == 9 ? TAUPE_DUPLICATE_COUNTER
                                    : TAUPE_INVALID_PACKET;
            CHECK(results[i].op == WIREGUARD_ERROR && results[i].size == error);
            continue;
        }
        CHECK(results[i].op == (i % 2 ? WRITE_TO_TUNNEL_IPV4 : WRITE_TO_TUNNEL_IPV6));
        CHECK(results[i].size == sizes[i]);
        CHECK(!memcmp(packets + i * STRIDE, messages + i * STRIDE + TAUPE_OFFSET, sizes[i]));
    }
    // Batches of none and of one, and batches that do not fit.
    CHECK(taupe_write_batch(a, NULL, 0, NULL, 0, NULL, 0, NULL).op == WIREGUARD_DONE);
    CHECK(taupe_read_batch(a, NULL, NULL, 0, NULL, 0, NULL).op == WIREGUARD_DONE);
    result = taupe_write_batch(a, packets, 10, sizes, 2, messages, STRIDE, sealed);
    CHECK(result.op == WIREGUARD_ERROR && result.size == TAUPE_INVALID_ARGUMENT);
    result = taupe_write_batch(a, packets, STRIDE, sizes, 2, messages, 1431, sealed);
    CHECK(result.op == WIREGUARD_ERROR && result.size == TAUPE_DESTINATION_BUFFER_TOO_SMALL);
    result = taupe_write_batch(a, packets, SIZE_MAX, sizes, 2, messages, STRIDE, sealed);
    CHECK(result.op == WIREGUARD_ERROR && result.size == TAUPE_INVALID_ARGUMENT);
    CHECK(taupe_write_batch(NULL, packets, 1, sizes, 1, out, 1, sealed).op == WIREGUARD_ERROR);
    CHECK(taupe_write_batch(a, packets, 1, NULL, 1, out, 1, sealed).op == WIREGUARD_ERROR);
    CHECK(taupe_read_batch(a, NULL, messages, 1, sizes, 1, NULL).op == WIREGUARD_ERROR);
    CHECK(taupe_read_batch(NULL, NULL, messages, 1, sizes, 1, results).op == WIREGUARD_ERROR);

    // Without a session the packets are queued and a handshake begins.
    struct wireguard_tunnel *c, *d;
    make(&c, &d);
    result = taupe_write_batch(c, packets, STRIDE, sizes, 3, messages, STRIDE, sealed);
    CHECK(result.op == WRITE_TO_NETWORK && result.size == 1 && sealed[0] == 148);
    CHECK(taupe_get_counters(c).waiting == 3);
    result = taupe_read_batch(d, &at_a, messages, 148, sealed, 1, results);
    CHECK(result.op == WIREGUARD_DONE && result.size == 0 && results[0].op == WIREGUARD_DONE);
    result = wireguard_read(d, NULL, 0, out, sizeof out);
    CHECK(result.op == WRITE_TO_NETWORK && result.size == 92);
    CHECK(wireguard_read(c, out, 92, in, sizeof in).size == 32);
    CHECK(taupe_next_timeout(c) == 0);
    for (size_t i = 0; i < 3; i++) {
        result = wireguard_read(c, NULL, 0, out, sizeof out);
        CHECK(result.op == WRITE_TO_NETWORK);
        result = wireguard_read(d, out, (uint32_t)result.size, in, sizeof in);
        CHECK(result.size == sizes[i] && !memcmp(in, packets + i * STRIDE, sizes[i]));
    }
    tunnel_free(c);
    tunnel_free(d);
}

static void in_place(void) {
    uint8_t packet[777];
    make_packet(packet, sizeof packet, 6, 3);
    memcpy(out + TAUPE_OFFSET, packet, sizeof packet);
    struct wireguard_result result = taupe_write_in_place(a, out, sizeof packet, sizeof packet + 32);
    CHECK(result.op == WRITE_TO_NETWORK && result.size == sizeof packet + 32);
    result = taupe_read_in_place(b, &at_a, out, (uint32_t)result.size, (uint32_t)result.size);
    CHECK(result.op == WRITE_TO_TUNNEL_IPV6 && result.size == sizeof packet);
    CHECK(!memcmp(out + TAUPE_OFFSET, packet, sizeof packet));
    result = taupe_write_in_place(a, out, sizeof packet, sizeof packet + 31);
    CHECK(result.op == WIREGUARD_ERROR && result.size == TAUPE_DESTINATION_BUFFER_TOO_SMALL);
    CHECK(taupe_read_in_place(b, NULL, out, 200, 199).op == WIREGUARD_ERROR);
    CHECK(wireguard_force_handshake(a, out, sizeof out).size == 148);
    result = taupe_read_in_place(b, &at_a, out, 148, 148);
    CHECK(result.op == WRITE_TO_NETWORK && result.size == 92 && out[0] == 2);
    struct taupe_address odd = {5, 0, {0}, 0};
    CHECK(taupe_read_from(b, &odd, out, 92, in, sizeof in).size == TAUPE_INVALID_ARGUMENT);
}

static void preshared_keys(void) {
    const char *psk = "FpCyhws9cxwWoV4xELtfJvjJN+zQVRPISllRWgeopVE=";
    CHECK(taupe_set_preshared_key(a, psk) && !taupe_set_preshared_key(a, "malformed"));
    CHECK(!taupe_set_preshared_key(NULL, psk));
    usleep(60000);
    CHECK(wireguard_force_handshake(a, out, sizeof out).size == 148);
    uint8_t response[92];
    CHECK(wireguard_read(b, out, 148, response, 92).size == 92);
    struct wireguard_result result = wireguard_read(a, response, 92, out, sizeof out);
    CHECK(result.op == WIREGUARD_ERROR && result.size == TAUPE_INVALID_AEAD_TAG);
    CHECK(taupe_set_preshared_key(b, psk));
    usleep(60000);
    CHECK(handshake() == 3);
    one_packet(a, b);
    CHECK(taupe_set_preshared_key(a, NULL) && taupe_set_preshared_key(b, NULL));
}

static void cookies(void) {
    // Too many handshakes: a sender with a known address gets a cookie, and with the cookie an
    // answer. On a busy machine it takes many tries until enough of them fall into one second.
    int given = 0;
    for (int i = 0; i < 2000 && !given; i++) {
        usleep(25000);  // of one peer 50 in a second are answered
        CHECK(wireguard_force_handshake(a, out, sizeof out).size == 148);
        uint8_t initiation[148];
        memcpy(initiation, out, 148);
        struct wireguard_result result = taupe_read_from(b, &at_a, initiation, 148, out, sizeof out);
        CHECK(result.op == WRITE_TO_NETWORK);
        if (result.size == 64) {
            given = 1;
            // Without a source address there is no answer.
            result = wireguard_read(b, initiation, 148, in, sizeof in);
            CHECK(result.op == WIREGUARD_ERROR && result.size == TAUPE_UNDER_LOAD);
            CHECK(wireguard_read(a, out, 64, in, sizeof in).op == WIREGUARD_DONE);
            CHECK(wireguard_force_handshake(a, out, sizeof out).size == 148);
            memcpy(initiation, out, 148);
            result = taupe_read_from(b, &at_a, initiation, 148, out, sizeof out);
            CHECK(result.op == WRITE_TO_NETWORK && result.size == 92);
        }
    }
    CHECK(given);
}

static void post_quantum(int suite) {
    struct wireguard_tunnel *c, *d;
    make(&c, &d);
    uint8_t seeds[2][TAUPE_PQ_SEED_SIZE], keys[2][TAUPE_PQ_KEY_SIZE];
    size_t sizes[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        CHECK(taupe_pq_seed(seeds[i]));
        sizes[i] = taupe_pq_public_key((uint32_t)suite, seeds[i], keys[i]);
    }
    int has_keys = suite != TAUPE_HYBRID_LIGHT;
    CHECK(sizes[0] == (suite == TAUPE_HYBRID_768 ? 1184 : suite == TAUPE_HYBRID_512 ? 800 : 0));
    const uint8_t *seed_c = has_keys ? seeds[0] : NULL, *seed_d = has_keys ? seeds[1] : NULL;
    const uint8_t *key_c = has_keys ? keys[0] : NULL, *key_d = has_keys ? keys[1] : NULL;
    CHECK(taupe_set_post_quantum(c, TAUPE_PQ_PREFER, seed_c, key_d, sizes[1], false));
    CHECK(taupe_set_post_quantum(d, TAUPE_PQ_REQUIRE, seed_d, key_c, sizes[0], false));
    // A side that requires hybrid handshakes refuses ordinary ones.
    struct wireguard_result result;
    result = wireguard_force_handshake(c, out, 148);
    CHECK(result.op == WIREGUARD_ERROR && result.size == TAUPE_DESTINATION_BUFFER_TOO_SMALL);
    result = wireguard_force_handshake(c, out, TAUPE_PQ_MESSAGE_SIZE);
    CHECK(result.op == WRITE_TO_NETWORK && result.size > 148);
    CHECK(settle(c, d, &at_a, result) >= 3);
    struct wireguard_tunnel *a_before = a, *b_before = b;
    a = c, b = d;
    one_packet(c, d);
    one_packet(d, c);
    a = a_before, b = b_before;
    CHECK(taupe_get_counters(c).suite == (uint32_t)suite && taupe_get_counters(c).latched == 1);
    CHECK(taupe_get_counters(d).suite == (uint32_t)suite && taupe_get_counters(d).latched == 0);
    // Turning the mode off ends the session. The other side refuses an ordinary initiation.
    CHECK(taupe_set_post_quantum(c, TAUPE_PQ_OFF, NULL, NULL, 0, false));
    CHECK(taupe_get_counters(c).suite == TAUPE_ORDINARY);
    CHECK(wireguard_force_handshake(c, out, sizeof out).size == 148);
    result = wireguard_read(d, out, 148, in, sizeof in);
    CHECK(result.op == WIREGUARD_ERROR && result.size == TAUPE_POST_QUANTUM_REQUIRED);
    // Malformed keys, and one key without the other.
    if (has_keys) {
        CHECK(!taupe_set_post_quantum(c, TAUPE_PQ_REQUIRE, seed_c, NULL, 0, false));
        CHECK(!taupe_set_post_quantum(c, TAUPE_PQ_REQUIRE, NULL, key_d, sizes[1], false));
        CHECK(!taupe_set_post_quantum(c, TAUPE_PQ_REQUIRE, seed_c, key_d, sizes[1] - 1, false));
        memset(keys[1], 0xff, 3);
        CHECK(!taupe_set_post_quantum(c, TAUPE_PQ_REQUIRE, seed_c, key_d, sizes[1], false));
    }
    CHECK(!taupe_set_post_quantum(c, 3, NULL, NULL, 0, false));
    CHECK(!taupe_set_post_quantum(NULL, 0, NULL, NULL, 0, false));
    CHECK(!taupe_pq_seed(NULL) && taupe_pq_public_key(0, seeds[0], keys[0]) == 0);
    CHECK(taupe_pq_public_key(TAUPE_HYBRID_768, NULL, keys[0]) == 0);
    taupe_erase(seeds[0], sizeof seeds);
    tunnel_free(c);
    tunnel_free(d);
}

int main(void) {
    make(&a, &b);
    names();
    timeouts();
    batches();
    in_place();
    preshared_keys();
    struct taupe_counters counters = taupe_get_counters(a);
    CHECK(counters.tx_packets > COUNT && counters.tx_bytes > COUNT * 60 && counters.sessions == 2);
    counters = taupe_get_counters(b);
    CHECK(counters.rx_packets > COUNT - 3 && counters.dropped >= 3 && counters.waiting == 0);
    CHECK(taupe_get_counters(NULL).tx_packets == 0);
    cookies();
    post_quantum(TAUPE_HYBRID_LIGHT);
    post_quantum(TAUPE_HYBRID_512);
    post_quantum(TAUPE_HYBRID_768);
    taupe_erase(NULL, 0);
    tunnel_free(a);
    tunnel_free(b);
    return 0;
}
