// A complete client: it connects a local UDP socket to a target behind the peer. It wraps local
// datagrams in IPv4 and UDP and sends them through the tunnel, and unwraps the answers. It sleeps
// until something happens, and supports cookies.
//
//     cc client.c $(pkg-config --cflags --libs taupe) -o client
//     client PRIVATE PEER-PUBLIC PEER-IP PEER-PORT OWN-TUNNEL-IP TARGET-IP TARGET-PORT [LOCAL-PORT]
//
// It listens at 127.0.0.1:LOCAL-PORT, prints that address, and sends datagrams from there to
// TARGET-IP:TARGET-PORT at the other end. Answers go to the last local sender. IPv4 only. Write
// "stop" to its standard input, or close it, to end the client.

#include <arpa/inet.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <taupe.h>

enum { HEADERS = 20 + 8, LARGEST = 1420 };

static struct wireguard_tunnel *tunnel;
static int network;
static struct in_addr own_ip, target_ip;
static uint16_t own_port = 40000, target_port;
static struct sockaddr_in last_sender;
static uint8_t dst[MAX_WIREGUARD_PACKET_SIZE];

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void put16(uint8_t *at, unsigned value) {
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static unsigned get16(const uint8_t *at) { return (unsigned)at[0] << 8 | at[1]; }

// Returns the checksum of an IPv4 header (RFC 1071).
static unsigned checksum(const uint8_t *bytes, size_t size) {
    unsigned sum = 0;
    for (size_t i = 0; i < size; i += 2) sum += get16(bytes + i);
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return ~sum & 0xffff;
}

// Writes IPv4 and UDP headers before the `size` bytes at HEADERS. The UDP checksum may be zero
// (RFC 768).
static size_t wrap(uint8_t *packet, size_t size) {
    size_t total = HEADERS + size;
    memset(packet, 0, HEADERS);
    packet[0] = 0x45;
    put16(packet + 2, (unsigned)total);
    packet[8] = 64;
    packet[9] = IPPROTO_UDP;
    memcpy(packet + 12, &own_ip, 4);
    memcpy(packet + 16, &target_ip, 4);
    put16(packet + 10, checksum(packet, 20));
    put16(packet + 20, own_port);
    put16(packet + 22, target_port);
    put16(packet + 24, (unsigned)(8 + size));
    return total;
}

// Returns the payload of a packet from the target to this client, or NULL for other packets. The
// tunnel authenticates the peer, but not the packet's source address: this function checks it.
static const uint8_t *unwrap(const uint8_t *packet, size_t size, size_t *payload) {
    size_t header = (size_t)(packet[0] & 15) * 4;
    if (size < header + 8 || packet[9] != IPPROTO_UDP) return NULL;
    if (memcmp(packet + 12, &target_ip, 4) || memcmp(packet + 16, &own_ip, 4)) return NULL;
    const uint8_t *udp = packet + header;
    unsigned length = get16(udp + 4);
    if (get16(udp) != target_port || get16(udp + 2) != own_port) return NULL;
    if (length < 8 || header + length > size) return NULL;
    *payload = length - 8;
    return udp + 8;
}

// Carries out the result of a call, and then sends all queued datagrams.
static void act(int local, struct wireguard_result result) {
    for (;; result = wireguard_read(tunnel, NULL, 0, dst, sizeof dst)) {
        if (result.op == WRITE_TO_NETWORK) {
            if (send(network, dst, result.size, 0) < 0) perror("sending to the peer");
            continue;
        }
        if (result.op == WRITE_TO_TUNNEL_IPV4) {
            size_t size;
            const uint8_t *payload = unwrap(dst, result.size, &size);
            if (payload && last_sender.sin_port &&
                sendto(local, payload, size, 0, (struct sockaddr *)&last_sender,
                       sizeof last_sender) < 0)
                perror("sending to the program");
        } else if (result.op == WIREGUARD_ERROR) {
            fprintf(stderr, "%s: %s\n", taupe_error_name(result.size),
                    taupe_error_to_string(result.size));
        }
        return;
    }
}

static struct sockaddr_in address(const char *ip, const char *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    if (inet_pton(AF_INET, ip, &address.sin_addr) != 1) {
        fprintf(stderr, "no IPv4 address: %s\n", ip);
        exit(2);
    }
    return address;
}

int main(int argc, char **argv) {
    if (argc != 8 && argc != 9) {
        fprintf(stderr, "client PRIVATE PEER-PUBLIC PEER-IP PEER-PORT OWN-TUNNEL-IP TARGET-IP "
                        "TARGET-PORT [LOCAL-PORT]\n");
        return 2;
    }
    tunnel = new_tunnel(argv[1], argv[2], NULL, 25, 0);
    if (!tunnel) {
        fprintf(stderr, "a key is malformed\n");
        return 2;
    }
    memset(argv[1], 'x', strlen(argv[1]));  // hides the key from process lists
    struct sockaddr_in peer = address(argv[3], argv[4]);
    own_ip = address(argv[5], "0").sin_addr;
    struct sockaddr_in target = address(argv[6], argv[7]);
    target_ip = target.sin_addr;
    target_port = ntohs(target.sin_port);

    network = socket(AF_INET, SOCK_DGRAM, 0);
    if (network < 0 || connect(network, (struct sockaddr *)&peer, sizeof peer)) fail("peer");
    int local = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in here = address("127.0.0.1", argc == 9 ? argv[8] : "0");
    socklen_t length = sizeof here;
    if (local < 0 || bind(local, (struct sockaddr *)&here, sizeof here) ||
        getsockname(local, (struct sockaddr *)&here, &length))
        fail("local port");
    printf("listening at 127.0.0.1:%u\n", ntohs(here.sin_port));
    fflush(stdout);

    // The source of the peer's datagrams. The socket is connected, so there is only one.
    struct taupe_address from = {.version = 4, .port = ntohs(peer.sin_port)};
    memcpy(from.ip, &peer.sin_addr, 4);
    static uint8_t buffer[MAX_WIREGUARD_PACKET_SIZE];
    for (;;) {
        struct pollfd ready[] = {{network, POLLIN, 0}, {local, POLLIN, 0}, {0, POLLIN, 0}};
        if (poll(ready, 3, taupe_next_timeout(tunnel)) < 0) fail("poll");
        if (ready[0].revents) {
            ssize_t size = recv(network, buffer, sizeof buffer, 0);
            // An ICMP error also ends up here: the peer is not reachable at the moment.
            if (size >= 0)
                act(local, taupe_read_from(tunnel, &from, buffer, (uint32_t)size, dst, sizeof dst));
        }
        if (ready[1].revents) {
            length = sizeof last_sender;
            ssize_t size = recvfrom(local, buffer + HEADERS, LARGEST - HEADERS, 0,
                                    (struct sockaddr *)&last_sender, &length);
            if (size >= 0) {
                size_t total = wrap(buffer, (size_t)size);
                act(local, wireguard_write(tunnel, buffer, (uint32_t)total, dst, sizeof dst));
            }
        }
        if (ready[2].revents) break;
        act(local, wireguard_tick(tunnel, dst, sizeof dst));
    }
    struct stats stats = wireguard_stats(tunnel);
    printf("%zu bytes written, %zu read, ", stats.tx_bytes, stats.rx_bytes);
    if (stats.estimated_rtt < 0) {
        puts("no round trip yet");
    } else {
        printf("round trip %d ms\n", stats.estimated_rtt);
    }
    tunnel_free(tunnel);
    return 0;
}
