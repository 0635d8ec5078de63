// Taupe as a library: boringtun's C interface (versions 0.6 and 0.7), and Taupe's additions, whose
// names begin with taupe_. docs/library.md is the manual.
//
// scripts/header generates this file from crates/ffi/src; do not edit it.
//
// Threads: any thread may call any function at any time, also with the same tunnel. The exception
// is tunnel_free, which must be the last call with a tunnel.
//
// If TAUPE_BORINGTUN_2021 is defined before this file is included, new_tunnel and enum log_level
// are those of boringtun 0.2 to 0.4; see the end of the file.
//
// SPDX-License-Identifier: MIT OR Apache-2.0

#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Size of a buffer for any message or packet.
enum {
    MAX_WIREGUARD_PACKET_SIZE = 65536 + 64,
};

// Bytes of a message before its packet.
#define TAUPE_OFFSET 16

// Bytes of a message besides its packet and padding.
#define TAUPE_OVERHEAD 32

// Size of the seed of ML-KEM keys, in bytes.
#define TAUPE_PQ_SEED_SIZE 64

// Size of the longest ML-KEM public key, in bytes. That of TAUPE_HYBRID_512 has 800.
#define TAUPE_PQ_KEY_SIZE 1184

// With hybrid handshakes, the least size of `dst` in every place that names 148.
#define TAUPE_PQ_MESSAGE_SIZE 1232

// The operation that the caller has to carry out with `dst`.
enum result_type {
    // Nothing to do.
    WIREGUARD_DONE = 0,
    // Send the first `size` bytes to the peer, as one UDP datagram.
    WRITE_TO_NETWORK = 1,
    // The call has failed: `size` is a number of taupe_error.
    WIREGUARD_ERROR = 2,
    // The first `size` bytes are an IPv4 packet from the peer.
    WRITE_TO_TUNNEL_IPV4 = 4,
    // The first `size` bytes are an IPv6 packet from the peer.
    WRITE_TO_TUNNEL_IPV6 = 6,
};

// Reason for which a call has failed: the `size` of WIREGUARD_ERROR.
//
// 0 to 16 are boringtun's numbers since 0.6. Earlier versions had no DUPLICATE_COUNTER, and the
// numbers after it were one less; see taupe_set_numbering.
enum taupe_error {
    // `dst` is too small.
    TAUPE_DESTINATION_BUFFER_TOO_SMALL = 0,
    // boringtun's; Taupe does not return it.
    TAUPE_INCORRECT_PACKET_LENGTH = 1,
    // A response or cookie reply without a matching initiation.
    TAUPE_UNEXPECTED_PACKET = 2,
    // boringtun's; Taupe does not return it.
    TAUPE_WRONG_PACKET_TYPE = 3,
    // boringtun's; Taupe does not return it.
    TAUPE_WRONG_INDEX = 4,
    // An initiation of another peer.
    TAUPE_WRONG_KEY = 5,
    // boringtun's; Taupe does not return it.
    TAUPE_INVALID_TAI64N_TIMESTAMP = 6,
    // An initiation that has been received before, or the peer's clock has gone back.
    TAUPE_WRONG_TAI64N_TIMESTAMP = 7,
    // A handshake message for another public key.
    TAUPE_INVALID_MAC = 8,
    // A message that was changed, or sealed with other keys.
    TAUPE_INVALID_AEAD_TAG = 9,
    // A counter above the limit of a session.
    TAUPE_INVALID_COUNTER = 10,
    // A packet that has been received before, or that is behind the replay window.
    TAUPE_DUPLICATE_COUNTER = 11,
    // Not a WireGuard message, or a message that contains no IP packet.
    TAUPE_INVALID_PACKET = 12,
    // A packet for a session that has ended or never existed.
    TAUPE_NO_CURRENT_SESSION = 13,
    // boringtun's; Taupe does not return it.
    TAUPE_LOCK_FAILED = 14,
    // The peer does not answer, or the last session has been erased.
    TAUPE_CONNECTION_EXPIRED = 15,
    // Too many handshake messages; see taupe_read_from.
    TAUPE_UNDER_LOAD = 16,
    // An ordinary handshake although only hybrid ones are allowed.
    TAUPE_POST_QUANTUM_REQUIRED = 1000,
    // A NULL that is not allowed, or a number without meaning.
    TAUPE_INVALID_ARGUMENT = 1001,
    // A defect of the library, which it has contained. Free the tunnel.
    TAUPE_INTERNAL = 1002,
};

