#if defined X25519_BROKEN_LATER || defined MLKEM_BROKEN_LATER || defined INITIATOR_STOLEN_LATER || defined RESPONDER_STOLEN_LATER
phase[1]
#endif
#ifdef INITIATOR_STOLEN_LATER
principal Initiator[
	leaks INITIATORS_SECRETS
]
#endif
#ifdef RESPONDER_STOLEN_LATER
principal Responder[
	leaks RESPONDERS_SECRETS
]
#endif
