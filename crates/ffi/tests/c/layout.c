// Layouts and values in C and C++ on a 64-bit system: boringtun's according to its published
// header, and Taupe's, which must not change. Compiled, not run.

#ifdef PUBLISHED
#include "published.h"
#else
#include "taupe.h"
// Both headers declare the functions. If they differ, this does not compile.
#ifndef TAUPE_BORINGTUN_2021
#define PUBLISHED_FUNCTIONS_ONLY
#include "published.h"
#endif
#endif

#ifdef __cplusplus
#define IS(what) static_assert(what, #what)
#else
#define IS(what) _Static_assert(what, #what)
#endif

IS(MAX_WIREGUARD_PACKET_SIZE == 65600);
IS(WIREGUARD_DONE == 0 && WRITE_TO_NETWORK == 1 && WIREGUARD_ERROR == 2);
IS(WRITE_TO_TUNNEL_IPV4 == 4 && WRITE_TO_TUNNEL_IPV6 == 6);
IS(sizeof(enum result_type) == 4);
IS(sizeof(struct wireguard_result) == 16);
IS(offsetof(struct wireguard_result, op) == 0 && offsetof(struct wireguard_result, size) == 8);
IS(sizeof(struct stats) == 88);
IS(offsetof(struct stats, time_since_last_handshake) == 0);
IS(offsetof(struct stats, tx_bytes) == 8 && offsetof(struct stats, rx_bytes) == 16);
IS(offsetof(struct stats, estimated_loss) == 24 && offsetof(struct stats, estimated_rtt) == 28);
IS(offsetof(struct stats, reserved) == 32);
IS(sizeof(struct x25519_key) == 32);

#ifndef PUBLISHED
IS(TAUPE_DESTINATION_BUFFER_TOO_SMALL == 0 && TAUPE_INVALID_AEAD_TAG == 9);
IS(TAUPE_DUPLICATE_COUNTER == 11 && TAUPE_CONNECTION_EXPIRED == 15 && TAUPE_UNDER_LOAD == 16);
IS(TAUPE_POST_QUANTUM_REQUIRED == 1000 && TAUPE_INVALID_ARGUMENT == 1001);
IS(TAUPE_INTERNAL == 1002);
IS(TAUPE_NUMBERING_0_6 == 0 && TAUPE_NUMBERING_0_5 == 1);
IS(TAUPE_LOG_ERROR == 0 && TAUPE_LOG_TRACE == 3);
IS(TAUPE_ORDINARY == 0 && TAUPE_HYBRID_LIGHT == 1 && TAUPE_HYBRID_512 == 2);
IS(TAUPE_HYBRID_768 == 3);
IS(TAUPE_PQ_OFF == 0 && TAUPE_PQ_PREFER == 1 && TAUPE_PQ_REQUIRE == 2);
IS(sizeof(struct taupe_address) == 24);
IS(offsetof(struct taupe_address, port) == 2 && offsetof(struct taupe_address, ip) == 4);
IS(offsetof(struct taupe_address, scope) == 20);
IS(sizeof(struct taupe_counters) == 64 && offsetof(struct taupe_counters, suite) == 56);
#endif

int main(void) { return 0; }
