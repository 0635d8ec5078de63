// Taupe as a library: boringtun's C interface (its versions 0.6 and 0.7), and what Taupe adds,
// whose names begin with taupe_. docs/library.md is the manual.
//
// scripts/header makes this file from crates/ffi/src; do not edit it.
//
// Threads: any thread may call any function at any time, with the same tunnel too, but for
// tunnel_free, which must be the last.
//
// TAUPE_BORINGTUN_2021, defined before this file is included, makes new_tunnel and enum
// log_level those of boringtun 0.2 to 0.4; see the end of the file.
//
// SPDX-License-Identifier: MIT OR Apache-2.0

#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// What any message or packet fits into.
enum {
    MAX_WIREGUARD_PACKET_SIZE = 65536 + 64,
};

// Bytes that a message has before its packet.
#define TAUPE_OFFSET 16

// Bytes that a message has more than its packet and padding.
#define TAUPE_OVERHEAD 32

// The bytes of the seed of ML-KEM keys.
#define TAUPE_PQ_SEED_SIZE 64

// The bytes of the longest ML-KEM public key; TAUPE_HYBRID_512's has 800.
#define TAUPE_PQ_KEY_SIZE 1184

// What `dst` must hold where hybrid handshakes are wanted, in the place of 148.
#define TAUPE_PQ_MESSAGE_SIZE 1232

