// A program for boringtun: two tunnels, a handshake, packets in both directions, and errors. It
// includes boringtun's published signatures, not Taupe's header.

#ifdef WITH_COMPATIBLE_HEADER
#include "wireguard_ffi.h"
#else
#include "published.h"
#endif

#include "check.h"

#include <unistd.h>

static uint8_t out[MAX_WIREGUARD_PACKET_SIZE], in[MAX_WIREGUARD_PACKET_SIZE];

static uint32_t word(const uint8_t *at) {
    return at[0] | at[1] << 8 | at[2] << 16 | (uint32_t)at[3] << 24;
}

static int is(struct wireguard_result result, enum result_type op, size_t size) {
    if (result.op == op && result.size == size) return 1;
    fprintf(stderr, "op %d, size %zu\n", result.op, result.size);
    return 0;
}

static struct wireguard_tunnel *make(struct x25519_key private_key, struct x25519_key peer,
                                     const char *psk, uint32_t index) {
    const char *own = x25519_key_to_base64(private_key), *other = x25519_key_to_hex(peer);
    CHECK(strlen(own) == 44 && strlen(other) == 64);
    struct wireguard_tunnel *tunnel = new_tunnel(own, other, psk, 0, index);
    x25519_key_to_str_free(own);
    x25519_key_to_str_free(other);
    return tunnel;
}

