// Measures the cost of a packet: wireguard_write and wireguard_read, and with -DBATCH Taupe's
// batches, between two tunnels in one process. Prints nanoseconds per packet, best of many passes:
// SIZE WRITE READ [BATCH-WRITE BATCH-READ].

#ifdef BATCH
#include "taupe.h"
#else
#include "published.h"
#endif

#include <time.h>

#include "check.h"

// Packets in a burst. They stay in the caches, so that the figure is the cost of the library.
enum { COUNT = 64, STRIDE = 1536, PASSES = 4000 };

static struct wireguard_tunnel *a, *b;
static uint8_t packets[COUNT * STRIDE], messages[COUNT * STRIDE], back[COUNT * STRIDE];
static size_t sizes[COUNT], sealed[COUNT];

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void best(double *least, double began) {
    double each = (now() - began) / COUNT;
    if (*least == 0 || each < *least) *least = each;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    size_t size = (size_t)atoi(argv[1]);
    struct x25519_key a_key = x25519_secret_key(), b_key = x25519_secret_key();
    a = new_tunnel(x25519_key_to_hex(a_key), x25519_key_to_hex(x25519_public_key(b_key)), NULL, 0, 1);
    b = new_tunnel(x25519_key_to_hex(b_key), x25519_key_to_hex(x25519_public_key(a_key)), NULL, 0, 2);
    CHECK(a && b);
    uint8_t initiation[148], response[148], keepalive[148];
    CHECK(wireguard_force_handshake(a, initiation, 148).size == 148);
    CHECK(wireguard_read(b, initiation, 148, response, 148).size == 92);
    CHECK(wireguard_read(a, response, 92, keepalive, 148).size == 32);
    CHECK(wireguard_read(b, keepalive, 32, back, STRIDE).op == WIREGUARD_DONE);
    for (size_t i = 0; i < COUNT; i++) {
        sizes[i] = size;
        make_packet(packets + i * STRIDE, size, 4, (uint8_t)i);
    }
    double least[4] = {0};
    for (int pass = 0; pass < PASSES; pass++) {
        double began = now();
        for (size_t i = 0; i < COUNT; i++)
            sealed[i] = wireguard_write(a, packets + i * STRIDE, (uint32_t)size,
                                        messages + i * STRIDE, STRIDE).size;
        best(&least[0], began);
        began = now();
        size_t got = 0;
        for (size_t i = 0; i < COUNT; i++)
            got += wireguard_read(b, messages + i * STRIDE, (uint32_t)sealed[i],
                                  back + i * STRIDE, STRIDE).size;
        best(&least[1], began);
        CHECK(got == COUNT * size);
#ifdef BATCH
        static struct wireguard_result results[COUNT];
        began = now();
        struct wireguard_result result =
            taupe_write_batch(a, packets, STRIDE, sizes, COUNT, messages, STRIDE, sealed);
        best(&least[2], began);
        CHECK(result.size == COUNT);
        began = now();
        result = taupe_read_batch(b, NULL, messages, STRIDE, sealed, COUNT, results);
        best(&least[3], began);
        CHECK(result.op == WIREGUARD_DONE && result.size == COUNT);
#endif
    }
    CHECK(!memcmp(packets, back, size));
    printf("%zu %.1f %.1f %.1f %.1f\n", size, least[0], least[1], least[2], least[3]);
    return 0;
}