// What a call wants done with `dst`.
enum result_type {
    // Nothing.
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

// Why a call has failed: the `size` of WIREGUARD_ERROR.
//
// The first 17 are boringtun's since 0.6. Before, it had no DUPLICATE_COUNTER, and what is
// behind that was one less: see taupe_set_numbering.
enum taupe_error {
    // `dst` is too small.
    TAUPE_DESTINATION_BUFFER_TOO_SMALL = 0,
    // boringtun's; not given.
    TAUPE_INCORRECT_PACKET_LENGTH = 1,
    // A response that answers nothing.
    TAUPE_UNEXPECTED_PACKET = 2,
    // boringtun's; not given.
    TAUPE_WRONG_PACKET_TYPE = 3,
    // boringtun's; not given.
    TAUPE_WRONG_INDEX = 4,
    // An initiation of another peer.
    TAUPE_WRONG_KEY = 5,
    // boringtun's; not given.
    TAUPE_INVALID_TAI64N_TIMESTAMP = 6,
    // An initiation that has been received before, or the peer's clock has gone back.
    TAUPE_WRONG_TAI64N_TIMESTAMP = 7,
    // A handshake message for another public key.
    TAUPE_INVALID_MAC = 8,
    // A message that was changed, or made with other keys.
    TAUPE_INVALID_AEAD_TAG = 9,
    // A counter that no session reaches.
    TAUPE_INVALID_COUNTER = 10,
    // A packet that has been received before, or is too late to tell.
    TAUPE_DUPLICATE_COUNTER = 11,
    // No WireGuard message, or no IP packet in it.
    TAUPE_INVALID_PACKET = 12,
    // A packet for a session that has ended, or never was.
    TAUPE_NO_CURRENT_SESSION = 13,
    // boringtun's; not given.
    TAUPE_LOCK_FAILED = 14,
    // The peer does not answer, or the last session has been erased.
    TAUPE_CONNECTION_EXPIRED = 15,
    // More handshake messages than are handled; see taupe_read_from.
    TAUPE_UNDER_LOAD = 16,
    // An ordinary handshake where only hybrid ones are wanted.
    TAUPE_POST_QUANTUM_REQUIRED = 1000,
    // A NULL where there must be none, or a number without meaning.
    TAUPE_INVALID_ARGUMENT = 1001,
    // A defect of the library, stopped; the tunnel is best freed.
    TAUPE_INTERNAL = 1002,
};

// Whose numbers errors have.
enum taupe_numbering {
    // boringtun's since 0.6: those of taupe_error.
    TAUPE_NUMBERING_0_6 = 0,
    // boringtun's before: a DUPLICATE_COUNTER is 10, INVALID_PACKET 11,
    // NO_CURRENT_SESSION 12, LOCK_FAILED 13, CONNECTION_EXPIRED 14, UNDER_LOAD 15.
    TAUPE_NUMBERING_0_5 = 1,
};

// How much a line matters.
enum taupe_log_level {
    // A tunnel does not work.
    TAUPE_LOG_ERROR = 0,
    // Sessions that come and go.
    TAUPE_LOG_INFO = 1,
    // Each handshake message.
    TAUPE_LOG_DEBUG = 2,
    // Each packet that is dropped.
    TAUPE_LOG_TRACE = 3,
};

// A hybrid handshake: X25519 and ML-KEM (docs/post-quantum.md).
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

// Which handshakes there are.
enum taupe_post_quantum {
    // Only ordinary ones.
    TAUPE_PQ_OFF = 0,
    // Hybrid ones; ordinary ones while the peer has never answered a hybrid one.
    TAUPE_PQ_PREFER = 1,
    // Only hybrid ones.
    TAUPE_PQ_REQUIRE = 2,
};

// A tunnel to one peer. Any thread may call its functions at any time, but for
// tunnel_free.
struct wireguard_tunnel;

// A key of X25519, private or public.
struct x25519_key {
    // Its bytes (RFC 7748).
    uint8_t key[32];
};

// What a call has come to.
struct wireguard_result {
    // What to do.
    enum result_type op;
    // How many bytes of `dst` are meant, or which error it is; 0 with WIREGUARD_DONE.
    size_t size;
};

// What a tunnel tells of itself.
struct stats {
    // Seconds since the current session began; -1 without one.
    int64_t time_since_last_handshake;
    // Bytes of the packets written.
    size_t tx_bytes;
    // Bytes of the packets read.
    size_t rx_bytes;
    // The share of the peer's messages that have not arrived, 0 to 1.
    float estimated_loss;
    // Milliseconds that the last handshake of this side took; -1 before it.
    int32_t estimated_rtt;
    // Zeros.
    uint8_t reserved[56];
};

// An address and UDP port.
struct taupe_address {
    // 4 or 6.
    uint8_t version;
    // In the host's byte order.
    uint16_t port;
    // As in the header of a packet; of IPv4, the first four bytes.
    uint8_t ip[16];
    // The interface of a link-local IPv6 address, else 0.
    uint32_t scope;
};

// What a tunnel counts and knows, besides struct stats.
struct taupe_counters {
    // Packets written.
    uint64_t tx_packets;
    // Their bytes.
    uint64_t tx_bytes;
    // Packets read.
    uint64_t rx_packets;
    // Their bytes.
    uint64_t rx_bytes;
    // Sessions so far.
    uint64_t sessions;
    // Packets that wait for one.
    uint64_t waiting;
    // Messages and packets dropped; taupe_dropped tells why.
    uint64_t dropped;
    // The handshake that the current session comes from, a taupe_suite.
    uint32_t suite;
    // 1 when TAUPE_PQ_PREFER has become as strict as TAUPE_PQ_REQUIRE: to be remembered,
    // and given to taupe_set_post_quantum the next time.
    uint32_t latched;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Makes a private key, from the system's randomness.
struct x25519_key x25519_secret_key(void);

// The public key of a private one.
struct x25519_key x25519_public_key(struct x25519_key private_key);

// A key in base64, 44 characters, to be freed with x25519_key_to_str_free.
const char *x25519_key_to_base64(struct x25519_key key);

// A key in hexadecimal, 64 digits, to be freed with x25519_key_to_str_free.
const char *x25519_key_to_hex(struct x25519_key key);

// Erases and frees what x25519_key_to_base64 or x25519_key_to_hex has returned; does
// nothing for NULL.
//
// What must hold:
// `key_str` is NULL, or was returned by one of the two and has not been freed.
void x25519_key_to_str_free(const char *key_str);

// 1 if a string is a key in base64, and not all zeros; else 0, also for NULL.
//
// What must hold:
// `key` is NULL or a string that ends with a NUL.
int check_base64_encoded_x25519_key(const char *key);

// Has the lines of all tunnels go to a function, each as boringtun's: the time in UTC
// (RFC 3339), a space, the text and "\n". false if it has been called before, or with NULL.
// taupe_set_log_level chooses which.
//
// `log_func` is called by whichever thread calls a tunnel, before that call returns, but by
// one at a time in the whole process, with one line each time. The string is valid during
// the call and is not to be changed. `log_func` may call the library, also the same tunnel,
// but not with a buffer of the call that the line comes of, nor free its tunnel; lines of
// meanwhile are left out. It must not wait for another thread that calls the library, and
// not throw or longjmp.
bool set_logging_function(void (*log_func)(const char*));

// Makes a tunnel; NULL if a key is NULL, malformed, or the peer's is this side's own.
//
// `static_private` and `server_static_public` are keys in base64 or hexadecimal, so is
// `preshared_key`, or NULL for none. `keep_alive` is in seconds, 0 is off. The lower 24
// bits of `index` are the upper 24 of every receiver index by which the peer names this
// tunnel. The strings are not kept.
//
// What must hold:
// Each string is NULL or ends with a NUL.
struct wireguard_tunnel *new_tunnel(const char *static_private,
                                    const char *server_static_public,
                                    const char *preshared_key,
                                    uint16_t keep_alive,
                                    uint32_t index);

// Ends a tunnel, and erases its keys; does nothing for NULL.
//
// What must hold:
// `tunnel` is NULL, or a tunnel that has not been freed and that no thread calls.
void tunnel_free(struct wireguard_tunnel *tunnel);

// Takes an IP packet, or with `src_size` 0 a keepalive, for the peer.
//
// WRITE_TO_NETWORK: `dst` is the message that carries it, or, without a session, the
// initiation of a handshake; the packet is kept then. WIREGUARD_DONE: it is kept, and a
// handshake is under way. At most 256 are kept; newer ones are dropped.
//
// `dst_size` must be src_size + 32 at least, and 148.
//
// What must hold:
// `tunnel` is NULL or a tunnel; `src` has `src_size` bytes and `dst` `dst_size`, or each is
// NULL with the size 0. They may overlap.
struct wireguard_result wireguard_write(const struct wireguard_tunnel *tunnel,
                                        const uint8_t *src,
                                        uint32_t src_size,
                                        uint8_t *dst,
                                        uint32_t dst_size);

// Takes a datagram from the peer, or with `src_size` 0 nothing.
//
// WRITE_TO_TUNNEL_*: `dst` is the packet in it; whether the peer may send from its source
// address is the caller's to check. WRITE_TO_NETWORK: `dst` is to be sent to the peer;
// there may be more: call again with `src_size` 0 until WIREGUARD_DONE.
//
// `dst_size` must be src_size at least, and 148; with `src_size` 0, 32 more than the
// longest packet that may have been kept.
//
// What must hold:
// As wireguard_write.
struct wireguard_result wireguard_read(const struct wireguard_tunnel *tunnel,
                                       const uint8_t *src,
                                       uint32_t src_size,
                                       uint8_t *dst,
                                       uint32_t dst_size);

// Does what is due: to be called every 100 ms, or when taupe_next_timeout says.
//
// WRITE_TO_NETWORK as wireguard_read. The error ConnectionExpired comes at every call from
// when the peer has been given up until something is written or a handshake forced.
//
// `dst_size` must be 148 at least.
//
// What must hold:
// `tunnel` is NULL or a tunnel; `dst` has `dst_size` bytes, or is NULL with the size 0.
struct wireguard_result wireguard_tick(const struct wireguard_tunnel *tunnel,
                                       uint8_t *dst,
                                       uint32_t dst_size);

// Begins a handshake now: WRITE_TO_NETWORK, and `dst` is its initiation.
//
// `dst_size` must be 148 at least.
//
// What must hold:
// As wireguard_tick.
struct wireguard_result wireguard_force_handshake(const struct wireguard_tunnel *tunnel,
                                                  uint8_t *dst,
                                                  uint32_t dst_size);

// What the tunnel tells of itself; for NULL, that there is nothing.
//
// What must hold:
// `tunnel` is NULL or a tunnel.
struct stats wireguard_stats(const struct wireguard_tunnel *tunnel);

// The version of the library, such as "0.1.0".
const char *taupe_version(void);

// In how many milliseconds wireguard_tick has something to do, 0 when it has now, -1 when
// it has not unless something is written or read first: as poll(2) takes it. Ask again
// after every call.
//
// What must hold:
// `tunnel` is NULL or a tunnel.
int32_t taupe_next_timeout(const struct wireguard_tunnel *tunnel);

// Takes another preshared key, in base64 or hexadecimal, or NULL for none, for the
// handshakes to come. false if it is malformed; nothing is changed then.
//
// What must hold:
// `tunnel` is NULL or a tunnel; the string is NULL or ends with a NUL.
bool taupe_set_preshared_key(const struct wireguard_tunnel *tunnel, const char *preshared_key);

// Takes another persistent keepalive, in seconds; 0 is off. false for NULL.
//
// What must hold:
// `tunnel` is NULL or a tunnel.
bool taupe_set_keep_alive(const struct wireguard_tunnel *tunnel, uint16_t keep_alive);

// Erases a secret that the caller has no more use for, in a way that no compiler leaves out.
//
// What must hold:
// `secret` is NULL or has `size` bytes.
void taupe_erase(uint8_t *secret, size_t size);

// As wireguard_read, with where the datagram came from: under load, handshake messages
// from there are answered with cookies (more than 10 in a second are a load), where
// wireguard_read can only refuse them. NULL: it is not known.
//
// What must hold:
// As wireguard_read; `from` is NULL or an address.
struct wireguard_result taupe_read_from(const struct wireguard_tunnel *tunnel,
                                        const struct taupe_address *from,
                                        const uint8_t *src,
                                        uint32_t src_size,
                                        uint8_t *dst,
                                        uint32_t dst_size);

// Where the peer was last heard of: the address of its last authentic message, by
// taupe_read_from and its like. false if that is not known.
//
// What must hold:
// `tunnel` is NULL or a tunnel; `address` is NULL or can be written.
bool taupe_peer_address(const struct wireguard_tunnel *tunnel, struct taupe_address *address);

// As wireguard_write, but the packet is in `buffer` already, `size` bytes from TAUPE_OFFSET
// on, and the message begins at 0. `capacity` must be size + 32 at least, and 148.
//
// What must hold:
// `tunnel` is NULL or a tunnel; `buffer` has `capacity` bytes.
struct wireguard_result taupe_write_in_place(const struct wireguard_tunnel *tunnel,
                                             uint8_t *buffer,
                                             uint32_t size,
                                             uint32_t capacity);

// As taupe_read_from, but the datagram is the first `size` bytes of `buffer`. A packet stays
// in it, from TAUPE_OFFSET on; what is to be sent begins at 0. `capacity` must be 148 at
// least.
//
// What must hold:
// `tunnel` is NULL or a tunnel; `from` is NULL or an address; `buffer` has `capacity` bytes.
struct wireguard_result taupe_read_in_place(const struct wireguard_tunnel *tunnel,
                                            const struct taupe_address *from,
                                            uint8_t *buffer,
                                            uint32_t size,
                                            uint32_t capacity);

// Seals `count` packets: the `i`th is `src_sizes[i]` bytes from `src + i * src_stride`; its
// message goes to `dst + i * dst_stride`, and its size to `dst_sizes[i]`.
//
// WRITE_TO_NETWORK: `size` messages are to be sent. Without a session all packets are kept,
// and it is one message, the initiation of a handshake. WIREGUARD_DONE: they are kept, and
// a handshake is under way. `dst_stride` must be 32 more than the longest packet, and 148.
//
// What must hold:
// `tunnel` is NULL or a tunnel; each buffer is as long as it says, `dst` dst_stride * count
// bytes, and none overlap.
struct wireguard_result taupe_write_batch(const struct wireguard_tunnel *tunnel,
                                          const uint8_t *src,
                                          size_t src_stride,
                                          const size_t *src_sizes,
                                          size_t count,
                                          uint8_t *dst,
                                          size_t dst_stride,
                                          size_t *dst_sizes);

// Opens `count` datagrams of one source in place: the `i`th is `sizes[i]` bytes from
// `buffer + i * stride` (the segments of UDP_GRO, or places for recvmmsg). `results[i]` is
// as wireguard_read's, but a packet begins TAUPE_OFFSET bytes behind its datagram.
//
// WIREGUARD_DONE: `size` datagrams had packets in them. WIREGUARD_ERROR: none has been
// looked at. Call wireguard_read with `src_size` 0 afterwards, until WIREGUARD_DONE.
//
// What must hold:
// `tunnel` is NULL or a tunnel; `from` is NULL or an address; each buffer is as long as it
// says, `buffer` stride * (count - 1) + sizes[count - 1] bytes, and none overlap.
struct wireguard_result taupe_read_batch(const struct wireguard_tunnel *tunnel,
                                         const struct taupe_address *from,
                                         uint8_t *buffer,
                                         size_t stride,
                                         const size_t *sizes,
                                         size_t count,
                                         struct wireguard_result *results);

// What the tunnel counts; zeros for NULL.
//
// What must hold:
// `tunnel` is NULL or a tunnel.
struct taupe_counters taupe_get_counters(const struct wireguard_tunnel *tunnel);

// How many messages and packets have been dropped for the `cause`th reason there is, which
// taupe_drop_reason tells; 0 for NULL and beyond the last.
//
// What must hold:
// `tunnel` is NULL or a tunnel.
uint64_t taupe_dropped(const struct wireguard_tunnel *tunnel, size_t cause);

// Why messages and packets are dropped, as a sentence in English; NULL from the number on
// that there is no reason of.
const char *taupe_drop_reason(size_t cause);

// The name of an error, such as "UnderLoad", as boringtun has it; "Unknown" for a number
// that is none.
const char *taupe_error_name(size_t error);

// What an error means and what to do, as a sentence in English.
const char *taupe_error_to_string(size_t error);

// Has the tunnel's errors numbered as another version of boringtun does, from the next
// call on: `numbering` is a taupe_numbering. taupe_error_from_0_5 translates.
//
// What must hold:
// `tunnel` is NULL or a tunnel.
bool taupe_set_numbering(const struct wireguard_tunnel *tunnel, uint32_t numbering);

// The taupe_error of a number that boringtun 0.5 gives. A 10 is INVALID_COUNTER, which
// there was also what DUPLICATE_COUNTER is now.
size_t taupe_error_from_0_5(size_t error);

// Makes the seed of ML-KEM keys, TAUPE_PQ_SEED_SIZE bytes; false for NULL.
//
// What must hold:
// `seed` is NULL or has so many bytes.
bool taupe_pq_seed(uint8_t *seed);

// Writes the ML-KEM public key of a seed for TAUPE_HYBRID_512 or TAUPE_HYBRID_768 into
// `key`, which has TAUPE_PQ_KEY_SIZE bytes, and returns its size; 0 for NULL or another
// suite, which has no such key.
//
// What must hold:
// Each buffer is NULL or has its bytes.
size_t taupe_pq_public_key(uint32_t suite, const uint8_t *seed, uint8_t *key);

// Takes keys and rules for hybrid handshakes; sessions that they no longer allow end.
//
// `mode` is a taupe_post_quantum. `seed` is this side's, TAUPE_PQ_SEED_SIZE bytes, and
// `key` the peer's public key, `key_size` bytes, which says the suite; without both, NULL,
// the suite is TAUPE_HYBRID_LIGHT. `latched` is what taupe_counters said before. From then
// on `dst` must hold TAUPE_PQ_MESSAGE_SIZE bytes wherever it must hold 148, and a handshake
// has several datagrams: after each WRITE_TO_NETWORK call wireguard_read with `src_size` 0
// until WIREGUARD_DONE. false if a key is malformed or but one is there; nothing is changed
// then.
//
// What must hold:
// `tunnel` is NULL or a tunnel; each buffer is NULL or has its bytes.
bool taupe_set_post_quantum(const struct wireguard_tunnel *tunnel,
                            uint32_t mode,
                            const uint8_t *seed,
                            const uint8_t *key,
                            size_t key_size,
                            bool latched);

// As new_tunnel, but its lines go to a function of its own, up to `log_level`, a
// taupe_log_level; with NULL to that of set_logging_function, as others' do. Before each is
// its level, such as `[Info] `, and there is no "\n" behind it, as boringtun had it in 2021.
// What set_logging_function says of its function holds for this one too.
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

// Chooses the lines of set_logging_function, up to `level`, a taupe_log_level: at first
// all. false if there is no such level, or no function yet.
bool taupe_set_log_level(uint32_t level);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#ifdef TAUPE_BORINGTUN_2021

// The names of boringtun 0.2 and 0.3, and of 0.4, by whose numbers NONE and ERR are the same:
// nothing is printed with them.
enum log_level {
    NONE = 0,
    ERR = 0,
    INFO = 1,
    DEB = 2,
    DBG = 2,
    ALL = 3,
    TRACE = 3,
};

// NULL would have a tunnel's lines go where others' do.
static inline void taupe_no_line(const char *line) { (void)line; }

// A tunnel as it was made then, with the error numbers of then.
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
// which of them there are tells their number.
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
