// Taupe's tunnels in C++17: movable objects that pass datagrams and packets to lambdas.
//
//     taupe::Tunnel tunnel(private_key, public_key);
//     tunnel.on_network([&](taupe::Bytes datagram) { socket.send(datagram); });
//     tunnel.on_packet([&](taupe::Bytes packet) { tap.write(packet); });
//     tunnel.write(packet);      // an IP packet for the peer
//     tunnel.read(datagram);     // a datagram from the peer
//     poll(…, tunnel.timeout()); tunnel.tick();
//
// Any number of threads may call one tunnel. The calling thread runs the lambdas. Set them before
// the first call. If a lambda throws, the call throws.
//
// SPDX-License-Identifier: MIT OR Apache-2.0

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "taupe.h"

namespace taupe {

// A view of bytes that is valid during the call.
struct Bytes {
    const uint8_t *data = nullptr;
    size_t size = 0;
};

// A key is malformed, or the peer's key is this side's own.
class BadKey : public std::invalid_argument {
  public:
    BadKey() : std::invalid_argument("a key is malformed, or the peer's is this side's own") {}
};

class Tunnel {
  public:
    using Sink = std::function<void(Bytes)>;

    // Keys are in base64 or hexadecimal. "" means no preshared key.
    Tunnel(const std::string &private_key, const std::string &public_key,
           const std::string &preshared_key = "", uint16_t keep_alive = 0, uint32_t index = 0)
        : tunnel_((new_tunnel)(private_key.c_str(), public_key.c_str(),
                             preshared_key.empty() ? nullptr : preshared_key.c_str(), keep_alive,
                             index)) {
        if (!tunnel_) throw BadKey();
    }

    // Sets the sink for datagrams to the peer, in the order in which they must be sent.
    void on_network(Sink sink) { network_ = std::move(sink); }

    // Sets the sink for IP packets from the peer. The sink must check whether the peer may use the
    // packet's source address.
    void on_packet(Sink sink) { packet_ = std::move(sink); }

    // Sends an IP packet to the peer. Returns the error, if there is one.
    std::optional<size_t> write(Bytes packet) {
        std::vector<uint8_t> &dst = buffer(packet.size);
        return deliver(wireguard_write(tunnel_.get(), packet.data, size(packet.size), dst.data(),
                                       size(dst.size())),
                       dst);
    }

    // Handles a datagram from the peer. `from` is its source address, if that is known.
    std::optional<size_t> read(Bytes datagram, const taupe_address *from = nullptr) {
        std::vector<uint8_t> &dst = buffer(datagram.size);
        return deliver(taupe_read_from(tunnel_.get(), from, datagram.data, size(datagram.size),
                                       dst.data(), size(dst.size())),
                       dst);
    }

    // Runs the timers.
    std::optional<size_t> tick() {
        std::vector<uint8_t> &dst = buffer(0);
        return deliver(wireguard_tick(tunnel_.get(), dst.data(), size(dst.size())), dst);
    }

    // Starts a handshake.
    std::optional<size_t> force_handshake() {
        std::vector<uint8_t> &dst = buffer(0);
        return deliver(wireguard_force_handshake(tunnel_.get(), dst.data(), size(dst.size())),
                       dst);
    }

    // Returns the milliseconds until tick() has something to do, for poll(2); -1 means never.
    int timeout() const { return taupe_next_timeout(tunnel_.get()); }

    struct stats stats() const { return wireguard_stats(tunnel_.get()); }
    taupe_counters counters() const { return taupe_get_counters(tunnel_.get()); }

    // Returns the tunnel for other functions of taupe.h. This object still owns it.
    wireguard_tunnel *get() const { return tunnel_.get(); }

  private:
    struct Free {
        void operator()(wireguard_tunnel *tunnel) const { tunnel_free(tunnel); }
    };

    static uint32_t size(size_t bytes) {
        if (bytes > UINT32_MAX) throw std::length_error("more than any packet has");
        return static_cast<uint32_t>(bytes);
    }

    // Returns the thread's buffer. `give` replaces it while a sink runs.
    static std::vector<uint8_t> &buffer(size_t input) {
        static thread_local std::vector<uint8_t> dst;
        size_t least = MAX_WIREGUARD_PACKET_SIZE;
        if (dst.size() < least || dst.size() < input + TAUPE_OVERHEAD)
            dst.resize(input + TAUPE_OVERHEAD > least ? input + TAUPE_OVERHEAD : least);
        return dst;
    }

    std::optional<size_t> deliver(wireguard_result result, std::vector<uint8_t> &dst) {
        while (result.op == WRITE_TO_NETWORK) {
            give(network_, dst, result.size);
            result = wireguard_read(tunnel_.get(), nullptr, 0, dst.data(), size(dst.size()));
        }
        if (result.op == WIREGUARD_ERROR) return result.size;
        if (result.op != WIREGUARD_DONE) give(packet_, dst, result.size);
        return std::nullopt;
    }

    // Calls a sink. The sink may call tunnels, so they get another buffer meanwhile.
    static void give(const Sink &sink, std::vector<uint8_t> &dst, size_t bytes) {
        if (!sink) return;
        std::vector<uint8_t> own;
        own.swap(dst);
        try {
            sink(Bytes{own.data(), bytes});
        } catch (...) {
            dst.swap(own);
            throw;
        }
        dst.swap(own);
    }

    std::unique_ptr<wireguard_tunnel, Free> tunnel_;
    Sink network_, packet_;
};

}  // namespace taupe
