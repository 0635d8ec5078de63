// A client in the form of 2021: new_tunnel takes a log function and a level, tunnels are not const,
// errors have the numbers of that time. It takes the steps of such a client: new_tunnel,
// force_handshake, a thread that ticks, write, read, stats. Two queues replace the network.

#define TAUPE_BORINGTUN_2021
#include "taupe.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "check.h"

static atomic_int lines;

static void log_printer(const char *line) {
    CHECK(!strchr(line, '\n') && (!strncmp(line, "[Info] ", 7) || !strncmp(line, "[Debug] ", 8)));
    if (strstr(line, "session")) lines++;
}

// A queue of at most one datagram.
struct wire {
    pthread_mutex_t lock;
    uint8_t datagrams[64][2048];
    size_t sizes[64], first, last;
};

static struct wire to_server = {.lock = PTHREAD_MUTEX_INITIALIZER};
static struct wire to_client = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void put(struct wire *wire, const uint8_t *datagram, size_t size) {
    pthread_mutex_lock(&wire->lock);
    CHECK(wire->last - wire->first < 64 && size <= 2048);
    memcpy(wire->datagrams[wire->last % 64], datagram, size);
    wire->sizes[wire->last++ % 64] = size;
    pthread_mutex_unlock(&wire->lock);
}

static size_t take(struct wire *wire, uint8_t *datagram) {
    size_t size = 0;
    pthread_mutex_lock(&wire->lock);
    if (wire->first != wire->last) {
        size = wire->sizes[wire->first % 64];
        memcpy(datagram, wire->datagrams[wire->first++ % 64], size);
    }
    pthread_mutex_unlock(&wire->lock);
    return size;
}

static atomic_int stop;
static struct wireguard_tunnel *client, *server;

// Step 3: tick every 100 ms until the end.
static void *tick(void *unused) {
    uint8_t dst[MAX_WIREGUARD_PACKET_SIZE];
    while (!stop) {
        struct wireguard_result result = wireguard_tick(client, dst, sizeof dst);
        if (result.op == WRITE_TO_NETWORK) put(&to_server, dst, result.size);
        usleep(100000);
    }
    return unused;
}

// Reads the datagrams on their way to a tunnel, sends the answers and counts the packets.
static int receive(struct wireguard_tunnel *tunnel, struct wire *from, struct wire *to,
                   uint8_t *packet, size_t *length) {
    uint8_t datagram[2048], dst[MAX_WIREGUARD_PACKET_SIZE];
    size_t size;
    int packets = 0;
    while ((size = take(from, datagram)) > 0) {
        struct wireguard_result result =
            wireguard_read(tunnel, datagram, (uint32_t)size, dst, sizeof dst);
        if (result.op == WRITE_TO_TUNNEL_IPV4 || result.op == WRITE_TO_TUNNEL_IPV6) {
            memcpy(packet, dst, result.size);
            *length = result.size;
            packets++;
        }
        while (result.op == WRITE_TO_NETWORK) {
            put(to, dst, result.size);
            result = wireguard_read(tunnel, NULL, 0, dst, sizeof dst);
        }
        CHECK(result.op != WIREGUARD_ERROR);
    }
    return packets;
}

