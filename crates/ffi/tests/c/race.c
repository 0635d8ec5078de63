// A misuse of the library: two threads use one destination at the same time. ThreadSanitizer must
// report it, which proves that it sees the library's memory accesses.

#include "taupe.h"

#include <pthread.h>

#include "check.h"

static struct wireguard_tunnel *tunnel;
static uint8_t dst[2048];

static void *seal(void *unused) {
    uint8_t packet[100];
    make_packet(packet, sizeof packet, 4, 1);
    for (int i = 0; i < 1000; i++) wireguard_write(tunnel, packet, sizeof packet, dst, sizeof dst);
    return unused;
}

int main(void) {
    struct x25519_key a_key = x25519_secret_key(), b_key = x25519_secret_key();
    const char *texts[] = {
        x25519_key_to_hex(a_key), x25519_key_to_hex(x25519_public_key(b_key)),
        x25519_key_to_hex(b_key), x25519_key_to_hex(x25519_public_key(a_key)),
    };
    tunnel = new_tunnel(texts[0], texts[1], NULL, 0, 1);
    struct wireguard_tunnel *peer = new_tunnel(texts[2], texts[3], NULL, 0, 2);
    CHECK(tunnel && peer);
    for (int i = 0; i < 4; i++) x25519_key_to_str_free(texts[i]);
    uint8_t response[148];
    CHECK(wireguard_force_handshake(tunnel, dst, sizeof dst).size == 148);
    CHECK(wireguard_read(peer, dst, 148, response, sizeof response).size == 92);
    CHECK(wireguard_read(tunnel, response, 92, dst, sizeof dst).size == 32);

    pthread_t threads[2];
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, seal, NULL) == 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    tunnel_free(tunnel);
    tunnel_free(peer);
    return 0;
}