int main(void) {
    struct x25519_key a_key = x25519_secret_key(), b_key = x25519_secret_key();
    CHECK(memcmp(&a_key, &b_key, 32) != 0);
    struct x25519_key a_public = x25519_public_key(a_key), b_public = x25519_public_key(b_key);
    // RFC 7748, section 6.1.
    const uint8_t alice[32] = {0x77, 0x07, 0x6d, 0x0a, 0x73, 0x18, 0xa5, 0x7d, 0x3c, 0x16, 0xc1,
                               0x72, 0x51, 0xb2, 0x66, 0x45, 0xdf, 0x4c, 0x2f, 0x87, 0xeb, 0xc0,
                               0x99, 0x2a, 0xb1, 0x77, 0xfb, 0xa5, 0x1d, 0xb9, 0x2c, 0x2a};
    struct x25519_key known;
    memcpy(known.key, alice, 32);
    const char *text = x25519_key_to_hex(x25519_public_key(known));
    CHECK(!strcmp(text, "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"));
    x25519_key_to_str_free(text);

    const char *psk = "FpCyhws9cxwWoV4xELtfJvjJN+zQVRPISllRWgeopVE=";
    CHECK(check_base64_encoded_x25519_key(psk) == 1);
    CHECK(check_base64_encoded_x25519_key("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=") == 0);
    CHECK(check_base64_encoded_x25519_key("short") == 0);
    CHECK(check_base64_encoded_x25519_key(NULL) == 0);

    struct wireguard_tunnel *a = make(a_key, b_public, psk, 0xff000001);
    struct wireguard_tunnel *b = make(b_key, a_public, psk, 0xabcdef);
    CHECK(a && b);
    struct stats stats = wireguard_stats(a);
    CHECK(stats.time_since_last_handshake == -1 && stats.estimated_rtt == -1);
    CHECK(is(wireguard_tick(a, out, sizeof out), WIREGUARD_DONE, 0));
    CHECK(is(wireguard_read(a, NULL, 0, out, sizeof out), WIREGUARD_DONE, 0));

    // Packets written before there is a session are queued. The first one starts a handshake.
    uint8_t p4[100], p6[1337];
    make_packet(p4, sizeof p4, 4, 1);
    make_packet(p6, sizeof p6, 6, 2);
    uint8_t initiation[148], response[92], keepalive[32];
    CHECK(is(wireguard_write(a, p4, sizeof p4, initiation, 147), WIREGUARD_ERROR, 0));
    CHECK(is(wireguard_write(a, p4, sizeof p4, initiation, 148), WRITE_TO_NETWORK, 148));
    CHECK(word(initiation) == 1 && word(initiation + 4) >> 8 == 1);
    CHECK(is(wireguard_write(a, p6, sizeof p6, out, sizeof out), WIREGUARD_DONE, 0));

    uint8_t forged[148];
    memcpy(forged, initiation, 148);
    forged[140] ^= 1;  // mac2 is zeros, and not looked at
    forged[116] ^= 1;  // mac1
    CHECK(is(wireguard_read(b, forged, 148, out, sizeof out), WIREGUARD_ERROR, 8));
    CHECK(is(wireguard_read(b, initiation, 148, out, 91), WIREGUARD_ERROR, 0));
    CHECK(is(wireguard_read(b, initiation, 148, response, 92), WRITE_TO_NETWORK, 92));
    CHECK(word(response) == 2 && word(response + 4) >> 8 == 0xabcdef);
    CHECK(word(response + 8) == word(initiation + 4));
    CHECK(is(wireguard_read(b, NULL, 0, out, sizeof out), WIREGUARD_DONE, 0));
    CHECK(is(wireguard_read(b, initiation, 148, out, sizeof out), WIREGUARD_ERROR, 7));

    // After the response comes a keepalive, then the queued packets, in order.
    CHECK(is(wireguard_read(a, response, 92, keepalive, 32), WRITE_TO_NETWORK, 32));
    CHECK(is(wireguard_read(a, response, 92, out, sizeof out), WIREGUARD_ERROR, 2));
    CHECK(is(wireguard_read(b, keepalive, 32, in, sizeof in), WIREGUARD_DONE, 0));
    struct wireguard_result sent = wireguard_read(a, NULL, 0, out, sizeof out);
    CHECK(sent.op == WRITE_TO_NETWORK && sent.size >= sizeof p4 + 32 && word(out) == 4);
    CHECK(is(wireguard_read(b, out, (uint32_t)sent.size, in, sizeof in), WRITE_TO_TUNNEL_IPV4,
             sizeof p4));
    CHECK(!memcmp(in, p4, sizeof p4));
    sent = wireguard_read(a, NULL, 0, out, sizeof out);
    CHECK(sent.op == WRITE_TO_NETWORK);
    CHECK(is(wireguard_read(b, out, (uint32_t)sent.size, in, sizeof in), WRITE_TO_TUNNEL_IPV6,
             sizeof p6));
    CHECK(!memcmp(in, p6, sizeof p6));
    CHECK(is(wireguard_read(a, NULL, 0, out, sizeof out), WIREGUARD_DONE, 0));

    // With a session: packets of many lengths, in buffers of the least size.
    for (uint32_t size = 20; size < 2000; size += 13) {
        uint8_t *packet = malloc(size), *message = malloc(size + 32);
        make_packet(packet, size, 4, (uint8_t)size);
        struct wireguard_tunnel *from = size & 1 ? a : b, *to = size & 1 ? b : a;
        CHECK(is(wireguard_write(from, packet, size, message, size + 31), WIREGUARD_ERROR, 0));
        sent = wireguard_write(from, packet, size, message, size + 32);
        CHECK(is(sent, WRITE_TO_NETWORK, size + 32));
        uint8_t *opened = malloc(size);
        CHECK(is(wireguard_read(to, message, size + 32, opened, size - 1), WIREGUARD_ERROR, 0));
        CHECK(is(wireguard_read(to, message, size + 32, opened, size), WRITE_TO_TUNNEL_IPV4, size));
        CHECK(!memcmp(packet, opened, size));
        free(packet), free(message), free(opened);
    }

    // A message that cannot be read gives the right error.
    make_packet(p4, sizeof p4, 4, 3);
    sent = wireguard_write(a, p4, sizeof p4, out, sizeof out);
    uint32_t size = (uint32_t)sent.size;
    out[20] ^= 1;
    CHECK(is(wireguard_read(b, out, size, in, sizeof in), WIREGUARD_ERROR, 9));
    out[20] ^= 1;
    CHECK(is(wireguard_read(b, out, size, in, sizeof in), WRITE_TO_TUNNEL_IPV4, sizeof p4));
    CHECK(is(wireguard_read(b, out, size, in, sizeof in), WIREGUARD_ERROR, 11));
    out[5] ^= 1;
    CHECK(is(wireguard_read(b, out, size, in, sizeof in), WIREGUARD_ERROR, 13));
    out[0] = 9;
    CHECK(is(wireguard_read(b, out, size, in, sizeof in), WIREGUARD_ERROR, 12));
    out[0] = 4;
    CHECK(is(wireguard_read(b, out, 31, in, sizeof in), WIREGUARD_ERROR, 12));
    const uint8_t nothing[24] = {0x05};
    sent = wireguard_write(a, nothing, 24, out, sizeof out);
    CHECK(is(wireguard_read(b, out, (uint32_t)sent.size, in, sizeof in), WIREGUARD_ERROR, 12));
    // Source and destination may be the same buffer.
    make_packet(out, 500, 4, 9);
    sent = wireguard_write(b, out, 500, out, sizeof out);
    CHECK(sent.op == WRITE_TO_NETWORK);
    make_packet(in, 500, 4, 9);
    CHECK(is(wireguard_read(a, out, (uint32_t)sent.size, out, sizeof out), WRITE_TO_TUNNEL_IPV4, 500));
    CHECK(!memcmp(in, out, 500));
    // A keepalive.
    CHECK(is(wireguard_write(b, NULL, 0, out, sizeof out), WRITE_TO_NETWORK, 32));
    CHECK(is(wireguard_read(a, out, 32, in, sizeof in), WIREGUARD_DONE, 0));

    stats = wireguard_stats(a);
    CHECK(stats.time_since_last_handshake >= 0 && stats.time_since_last_handshake < 60);
    CHECK(stats.tx_bytes > 1437 && stats.rx_bytes > 0);
    CHECK(stats.estimated_rtt >= 0 && wireguard_stats(b).estimated_rtt == -1);
    CHECK(stats.estimated_loss == 0.0F);
    for (int i = 0; i < 56; i++) CHECK(stats.reserved[i] == 0);

    // Handshakes can be forced repeatedly, and the previous session stays usable.
    CHECK(is(wireguard_force_handshake(a, initiation, 147), WIREGUARD_ERROR, 0));
    CHECK(is(wireguard_force_handshake(a, initiation, 148), WRITE_TO_NETWORK, 148));
    uint8_t second[148];
    CHECK(is(wireguard_force_handshake(a, second, 148), WRITE_TO_NETWORK, 148));
    CHECK(memcmp(initiation, second, 148) != 0);
    usleep(60000);  // of one peer 50 in a second are answered
    CHECK(is(wireguard_read(b, second, 148, response, 92), WRITE_TO_NETWORK, 92));
    sent = wireguard_write(b, p4, sizeof p4, out, sizeof out);
    CHECK(is(wireguard_read(a, out, (uint32_t)sent.size, in, sizeof in), WRITE_TO_TUNNEL_IPV4, sizeof p4));
    CHECK(is(wireguard_read(a, response, 92, keepalive, 32), WRITE_TO_NETWORK, 32));
    CHECK(is(wireguard_read(b, keepalive, 32, in, sizeof in), WIREGUARD_DONE, 0));
    sent = wireguard_write(b, p4, sizeof p4, out, sizeof out);
    CHECK(is(wireguard_read(a, out, (uint32_t)sent.size, in, sizeof in), WRITE_TO_TUNNEL_IPV4, sizeof p4));

    // Lose half of the messages.
    for (int i = 0; i < 2000; i++) {
        sent = wireguard_write(b, p4, sizeof p4, out, sizeof out);
        if (i % 2) wireguard_read(a, out, (uint32_t)sent.size, in, sizeof in);
    }
    stats = wireguard_stats(a);
    CHECK(stats.estimated_loss > 0.4F && stats.estimated_loss < 0.5F);

    // Another preshared key. Timestamps have a resolution of 17 ms, and the forced handshakes have
    // put those of `a` ahead of the clock.
    usleep(100000);
    struct wireguard_tunnel *c = make(a_key, b_public, NULL, 7);
    CHECK(is(wireguard_force_handshake(c, initiation, 148), WRITE_TO_NETWORK, 148));
    sent = wireguard_read(b, initiation, 148, response, 92);
    CHECK(is(sent, WRITE_TO_NETWORK, 92));
    CHECK(is(wireguard_read(c, response, 92, out, sizeof out), WIREGUARD_ERROR, 9));
    // Another peer.
    struct wireguard_tunnel *d = make(x25519_secret_key(), b_public, NULL, 7);
    CHECK(is(wireguard_force_handshake(d, initiation, 148), WRITE_TO_NETWORK, 148));
    CHECK(is(wireguard_read(b, initiation, 148, out, sizeof out), WIREGUARD_ERROR, 5));

    // At most 256 packets are queued.
    for (int i = 0; i < 300; i++) wireguard_write(d, p4, sizeof p4, out, sizeof out);
    tunnel_free(c);
    tunnel_free(d);

    // More handshakes in a second than are answered without a source address.
    int limited = 0;
    for (int i = 0; i < 30; i++) {
        struct wireguard_tunnel *e = make(x25519_secret_key(), b_public, NULL, 7);
        CHECK(is(wireguard_force_handshake(e, initiation, 148), WRITE_TO_NETWORK, 148));
        sent = wireguard_read(b, initiation, 148, out, sizeof out);
        CHECK(sent.op == WIREGUARD_ERROR && (sent.size == 5 || sent.size == 16));
        limited += sent.size == 16;
        tunnel_free(e);
    }
    CHECK(limited > 0);

    // Malformed keys make no tunnel.
    const char *good = "6Mz3c1mp0vkXUMAl7zGqeIZcYBl9S2h6wMPsN7VdzUo=";
    const char *bad[] = {
        "", "6Mz3c1mp0vkXUMAl7zGqeIZcYBl9S2h6wMPsN7VdzU==", "6Mz3c1mp0vkXUMAl7zGqeIZcYBl9S2h6wMPsN7VdzU!=",
        "6Mz3c1mp0vkXUMAl7zGqeIZcYBl9S2h6wMPsN7VdzUp=", "6Mz3c1mp0vkXUMAl7zGqeIZcYBl9S2h6wMPsN7Vdz U=",
        "zz07076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c",
        "\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3"
        "\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9",
        "6Mz3c1mp0vkXUMAl7zGqeIZcYBl9S2h6wMPsN7VdzUo=x",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(new_tunnel(bad[i], psk, NULL, 0, 0) == NULL);
        CHECK(new_tunnel(good, bad[i], NULL, 0, 0) == NULL);
        CHECK(new_tunnel(good, psk, bad[i], 0, 0) == NULL);
    }
    CHECK(new_tunnel(NULL, psk, NULL, 0, 0) == NULL && new_tunnel(good, NULL, NULL, 0, 0) == NULL);
    const char *zeros = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    CHECK(new_tunnel(zeros, psk, NULL, 0, 0) == NULL && new_tunnel(good, zeros, NULL, 0, 0) == NULL);
    struct wireguard_tunnel *unpadded = new_tunnel(
        good, "FpCyhws9cxwWoV4xELtfJvjJN+zQVRPISllRWgeopVE", zeros, 0, 0);
    CHECK(unpadded != NULL);
    tunnel_free(unpadded);

    // NULL is an error and never crashes.
    CHECK(wireguard_write(NULL, p4, 100, out, sizeof out).op == WIREGUARD_ERROR);
    CHECK(wireguard_read(NULL, p4, 100, out, sizeof out).op == WIREGUARD_ERROR);
    CHECK(wireguard_tick(NULL, out, sizeof out).op == WIREGUARD_ERROR);
    CHECK(wireguard_force_handshake(NULL, out, sizeof out).op == WIREGUARD_ERROR);
    CHECK(wireguard_stats(NULL).time_since_last_handshake == -1);
    CHECK(wireguard_write(a, NULL, 100, out, sizeof out).op == WIREGUARD_ERROR);
    CHECK(wireguard_write(a, p4, 100, NULL, 1000).op == WIREGUARD_ERROR);
    CHECK(is(wireguard_write(a, p4, 100, NULL, 0), WIREGUARD_ERROR, 0));
    CHECK(is(wireguard_force_handshake(a, NULL, 0), WIREGUARD_ERROR, 0));
    x25519_key_to_str_free(NULL);
    tunnel_free(NULL);
    CHECK(!set_logging_function(NULL));

    tunnel_free(a);
    tunnel_free(b);
    return 0;
}
