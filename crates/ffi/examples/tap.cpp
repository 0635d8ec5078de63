// Two tunnels in one process, each with a tap that records packets: one lambda for packets that
// leave and one for packets that arrive, as in a program that intercepts the packets of
// applications.
//
//     c++ -std=c++17 tap.cpp $(pkg-config --cflags --libs taupe) -o tap && ./tap

#include <taupe.hpp>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>
#include <vector>

namespace {

using Packet = std::vector<uint8_t>;

Packet owned(taupe::Bytes bytes) { return Packet(bytes.data, bytes.data + bytes.size); }

std::string text(const char *key) {
    std::string copy(key);
    x25519_key_to_str_free(key);
    return copy;
}

// One side: its tunnel, the datagrams on their way to it, and the packets that its tap recorded.
struct Side {
    taupe::Tunnel tunnel;
    std::deque<Packet> arriving;
    std::vector<Packet> outgoing, incoming;

    Side(const std::string &own, const std::string &peer) : tunnel(own, peer) {}

    // An application has sent a packet. The tap records it and the tunnel sends it.
    void intercept(const Packet &packet) {
        outgoing.push_back(packet);
        if (auto error = tunnel.write({packet.data(), packet.size()}))
            std::printf("write: %s\n", taupe_error_to_string(*error));
    }
};

// Returns an IPv4 packet with UDP, from one documentation address to another.
Packet packet(const std::string &said) {
    size_t size = 28 + said.size();
    Packet packet = {0x45, 0, uint8_t(size >> 8), uint8_t(size), 0, 0, 0x40, 0, 64, 17, 0, 0,
                     192, 0, 2, 1, 198, 51, 100, 1, 0x12, 0x34, 0, 7, 0, uint8_t(8 + said.size()),
                     0, 0};
    packet.insert(packet.end(), said.begin(), said.end());
    return packet;
}

}  // namespace

int main() {
    x25519_key a_key = x25519_secret_key(), b_key = x25519_secret_key();
    Side a(text(x25519_key_to_base64(a_key)), text(x25519_key_to_base64(x25519_public_key(b_key))));
    Side b(text(x25519_key_to_base64(b_key)), text(x25519_key_to_base64(x25519_public_key(a_key))));

    // The two lambdas of each side. The network is the queue of the other side.
    a.tunnel.on_network([&](taupe::Bytes datagram) { b.arriving.push_back(owned(datagram)); });
    b.tunnel.on_network([&](taupe::Bytes datagram) { a.arriving.push_back(owned(datagram)); });
    a.tunnel.on_packet([&](taupe::Bytes packet) { a.incoming.push_back(owned(packet)); });
    b.tunnel.on_packet([&](taupe::Bytes packet) {
        b.incoming.push_back(owned(packet));
        b.intercept(owned(packet));  // an application here sends it back
    });

    for (int i = 0; i < 10; i++) a.intercept(packet("packet " + std::to_string(i)));
    while (!a.arriving.empty() || !b.arriving.empty()) {
        for (Side *side : {&a, &b}) {
            if (side->arriving.empty()) continue;
            Packet datagram = std::move(side->arriving.front());
            side->arriving.pop_front();
            if (auto error = side->tunnel.read({datagram.data(), datagram.size()}))
                std::printf("read: %s\n", taupe_error_to_string(*error));
        }
    }

    std::printf("recorded: %zu out, %zu in; there: %zu in, %zu out\n", a.outgoing.size(),
                a.incoming.size(), b.incoming.size(), b.outgoing.size());
    bool same = a.incoming == a.outgoing && b.incoming == a.outgoing && a.outgoing.size() == 10;
    try {
        taupe::Tunnel("no key", "no key");
        same = false;
    } catch (const taupe::BadKey &) {
    }
    return same ? EXIT_SUCCESS : EXIT_FAILURE;
}