int main(void) {
    const char *psk = "FpCyhws9cxwWoV4xELtfJvjJN+zQVRPISllRWgeopVE=";
    struct x25519_key client_key = x25519_secret_key(), server_key = x25519_secret_key();
    const char *client_private = x25519_key_to_base64(client_key);
    const char *server_private = x25519_key_to_base64(server_key);
    const char *client_public = x25519_key_to_base64(x25519_public_key(client_key));
    const char *server_public = x25519_key_to_base64(x25519_public_key(server_key));

    // Step 1: a tunnel.
    client = new_tunnel(client_private, server_public, psk, 25, 1, log_printer, INFO);
    server = new_tunnel(server_private, client_public, psk, 0, 2, log_printer, DBG);
    CHECK(client && server);
    CHECK(new_tunnel(client_private, "nonsense", psk, 0, 0, log_printer, NONE) == NULL);
    // The earlier forms, without and with a preshared key.
    struct wireguard_tunnel *other = new_tunnel(client_private, server_public, log_printer, ALL);
    CHECK(other);
    tunnel_free(other);
    CHECK(new_tunnel(client_private, server_public, "bad", log_printer, ERR) == NULL);
    CHECK(new_tunnel(client_private, "bad", 25, 1, log_printer, TRACE) == NULL);

    // Step 2: a handshake.
    uint8_t dst[MAX_WIREGUARD_PACKET_SIZE], packet[2048], got[2048];
    size_t length = 0;
    struct wireguard_result result = wireguard_force_handshake(client, dst, sizeof dst);
    CHECK(result.op == WRITE_TO_NETWORK && result.size == 148);
    put(&to_server, dst, result.size);
    pthread_t ticker;
    CHECK(pthread_create(&ticker, NULL, tick, NULL) == 0);
    CHECK(receive(server, &to_server, &to_client, got, &length) == 0);
    CHECK(receive(client, &to_client, &to_server, got, &length) == 0);
    CHECK(receive(server, &to_server, &to_client, got, &length) == 0);

    // Steps 4 and 5: a request and its answer, 50 times.
    for (int i = 0; i < 50; i++) {
        size_t size = 40 + 20 * (size_t)i;
        make_packet(packet, size, i % 2 ? 6 : 4, (uint8_t)i);
        result = wireguard_write(client, packet, (uint32_t)size, dst, sizeof dst);
        CHECK(result.op == WRITE_TO_NETWORK);
        put(&to_server, dst, result.size);
        CHECK(receive(server, &to_server, &to_client, got, &length) == 1);
        CHECK(length == size && !memcmp(packet, got, size));
        result = wireguard_write(server, packet, (uint32_t)size, dst, sizeof dst);
        CHECK(result.op == WRITE_TO_NETWORK);
        put(&to_client, dst, result.size);
        CHECK(receive(client, &to_client, &to_server, got, &length) == 1);
        CHECK(length == size && !memcmp(packet, got, size));
    }
    // A duplicate and the errors after it have the numbers of 2021.
    make_packet(packet, 40, 6, 0);
    result = wireguard_write(server, packet, 40, dst, sizeof dst);
    uint8_t copy[2048];
    memcpy(copy, dst, result.size);
    uint32_t size = (uint32_t)result.size;
    CHECK(wireguard_read(client, copy, size, dst, sizeof dst).op != WIREGUARD_ERROR);
    result = wireguard_read(client, copy, size, dst, sizeof dst);
    CHECK(result.op == WIREGUARD_ERROR && result.size == 10);
    copy[5] ^= 1;
    result = wireguard_read(client, copy, size, dst, sizeof dst);
    CHECK(result.op == WIREGUARD_ERROR && result.size == 12);
    CHECK(taupe_error_from_0_5(12) == TAUPE_NO_CURRENT_SESSION);

    // Step 6: statistics: age, bytes, loss, round trip.
    struct stats stats = wireguard_stats(client);
    CHECK(stats.time_since_last_handshake >= 0 && stats.time_since_last_handshake < 60);
    size_t bytes = 0;
    for (size_t i = 0; i < 50; i++) bytes += 40 + 20 * i;
    CHECK(stats.tx_bytes == bytes && stats.rx_bytes >= bytes);
    CHECK(stats.estimated_loss >= 0.0F && stats.estimated_loss <= 0.1F);
    CHECK(stats.estimated_rtt >= 0 && stats.estimated_rtt < 60000);

    // Both tunnels have logged a session.
    CHECK(lines == 2);
    stop = 1;
    CHECK(pthread_join(ticker, NULL) == 0);
    tunnel_free(client);
    tunnel_free(server);
    const char *texts[] = {client_private, server_private, client_public, server_public};
    for (int i = 0; i < 4; i++) x25519_key_to_str_free(texts[i]);
    return 0;
}
