// Several threads use two tunnels at the same time: each writes, reads, ticks, forces handshakes,
// changes keys and reads statistics. Only few packets may be lost.

#include "taupe.h"

#include <pthread.h>
#include <stdatomic.h>

#include "check.h"

enum { THREADS = 4, ROUNDS = 400 };

static struct wireguard_tunnel *a, *b;
static atomic_int arrived;
// Not atomic, because the library logs one line at a time.
static int lines, inside;

static void print(const char *line) {
    CHECK(*line && !inside++);
    lines++;
    inside--;
}

// Passes a datagram to `to`, and all answers back and forth.
static void carry(struct wireguard_tunnel *from, struct wireguard_tunnel *to,
                  const uint8_t *datagram, size_t size, int depth) {
    uint8_t dst[2048], copy[2048];
    struct taupe_address source = {4, (uint16_t)(from == a), {192, 0, 2, 1}, 0};
    struct wireguard_result result =
        taupe_read_from(to, &source, datagram, (uint32_t)size, dst, sizeof dst);
    if (result.op == WRITE_TO_TUNNEL_IPV4) arrived++;
    while (result.op == WRITE_TO_NETWORK && depth < 6) {
        memcpy(copy, dst, result.size);
        carry(to, from, copy, result.size, depth + 1);
        result = wireguard_read(to, NULL, 0, dst, sizeof dst);
    }
}

static void *work(void *number) {
    uint8_t packet[256], dst[2048], batch[8 * 512], messages[8 * 512];
    size_t sizes[8], sealed[8];
    struct wireguard_result results[8];
    uintptr_t seed = (uintptr_t)number;
    for (int i = 0; i < ROUNDS; i++) {
        struct wireguard_tunnel *from = (seed + (unsigned)i) % 2 ? a : b;
        struct wireguard_tunnel *to = from == a ? b : a;
        make_packet(packet, sizeof packet, 4, (uint8_t)i);
        struct wireguard_result result =
            wireguard_write(from, packet, sizeof packet, dst, sizeof dst);
        if (result.op == WRITE_TO_NETWORK) carry(from, to, dst, result.size, 0);
        result = wireguard_tick(from, dst, sizeof dst);
        if (result.op == WRITE_TO_NETWORK) carry(from, to, dst, result.size, 0);
        switch ((seed + (unsigned)i) % 40) {
            case 0:
                result = wireguard_force_handshake(from, dst, sizeof dst);
                if (result.op == WRITE_TO_NETWORK) carry(from, to, dst, result.size, 0);
                break;
            case 1: CHECK(taupe_set_keep_alive(from, (uint16_t)(i % 3))); break;
            case 2: CHECK(taupe_set_preshared_key(from, NULL)); break;
            case 3: CHECK(taupe_get_counters(to).tx_packets <= THREADS * ROUNDS * 9); break;
            case 4: CHECK(wireguard_stats(to).estimated_loss <= 1.0F); break;
            case 5: taupe_set_log_level((uint32_t)(i % 4)); break;
            case 6: taupe_next_timeout(to); break;
            default: break;
        }
        for (size_t j = 0; j < 8; j++) {
            sizes[j] = 100 + j;
            make_packet(batch + j * 512, sizes[j], 4, (uint8_t)j);
        }
        result = taupe_write_batch(from, batch, 512, sizes, 8, messages, 512, sealed);
        if (result.op == WRITE_TO_NETWORK && sealed[0] != 148) {
            result = taupe_read_batch(to, NULL, messages, 512, sealed, result.size, results);
            CHECK(result.op == WIREGUARD_DONE);
            arrived += (int)result.size;
        }
    }
    return NULL;
}

int main(void) {
    struct x25519_key a_key = x25519_secret_key(), b_key = x25519_secret_key();
    const char *texts[] = {
        x25519_key_to_hex(a_key), x25519_key_to_hex(x25519_public_key(b_key)),
        x25519_key_to_hex(b_key), x25519_key_to_hex(x25519_public_key(a_key)),
    };
    CHECK(set_logging_function(print));
    a = new_tunnel(texts[0], texts[1], NULL, 0, 1);
    b = new_tunnel(texts[2], texts[3], NULL, 0, 2);
    for (int i = 0; i < 4; i++) x25519_key_to_str_free(texts[i]);
    uint8_t dst[2048];
    struct wireguard_result result = wireguard_force_handshake(a, dst, sizeof dst);
    carry(a, b, dst, result.size, 0);
    CHECK(wireguard_stats(b).time_since_last_handshake >= 0);

    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    // A packet is lost only if it overtakes a handshake.
    printf("%d of %d packets, %d lines\n", arrived, THREADS * ROUNDS * 9, lines);
    CHECK(arrived > THREADS * ROUNDS * 9 * 9 / 10 && lines > 0);
    tunnel_free(a);
    tunnel_free(b);
    return 0;
}