// Numbering of errors.
enum taupe_numbering {
    // As in boringtun 0.6 and later: the numbers of taupe_error.
    TAUPE_NUMBERING_0_6 = 0,
    // As in boringtun 0.3 to 0.5: DUPLICATE_COUNTER is 10, INVALID_PACKET 11,
    // NO_CURRENT_SESSION 12, LOCK_FAILED 13, CONNECTION_EXPIRED 14, UNDER_LOAD 15.
    TAUPE_NUMBERING_0_5 = 1,
};

// Level of a log line.
enum taupe_log_level {
    // A tunnel does not work.
    TAUPE_LOG_ERROR = 0,
    // A session begins or ends.
    TAUPE_LOG_INFO = 1,
    // Each handshake message.
    TAUPE_LOG_DEBUG = 2,
    // Each dropped packet.
    TAUPE_LOG_TRACE = 3,
};

// Suite of a handshake. Hybrid ones use X25519 and ML-KEM (docs/post-quantum.md).
enum taupe_suite {
    // X25519 alone.
    TAUPE_ORDINARY = 0,
    // An ephemeral key of ML-KEM-512.
    TAUPE_HYBRID_LIGHT = 1,
    // Static and ephemeral keys of ML-KEM-512.
    TAUPE_HYBRID_512 = 2,
    // Static and ephemeral keys of ML-KEM-768.
    TAUPE_HYBRID_768 = 3,
};

// Post-quantum mode: the handshakes that are allowed.
enum taupe_post_quantum {
    // Only ordinary ones.
    TAUPE_PQ_OFF = 0,
    // Hybrid ones, and ordinary ones until the peer has answered a hybrid one.
    TAUPE_PQ_PREFER = 1,
    // Only hybrid ones.
    TAUPE_PQ_REQUIRE = 2,
};

// A tunnel to one peer. Any thread may call its functions at any time, except tunnel_free.
struct wireguard_tunnel;

// An X25519 key, private or public.
struct x25519_key {
    // The bytes (RFC 7748).
    uint8_t key[32];
};

// Result of a call.
struct wireguard_result {
    // The operation.
    enum result_type op;
    // The number of bytes in `dst`, or the number of the error. 0 with WIREGUARD_DONE.
    size_t size;
};

// Statistics of a tunnel, in boringtun's form.
struct stats {
    // Seconds since the current session began; -1 without one.
    int64_t time_since_last_handshake;
    // Bytes of the packets sent.
    size_t tx_bytes;
    // Bytes of the packets received.
    size_t rx_bytes;
    // The fraction of the peer's messages that have not arrived, 0 to 1.
    float estimated_loss;
    // Milliseconds from the last initiation of this side to its response; -1 before it.
    int32_t estimated_rtt;
    // Zeros.
    uint8_t reserved[56];
};

// An address and UDP port.
struct taupe_address {
    // 4 or 6.
    uint8_t version;
    // In host byte order.
    uint16_t port;
    // In network byte order. IPv4 uses the first four bytes.
    uint8_t ip[16];
    // The interface index of a link-local IPv6 address, else 0.
    uint32_t scope;
};

