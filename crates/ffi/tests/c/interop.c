// One end of a tunnel over the UDP socket that is its standard input: `initiate` writes numbered
// packets until each has come back, `respond` sends them back. It uses only boringtun's published
// functions, and is linked with boringtun's library or Taupe's.
//
// interop initiate|respond PRIVATE PUBLIC PSK|- LOSS-PERCENT SEED

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "published.h"

enum { PACKETS = 300, WINDOW = 16 };

static struct wireguard_tunnel *tunnel;
static uint8_t dst[MAX_WIREGUARD_PACKET_SIZE];
static uint32_t state;
static unsigned loss;
static int handshakes, sends, initiates;

static unsigned random_percent(void) {
    state = state * 1664525 + 1013904223;
    return (state >> 16) % 100;
}

static void send_out(size_t size) {
    handshakes += dst[0] == 1;
    // With loss, the first initiation is always lost.
    if (loss && initiates && sends++ == 0) return;
    if (random_percent() >= loss && send(0, dst, size, 0) < 0) perror("send");
}

// Sends the datagram of a call, and all queued ones.
static struct wireguard_result flush(struct wireguard_result result) {
    struct wireguard_result first = result;
    while (result.op == WRITE_TO_NETWORK) {
        send_out(result.size);
        result = wireguard_read(tunnel, NULL, 0, dst, sizeof dst);
    }
    return first;
}

static size_t size_of(unsigned number) { return 64 + number * 53 % 1300; }

static void write_packet(unsigned number, uint8_t *packet) {
    make_packet(packet, size_of(number), number % 2 ? 4 : 6, (uint8_t)number);
    packet[48] = (uint8_t)number;
    packet[49] = (uint8_t)(number >> 8);
}

int main(int argc, char **argv) {
    CHECK(argc == 7);
    initiates = !strcmp(argv[1], "initiate");
    tunnel = new_tunnel(argv[2], argv[3], strcmp(argv[4], "-") ? argv[4] : NULL, 0, 42);
    CHECK(tunnel);
    loss = (unsigned)atoi(argv[5]);
    state = (uint32_t)atoi(argv[6]);

    static uint8_t back[PACKETS];
    static unsigned wait[PACKETS];
    unsigned got = 0, strange = 0;
    uint8_t datagram[2048], packet[2048];
    while (got < PACKETS) {
        // Write each packet again after 10 rounds, until it has come back.
        for (unsigned i = 0, open = 0; initiates && i < PACKETS && open < WINDOW; i++) {
            if (back[i]) continue;
            open++;
            if (wait[i]-- > 0) continue;
            wait[i] = 10;
            write_packet(i, packet);
            flush(wireguard_write(tunnel, packet, (uint32_t)size_of(i), dst, sizeof dst));
        }
        struct pollfd ready = {0, POLLIN, 0};
        poll(&ready, 1, 20);
        ssize_t size;
        while ((size = recv(0, datagram, sizeof datagram, MSG_DONTWAIT)) > 0) {
            struct wireguard_result result = flush(
                wireguard_read(tunnel, datagram, (uint32_t)size, dst, sizeof dst));
            if (result.op != WRITE_TO_TUNNEL_IPV4 && result.op != WRITE_TO_TUNNEL_IPV6) continue;
            CHECK(result.size >= 64 && result.size < 2048);
            memcpy(packet, dst, result.size);
            if (!initiates) {
                flush(wireguard_write(tunnel, packet, (uint32_t)result.size, dst, sizeof dst));
                continue;
            }
            unsigned number = packet[48] | (unsigned)packet[49] << 8;
            CHECK(number < PACKETS && result.size == size_of(number));
            uint8_t wanted[2048];
            write_packet(number, wanted);
            CHECK(!memcmp(wanted, packet, result.size));
            strange += back[number];
            got += !back[number];
            back[number] = 1;
        }
        flush(wireguard_tick(tunnel, dst, sizeof dst));
    }
    struct stats stats = wireguard_stats(tunnel);
    CHECK(stats.time_since_last_handshake >= 0 && stats.estimated_rtt >= 0);
    CHECK(loss ? stats.estimated_loss > 0.02F && stats.estimated_loss < 0.6F
               : stats.estimated_loss == 0.0F);
    CHECK(handshakes >= (loss ? 2 : 1));
    printf("%u packets came back, %u of them twice; %d initiations; loss %.2f, rtt %d ms\n", got,
           strange, handshakes, (double)stats.estimated_loss, stats.estimated_rtt);
    tunnel_free(tunnel);
    return 0;
}
