// What a scenario switches, for both models. A weak PUBKEY gives away its private key.

#ifdef PASSIVE
#define ATTACKER passive
#else
#define ATTACKER active
#endif

#if defined X25519_BROKEN
#define X25519 PUBKEY[weak]
#elif defined X25519_BROKEN_LATER
#define X25519 PUBKEY[weak from phase 1]
#else
#define X25519 PUBKEY
#endif

#if defined MLKEM_BROKEN
#define MLKEM PUBKEY[weak]
#elif defined MLKEM_BROKEN_LATER
#define MLKEM PUBKEY[weak from phase 1]
#else
#define MLKEM PUBKEY
#endif

// Who has no preshared key has 32 zeros, which everybody knows.
#ifdef PSK
#define SECRET_IF_PSK private
#else
#define SECRET_IF_PSK public
#endif

// The message after which the model ends: 1 the initiation, 2 part A of the response, 3 part B and
// what the initiator sends then, 4 what the responder sends then.
#ifndef UNTIL
#define UNTIL 4
#endif

// The queries, by the value they are about.
#define ASK_i_m confidentiality? i_m
#define ASK_r_m confidentiality? r_m
#define ASK_marker confidentiality? i_marker
#define ASK_timestamp authentication? Initiator -> Responder: timestamp
#define ASK_tag authentication? Initiator -> Responder: tag
#define ASK_empty authentication? Responder -> Initiator: empty
#define ASK_empty_a authentication? Responder -> Initiator: empty_a
#define ASK_empty_b authentication? Responder -> Initiator: empty_b
#define ASK_data_i authentication? Initiator -> Responder: data_i
#define ASK_data_r authentication? Responder -> Initiator: data_r
#define ASK_agreement equivalence? i_agreed, r_agreed
#define ASK_ct3 unlinkability? ct3_1, ct3_2
#define ASK_mac1 unlinkability? mac1_1, mac1_2
