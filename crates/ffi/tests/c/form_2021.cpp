// The form of 2021 in C++: each form of new_tunnel, beside taupe.hpp, which uses today's form. A
// handshake and a packet between tunnels of both forms.

#define TAUPE_BORINGTUN_2021
#include "taupe.hpp"

#include <string>

#include "check.h"

namespace {

int lines;

void log_printer(const char *line) {
    CHECK(std::string(line).rfind("[Info] session ", 0) == 0);
    lines++;
}

std::string text(const char *key) {
    std::string copy(key);
    x25519_key_to_str_free(key);
    return copy;
}

}  // namespace

int main() {
    x25519_key a_key = x25519_secret_key(), b_key = x25519_secret_key();
    std::string a = text(x25519_key_to_base64(a_key)), b = text(x25519_key_to_hex(b_key));
    std::string a_public = text(x25519_key_to_hex(x25519_public_key(a_key)));
    std::string b_public = text(x25519_key_to_base64(x25519_public_key(b_key)));
    const char *psk = "FpCyhws9cxwWoV4xELtfJvjJN+zQVRPISllRWgeopVE=";

    wireguard_tunnel *tunnels[] = {
        new_tunnel(a.c_str(), b_public.c_str(), log_printer, log_level::INFO),
        new_tunnel(a.c_str(), b_public.c_str(), psk, log_printer, NONE),
        new_tunnel(a.c_str(), b_public.c_str(), 25, 1, nullptr, DEB),
        new_tunnel(a.c_str(), b_public.c_str(), nullptr, 25, 1, log_printer, ERR),
    };
    for (wireguard_tunnel *tunnel : tunnels) CHECK(tunnel != nullptr);

    taupe::Tunnel server(b, a_public);
    std::string answer, arrived;
    server.on_network([&](taupe::Bytes datagram) {
        answer.assign(reinterpret_cast<const char *>(datagram.data), datagram.size);
    });
    server.on_packet([&](taupe::Bytes packet) {
        arrived.assign(reinterpret_cast<const char *>(packet.data), packet.size);
    });
    uint8_t packet[60], dst[2048];
    make_packet(packet, sizeof packet, 4, 1);
    wireguard_result result = wireguard_write(tunnels[0], packet, sizeof packet, dst, sizeof dst);
    CHECK(result.op == WRITE_TO_NETWORK && !server.read({dst, result.size}));
    result = wireguard_read(tunnels[0], reinterpret_cast<const uint8_t *>(answer.data()),
                            uint32_t(answer.size()), dst, sizeof dst);
    for (; result.op == WRITE_TO_NETWORK;
         result = wireguard_read(tunnels[0], nullptr, 0, dst, sizeof dst))
        CHECK(!server.read({dst, result.size}));
    CHECK(arrived == std::string(reinterpret_cast<const char *>(packet), sizeof packet));
    CHECK(lines == 1);

    // These errors have the numbers of 2021, those of taupe.hpp today's.
    dst[0] = 9;
    result = wireguard_read(tunnels[3], dst, 40, dst, sizeof dst);
    CHECK(result.op == WIREGUARD_ERROR && result.size == 11);
    uint8_t odd[40] = {9};
    CHECK(server.read({odd, sizeof odd}) == size_t(TAUPE_INVALID_PACKET));
    for (wireguard_tunnel *tunnel : tunnels) tunnel_free(tunnel);
    return 0;
}
