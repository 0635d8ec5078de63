// What the attacker never has. ProVerif proves this too, and ends sooner for knowing it.
#if !defined EPHEMERALS_LEAK_I && !defined ORDINARY
not attacker(new seed_e).
#ifndef LIGHT
not attacker(new coins1).
#endif
#endif
#if !defined EPHEMERALS_LEAK_R && !defined ORDINARY
not attacker(new coins2).
#ifndef LIGHT
not attacker(new coins3).
#endif
#endif
#if !defined X25519_BROKEN && !defined X25519_BROKEN_LATER
#if !defined EPHEMERALS_LEAK_I && !defined ORDINARY
not attacker(new e_i).
#endif
#if !defined EPHEMERALS_LEAK_R && !defined ORDINARY
not attacker(new e_r).
#endif
#if !defined EPHEMERALS_LEAK_I && (defined ORDINARY || defined BOTH)
not attacker(new ordinary_e_i).
#endif
#if !defined EPHEMERALS_LEAK_R && (defined ORDINARY || defined BOTH)
not attacker(new ordinary_e_r).
#endif
#endif

process
	// Public keys, and private keys that leak from the beginning.
	(!in(net, a: bitstring); out(net, (pub(x25519(a)), ek(mlkem(a)))))
	| (!in(net, a: bitstring); event Leaked(a); out(net, (x25519(a), mlkem(a))))
	// Sessions: the attacker chooses the peer and the slot of the preshared key.
#if defined ORDINARY || defined BOTH
	| (!in(net, (a: bitstring, b: bitstring)); PRESHARED(q)
		OrdinaryInitiator(x25519(ORDINARY_DEVICE(a)), pub(x25519(b)), q))
	| (!in(net, (b: bitstring, a: bitstring)); PRESHARED(q)
		OrdinaryResponder(x25519(ORDINARY_DEVICE(b)), pub(x25519(a)), q))
#endif
#if defined HYBRID || defined BOTH
	| (!in(net, (n: bitstring, a: bitstring, b: bitstring)); PRESHARED(q)
		HybridInitiator(suite(n), x25519(a), mlkem(a), pub(x25519(b)), ek(mlkem(b)), q))
	| (!in(net, (n: bitstring, b: bitstring, a: bitstring)); PRESHARED(q)
		HybridResponder(suite(n), x25519(b), mlkem(b), pub(x25519(a)), ek(mlkem(a)), q))
#endif
#ifdef LIGHT
	| (!in(net, (a: bitstring, b: bitstring)); PRESHARED(q)
		LightInitiator(x25519(a), pub(x25519(b)), q))
	| (!in(net, (b: bitstring, a: bitstring)); PRESHARED(q)
		LightResponder(x25519(b), pub(x25519(a)), q))
#endif
#ifdef X25519_BROKEN_LATER
	| (!phase 1; in(net, X: bitstring); out(net, discrete_log(X)))
#endif
#ifdef MLKEM_BROKEN_LATER
	| (!phase 1; in(net, ct: bitstring); out(net, break_ciphertext(ct)))
#endif
#ifdef STATIC_LEAKS_LATER
	| (!phase 1; in(net, a: bitstring); out(net, (x25519(a), mlkem(a))))
#endif
#ifdef PSK_LEAKS_LATER
	| (!phase 1; in(net, slot: bitstring); out(net, preshared(slot)))
#endif
