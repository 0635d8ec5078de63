// The queries, by the name that the tables give them, for two peers that are devices: a, which
// initiates, and b, which responds. Other peers, which the attacker makes up or whose private keys
// leaked, exist beside them.
#if defined ORDINARY
#define KIND wireguard
#define OF_A pub(x25519(a)), none
#define OF_B pub(x25519(b)), none
#define PARAMETERS a: bitstring, b: bitstring, q: bitstring, i_send: bitstring, r_send: bitstring, time: bitstring
#define INITIATION_PSK none
#elif defined LIGHT
#define KIND light
#define OF_A pub(x25519(a)), none
#define OF_B pub(x25519(b)), none
#define PARAMETERS a: bitstring, b: bitstring, q: bitstring, i_send: bitstring, r_send: bitstring, time: bitstring
#define INITIATION_PSK q
#else
#define KIND suite(n)
#define OF_A pub(x25519(a)), ek(mlkem(a))
#define OF_B pub(x25519(b)), ek(mlkem(b))
#define PARAMETERS n: bitstring, a: bitstring, b: bitstring, q: bitstring, i_send: bitstring, r_send: bitstring, time: bitstring
#define INITIATION_PSK q
#endif
#ifdef PSK
#define Q preshared(q)
#else
#define Q q
#endif
#define SESSION KIND, OF_A, OF_B, Q, i_send, r_send

// Without a secret preshared key, the private keys of the other peer must not have leaked before.
// Those of the device itself may have (key compromise impersonation), except with OWN_KEYS_SECRET.
#if defined PSK && !defined PSK_LEAKS_LATER
#define UNLESS_A false
#define UNLESS_B false
#elif defined OWN_KEYS_SECRET
#define UNLESS_A event(Leaked(a)) || event(Leaked(b))
#define UNLESS_B event(Leaked(a)) || event(Leaked(b))
#else
#define UNLESS_A event(Leaked(a))
#define UNLESS_B event(Leaked(b))
#endif

#ifdef LATER
#define KNOWS(value) attacker(value) phase 1
#else
#define KNOWS(value) attacker(value)
#endif

// The key with which the initiator, the responder sends stays secret.
#define ASK_i_send query PARAMETERS; event(InitiatorAccepts(SESSION)) && KNOWS(i_send) ==> UNLESS_B.
#define ASK_r_send query PARAMETERS; event(ResponderConfirms(SESSION)) && KNOWS(r_send) ==> UNLESS_A.
// Each session of one peer is one session of the other, with all of SESSION in common.
#define ASK_i_agrees query PARAMETERS; inj-event(InitiatorAccepts(SESSION)) ==> inj-event(ResponseSent(SESSION)) || UNLESS_B.
#define ASK_r_agrees query PARAMETERS; inj-event(ResponderConfirms(SESSION)) ==> inj-event(InitiatorAccepts(SESSION)) || UNLESS_A.
// Nobody but the responder reads who the initiator is (with the switch IDENTITY).
#define ASK_identity query PARAMETERS; event(IdentitySent(OF_A, OF_B, time)) && KNOWS(time) ==> event(Leaked(b)).
// An initiation was made by the peer whose identity it has. An attacker may repeat it.
#define ASK_initiation query PARAMETERS; event(InitiationReceived(KIND, OF_A, OF_B, INITIATION_PSK, time)) ==> event(InitiationSent(KIND, OF_A, OF_B, INITIATION_PSK, time)) || UNLESS_A.
// No session comes to be. Its attack shows that the model runs to its end.
#define ASK_no_session query PARAMETERS; event(ResponderConfirms(SESSION)) ==> event(Leaked(a)) || event(Leaked(b)).
// Nobody has an ordinary session with a device that refuses them.
#define ASK_i_downgrade query PARAMETERS; event(InitiatorAccepts(wireguard, pub(x25519(a)), none, pub(x25519(requiring(b))), none, Q, i_send, r_send)) ==> event(Leaked(requiring(b))).
#define ASK_r_downgrade query PARAMETERS; event(ResponderConfirms(wireguard, pub(x25519(requiring(a))), none, pub(x25519(b)), none, Q, i_send, r_send)) ==> event(Leaked(requiring(a))).