// Counters and state of a tunnel, besides struct stats.
struct taupe_counters {
    // Packets sent.
    uint64_t tx_packets;
    // Bytes of these packets.
    uint64_t tx_bytes;
    // Packets received.
    uint64_t rx_packets;
    // Bytes of these packets.
    uint64_t rx_bytes;
    // Sessions so far.
    uint64_t sessions;
    // Packets that are queued until there is a session.
    uint64_t waiting;
    // Messages and packets dropped; taupe_dropped returns them by reason.
    uint64_t dropped;
    // The handshake of the current session, a taupe_suite.
    uint32_t suite;
    // 1 if TAUPE_PQ_PREFER has become as strict as TAUPE_PQ_REQUIRE. Save this, and pass it to
    // taupe_set_post_quantum for the next tunnel to this peer.
    uint32_t latched;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns a new private key from the system's randomness.
struct x25519_key x25519_secret_key(void);

// Returns the public key of a private key.
struct x25519_key x25519_public_key(struct x25519_key private_key);

// Returns a key in base64, 44 characters. Free the string with x25519_key_to_str_free.
const char *x25519_key_to_base64(struct x25519_key key);

// Returns a key in hexadecimal, 64 digits. Free the string with x25519_key_to_str_free.
const char *x25519_key_to_hex(struct x25519_key key);

// Erases and frees a string from x25519_key_to_base64 or x25519_key_to_hex. Does nothing for
// NULL.
//
// What must hold:
// `key_str` is NULL, or was returned by one of these functions and has not been freed.
void x25519_key_to_str_free(const char *key_str);

// Returns 1 if a string is a key in base64 and not all zeros, else 0. NULL gives 0.
//
// What must hold:
// `key` is NULL or a string that ends with a NUL.
int check_base64_encoded_x25519_key(const char *key);

// Sends the log lines of all tunnels to a function, in boringtun's form: the time in UTC
// (RFC 3339), a space, the text and "\n". taupe_set_log_level selects the lines. Returns false
// if a function has been set before, or for NULL.
//
// The thread that calls a tunnel calls `log_func`, before its own call returns, with one line
// each time. Only one thread of the process calls `log_func` at a time. The string is valid
// during the call and must not be changed. `log_func` may call the library, also with the same
// tunnel, but not with a buffer of the call that causes the line, and it must not free that
// tunnel. Lines that such calls cause are discarded. `log_func` must not wait for another thread
// that calls the library, and must not throw or longjmp.
bool set_logging_function(void (*log_func)(const char*));

// Creates a tunnel. Returns NULL if a required key is NULL, if a key is malformed, or if the
// peer's key is this side's own.
//
// All keys are in base64 or hexadecimal; `preshared_key` may be NULL for none. `keep_alive` is
// in seconds, 0 is off. The lower 24 bits of `index` become the upper 24 bits of each receiver
// index that the peer uses for this tunnel. The strings are not used after the call.
//
// What must hold:
// Each string is NULL or ends with a NUL.
struct wireguard_tunnel *new_tunnel(const char *static_private,
                                    const char *server_static_public,
                                    const char *preshared_key,
                                    uint16_t keep_alive,
                                    uint32_t index);

// Ends a tunnel and erases its keys. Does nothing for NULL.
//
// What must hold:
// `tunnel` is NULL, or a tunnel that has not been freed. No other thread uses it.
void tunnel_free(struct wireguard_tunnel *tunnel);

// Sends an IP packet to the peer, or a keepalive if `src_size` is 0.
//
// With WRITE_TO_NETWORK, `dst` holds a datagram: the message that carries the packet, or,
// without a session, a handshake initiation. In the latter case, and with WIREGUARD_DONE (a
// handshake is in progress), the packet is queued until there is a session. At most 256 packets
// are queued; further ones are dropped.
//
// `dst_size` must be at least src_size + 32, and at least 148.
//
// What must hold:
// `tunnel` is NULL or a tunnel. `src` has `src_size` bytes and `dst` has `dst_size`, or each is
// NULL with the size 0. They may overlap.
struct wireguard_result wireguard_write(const struct wireguard_tunnel *tunnel,
                                        const uint8_t *src,
                                        uint32_t src_size,
                                        uint8_t *dst,
                                        uint32_t dst_size);

// Handles a datagram from the peer, or only returns the next datagram to send if `src_size` is 0.
//
// With WRITE_TO_TUNNEL_IPV4 or WRITE_TO_TUNNEL_IPV6, `dst` holds a packet. The caller must check
// whether the peer may use its source address. With WRITE_TO_NETWORK, `dst` holds a datagram for
// the peer; then call again with `src_size` 0 until WIREGUARD_DONE, as there may be more.
//
// `dst_size` must be at least src_size, and at least 148. With `src_size` 0 it must be at least
// 32 more than the longest queued packet.
//
// What must hold:
// As wireguard_write.
struct wireguard_result wireguard_read(const struct wireguard_tunnel *tunnel,
                                       const uint8_t *src,
                                       uint32_t src_size,
                                       uint8_t *dst,
                                       uint32_t dst_size);

// Runs the tunnel's timers. Call it every 100 ms, or when taupe_next_timeout says.
//
// WRITE_TO_NETWORK is as for wireguard_read. If the peer does not answer, or the last session has
// been erased, each call returns the error ConnectionExpired until a packet is written or a
// handshake is forced.
//
// `dst_size` must be at least 148.
//
// What must hold:
// `tunnel` is NULL or a tunnel. `dst` has `dst_size` bytes, or is NULL with the size 0.
struct wireguard_result wireguard_tick(const struct wireguard_tunnel *tunnel,
                                       uint8_t *dst,
                                       uint32_t dst_size);

// Starts a handshake now. Returns WRITE_TO_NETWORK, and `dst` holds the initiation.
//
// `dst_size` must be at least 148.
//
// What must hold:
// As wireguard_tick.
struct wireguard_result wireguard_force_handshake(const struct wireguard_tunnel *tunnel,
                                                  uint8_t *dst,
                                                  uint32_t dst_size);

// Returns the statistics of a tunnel. For NULL, those of a tunnel without traffic.
//
// What must hold:
// `tunnel` is NULL or a tunnel.
struct stats wireguard_stats(const struct wireguard_tunnel *tunnel);

// Returns the version of the library, for example "0.1.0".
const char *taupe_version(void);

// Returns the milliseconds until wireguard_tick has something to do, for poll(2). 0 means now.
// -1 means that no timer is set, unless a packet is written or read first. The value changes
// with every call.
//
// What must hold:
// `tunnel` is NULL or a tunnel.
int32_t taupe_next_timeout(const struct wireguard_tunnel *tunnel);

// Sets the preshared key of later handshakes, in base64 or hexadecimal; NULL removes it. Returns
// false and changes nothing if the key is malformed.
//
// What must hold:
// `tunnel` is NULL or a tunnel. The string is NULL or ends with a NUL.
bool taupe_set_preshared_key(const struct wireguard_tunnel *tunnel,
                             const char *preshared_key);

// Sets the persistent keepalive in seconds; 0 is off. Returns false for NULL.
//
// What must hold:
// `tunnel` is NULL or a tunnel.
bool taupe_set_keep_alive(const struct wireguard_tunnel *tunnel, uint16_t keep_alive);

// Overwrites a secret with zeros. No compiler optimises this away.
//
// What must hold:
// `secret` is NULL or has `size` bytes.
void taupe_erase(uint8_t *secret, size_t size);

// Handles a datagram as wireguard_read does, and also takes its source address; NULL if that is
// unknown. Under load (more than 10 handshake messages in a second), handshake messages with a
// source address are answered with cookies. Those without one are refused.
//
// What must hold:
// As wireguard_read. `from` is NULL or an address.
struct wireguard_result taupe_read_from(const struct wireguard_tunnel *tunnel,
                                        const struct taupe_address *from,
                                        const uint8_t *src,
                                        uint32_t src_size,
                                        uint8_t *dst,
                                        uint32_t dst_size);

// Writes the peer's address to `address`: the source of its last authentic message, as given to
// taupe_read_from, taupe_read_in_place or taupe_read_batch. Returns false if it is unknown.
//
// What must hold:
// `tunnel` is NULL or a tunnel. `address` is NULL or can be written.
bool taupe_peer_address(const struct wireguard_tunnel *tunnel, struct taupe_address *address);

// Sends a packet as wireguard_write does, but in place: the packet is `size` bytes of `buffer`
// from TAUPE_OFFSET on, and the message begins at 0. `capacity` must be at least size + 32, and
// at least 148.
//
// What must hold:
// `tunnel` is NULL or a tunnel. `buffer` has `capacity` bytes.
struct wireguard_result taupe_write_in_place(const struct wireguard_tunnel *tunnel,
                                             uint8_t *buffer,
                                             uint32_t size,
                                             uint32_t capacity);

// Handles a datagram as taupe_read_from does, but in place: the datagram is the first `size`
// bytes of `buffer`. A packet begins at TAUPE_OFFSET, a datagram for the peer at 0. `capacity`
// must be at least 148.
//
// What must hold:
// `tunnel` is NULL or a tunnel. `from` is NULL or an address. `buffer` has `capacity` bytes.
struct wireguard_result taupe_read_in_place(const struct wireguard_tunnel *tunnel,
                                            const struct taupe_address *from,
                                            uint8_t *buffer,
                                            uint32_t size,
                                            uint32_t capacity);

// Seals `count` packets. Packet `i` is `src_sizes[i]` bytes at `src + i * src_stride`. Its
// message is written to `dst + i * dst_stride`, and the message's size to `dst_sizes[i]`.
//
// With WRITE_TO_NETWORK, the result's `size` is the number of messages to send. Without a session
// all packets are queued, and there is one message, a handshake initiation. With WIREGUARD_DONE
// they are queued and a handshake is in progress. `dst_stride` must be at least 32 more than the
// longest packet, and at least 148.
//
// What must hold:
// `tunnel` is NULL or a tunnel. `src` has src_stride * (count - 1) + src_sizes[count - 1] bytes,
// `dst` has dst_stride * count bytes, and both arrays of sizes have `count` elements. None of
// them overlap.
struct wireguard_result taupe_write_batch(const struct wireguard_tunnel *tunnel,
                                          const uint8_t *src,
                                          size_t src_stride,
                                          const size_t *src_sizes,
                                          size_t count,
                                          uint8_t *dst,
                                          size_t dst_stride,
                                          size_t *dst_sizes);

// Opens `count` datagrams of one sender in place. Datagram `i` is `sizes[i]` bytes at
// `buffer + i * stride`, for example a segment of UDP_GRO or a message of recvmmsg. `results[i]`
// is the result as of wireguard_read; a packet begins TAUPE_OFFSET bytes after the start of its
// datagram.
//
// With WIREGUARD_DONE, the result's `size` is the number of packets. With WIREGUARD_ERROR, no
// datagram has been handled. Afterwards call wireguard_read with `src_size` 0 until
// WIREGUARD_DONE.
//
// What must hold:
// `tunnel` is NULL or a tunnel. `from` is NULL or an address. `buffer` has
// stride * (count - 1) + sizes[count - 1] bytes, and `sizes` and `results` have `count` elements.
// None of them overlap.
struct wireguard_result taupe_read_batch(const struct wireguard_tunnel *tunnel,
                                         const struct taupe_address *from,
                                         uint8_t *buffer,
                                         size_t stride,
                                         const size_t *sizes,
                                         size_t count,
                                         struct wireguard_result *results);

// Returns the counters of a tunnel; zeros for NULL.
//
// What must hold:
// `tunnel` is NULL or a tunnel.
struct taupe_counters taupe_get_counters(const struct wireguard_tunnel *tunnel);

// Returns the number of messages and packets that were dropped for reason number `cause`, see
// taupe_drop_reason. 0 for NULL, and if there is no such reason.
//
// What must hold:
// `tunnel` is NULL or a tunnel.
uint64_t taupe_dropped(const struct wireguard_tunnel *tunnel, size_t cause);

// Returns drop reason number `cause` as a sentence in English, or NULL if there is no such reason.
// The numbers begin at 0.
const char *taupe_drop_reason(size_t cause);

// Returns boringtun's name of an error, for example "UnderLoad". "Unknown" for other numbers.
const char *taupe_error_name(size_t error);

// Returns a description of an error in English, with advice.
const char *taupe_error_to_string(size_t error);

// Sets the numbering of the tunnel's errors, a taupe_numbering, from the next call on. Returns
// false for NULL or an unknown numbering. taupe_error_from_0_5 translates old numbers.
//
// What must hold:
// `tunnel` is NULL or a tunnel.
bool taupe_set_numbering(const struct wireguard_tunnel *tunnel, uint32_t numbering);

// Returns the taupe_error of an error number of boringtun 0.5. 10 becomes INVALID_COUNTER, which
// at that time also stood for DUPLICATE_COUNTER.
size_t taupe_error_from_0_5(size_t error);

// Generates the seed of ML-KEM keys, TAUPE_PQ_SEED_SIZE bytes. Returns false for NULL.
//
// What must hold:
// `seed` is NULL or has TAUPE_PQ_SEED_SIZE bytes.
bool taupe_pq_seed(uint8_t *seed);

// Writes the ML-KEM public key of a seed for TAUPE_HYBRID_512 or TAUPE_HYBRID_768 to `key`, and
// returns its size. Returns 0 for NULL and for the other suites, which have no static ML-KEM key.
//
// What must hold:
// `seed` is NULL or has TAUPE_PQ_SEED_SIZE bytes. `key` is NULL or has TAUPE_PQ_KEY_SIZE bytes.
size_t taupe_pq_public_key(uint32_t suite,
                           const uint8_t *seed,
                           uint8_t *key);

// Sets the mode and the keys of hybrid handshakes. Ends the session if the mode no longer
// allows it.
//
// `mode` is a taupe_post_quantum. `seed` is this side's seed of TAUPE_PQ_SEED_SIZE bytes. `key`
// is the peer's ML-KEM public key of `key_size` bytes, and its size selects the suite. If both are
// NULL, the suite is TAUPE_HYBRID_LIGHT. `latched` is the saved value of taupe_counters. Returns
// false and changes nothing if a key is malformed or only one of the two is given.
//
// From then on `dst` must hold TAUPE_PQ_MESSAGE_SIZE bytes in every place that names 148. A
// handshake has several datagrams: after each WRITE_TO_NETWORK, call wireguard_read with
// `src_size` 0 until WIREGUARD_DONE.
//
// What must hold:
// `tunnel` is NULL or a tunnel. `seed` is NULL or has TAUPE_PQ_SEED_SIZE bytes. `key` is NULL or
// has `key_size` bytes.
bool taupe_set_post_quantum(const struct wireguard_tunnel *tunnel,
                            uint32_t mode,
                            const uint8_t *seed,
                            const uint8_t *key,
                            size_t key_size,
                            bool latched);

// Creates a tunnel as new_tunnel does, with a log function of its own for lines up to
// `log_level`, a taupe_log_level. If `log_printer` is NULL, the lines go to the function of
// set_logging_function.
//
// Each line begins with its level, for example `[Info] `, and has no "\n", as in boringtun in
// 2021. The rules of set_logging_function apply to `log_printer` too.
//
// What must hold:
// Each string is NULL or ends with a NUL.
struct wireguard_tunnel *taupe_new_tunnel_with_log(const char *static_private,
                                                   const char *server_static_public,
                                                   const char *preshared_key,
                                                   uint16_t keep_alive,
                                                   uint32_t index,
                                                   void (*log_printer)(const char*),
                                                   uint32_t log_level);

// Selects the lines that go to the function of set_logging_function: those up to `level`, a
// taupe_log_level. Default: all. Returns false if there is no such level or no function yet.
bool taupe_set_log_level(uint32_t level);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#ifdef TAUPE_BORINGTUN_2021

// The names of boringtun 0.2 and 0.3, and of 0.4. In the numbers of 0.4, NONE and ERR are equal:
// with either, nothing is printed.
enum log_level {
    NONE = 0,
    ERR = 0,
    INFO = 1,
    DEB = 2,
    DBG = 2,
    ALL = 3,
    TRACE = 3,
};

// Discards lines. With NULL instead, they would go to the function of set_logging_function.
static inline void taupe_no_line(const char *line) { (void)line; }

// Creates a tunnel in the form of 2021, with the error numbers of that time.
static inline struct wireguard_tunnel *taupe_new_tunnel_2021(
    const char *static_private, const char *server_static_public, const char *preshared_key,
    uint16_t keep_alive, uint32_t index, void (*log_printer)(const char *),
    enum log_level log_level) {
    struct wireguard_tunnel *tunnel =
        taupe_new_tunnel_with_log(static_private, server_static_public, preshared_key, keep_alive,
                                  index, log_level == NONE ? taupe_no_line : log_printer,
                                  (uint32_t)log_level);
    taupe_set_numbering(tunnel, TAUPE_NUMBERING_0_5);
    return tunnel;
}

// new_tunnel(private, public, [preshared key,] [keep_alive, index,] log_printer, log_level):
// the number of arguments shows which of them are given.
#define TAUPE_NEW_4(a, b, log, level) taupe_new_tunnel_2021(a, b, NULL, 0, 0, log, level)
#define TAUPE_NEW_5(a, b, psk, log, level) taupe_new_tunnel_2021(a, b, psk, 0, 0, log, level)
#define TAUPE_NEW_6(a, b, alive, index, log, level) \
    taupe_new_tunnel_2021(a, b, NULL, alive, index, log, level)
#define TAUPE_NEW_7(a, b, psk, alive, index, log, level) \
    taupe_new_tunnel_2021(a, b, psk, alive, index, log, level)
#define TAUPE_NEW_OF(a, b, c, d, e, f, g, name, ...) name
#define new_tunnel(...) \
    TAUPE_NEW_OF(__VA_ARGS__, TAUPE_NEW_7, TAUPE_NEW_6, TAUPE_NEW_5, TAUPE_NEW_4, , , , ) \
    (__VA_ARGS__)

#endif
