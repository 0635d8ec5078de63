"""Computes the handshakes of hybrid.txt from their inputs, as docs/post-quantum.md says, both
sides, and compares every line. It shares no code with Taupe: it is the other implementation that
the page promises can be written. Not for use: nothing here is constant-time or wiped.

scripts/vectors runs it. Names are the page's.
"""

import hashlib
import hmac
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from kyber_py.ml_kem import ML_KEM_512, ML_KEM_768
from kyber_py.ml_kem.ml_kem import ML_KEM

IDENTIFIER = b"Taupe v1"
INITIATION, RESPONSE = 0x48, 0x49
A, B = 0, 1
INITIATOR_INDEX, RESPONDER_INDEX = 0x11223344, 0x55667788
MACS = 32


class Refused(Exception):
    """A part that does not verify."""


# Primitives.


def HASH(data: bytes) -> bytes:
    return hashlib.blake2s(data).digest()


def HMAC(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, hashlib.blake2s)


def MAC(key: bytes, data: bytes) -> bytes:
    return hashlib.blake2s(data, key=key, digest_size=16).digest()


def KDF(n: int, key: bytes, data: bytes) -> list[bytes]:
    secret, outputs, last = HMAC(key, data), [], b""
    for i in range(1, n + 1):
        last = HMAC(secret, last + bytes([i]))
        outputs.append(last)
    return outputs


def nonce(counter: int) -> bytes:
    return bytes(4) + counter.to_bytes(8, "little")


def AEAD(key: bytes, counter: int, plaintext: bytes, associated: bytes) -> bytes:
    return ChaCha20Poly1305(key).encrypt(nonce(counter), plaintext, associated)


def AEAD_OPEN(key: bytes, counter: int, ciphertext: bytes, associated: bytes) -> bytes:
    try:
        return ChaCha20Poly1305(key).decrypt(nonce(counter), ciphertext, associated)
    except InvalidTag:
        raise Refused("a ciphertext does not authenticate") from None


def DH_PUBLIC(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def DH(private: bytes, public: bytes) -> bytes:
    # Fails when the result is all zeros.
    return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))


# Suites and keys.


@dataclass(frozen=True)
class Suite:
    name: str
    number: int
    kem: ML_KEM
    kem_name: str
    ek: int
    ct: int
    static: bool  # whether peers have ML-KEM keys, and messages a part B
    sizes: dict[str, int]  # of the page's table

    @property
    def construction(self) -> bytes:
        return f"Noise_IKpsk1+psk2_25519+{self.kem_name}_ChaChaPoly_BLAKE2s {self.name}".encode()

    def header(self, kind: int, part: int, *indices: int) -> bytes:
        return bytes([kind, self.number, part, 0]) + b"".join(i.to_bytes(4, "little") for i in indices)


SUITES = {
    suite.name: suite
    for suite in (
        Suite("hybrid-768", 3, ML_KEM_768, "MLKEM768", 1184, 1088, True,
              {"initiation.a": 1232, "initiation.b": 1232, "response.a": 1180, "response.b": 1164}),
        Suite("hybrid-512", 2, ML_KEM_512, "MLKEM512", 800, 768, True,
              {"initiation.a": 912, "initiation.b": 848, "response.a": 860, "response.b": 844}),
        Suite("hybrid-light", 1, ML_KEM_512, "MLKEM512", 800, 768, False,
              {"initiation.a": 944, "response.a": 860}),
    )
}


@dataclass(frozen=True)
class Public:
    """What a peer is known by: S^pub, EK (empty in hybrid-light) and Id."""

    S: bytes
    EK: bytes
    Id: bytes


class Keys:
    """A peer's own keys: S^priv, and the seed d ‖ z, or nothing in hybrid-light."""

    def __init__(self, suite: Suite, private: bytes, seed: bytes):
        EK, self.dk = suite.kem.key_derive(seed) if seed else (b"", b"")
        S = DH_PUBLIC(private)
        self.S, self.seed = private, seed
        self.public = Public(S, EK, HASH(suite.construction + S + EK))


class Hedge:
    """What a message draws: E^priv, d, z and coins."""

    E, D, Z, CT1, CT2, CT3 = (bytes([purpose]) for purpose in range(1, 7))

    def __init__(self, keys: Keys, H: bytes, Q: bytes, timestamp: bytes, generator: Iterator[bytes]):
        sigma = HMAC(keys.S, b"Taupe v1 hedge" + keys.seed)
        self.context, self.generator = HMAC(sigma, H + Q + timestamp), generator

    def draw(self, purpose: bytes) -> bytes:
        return HMAC(self.context, purpose + next(self.generator))


# The handshake.


class Handshake:
    """C and H, and what both sides do with them."""

    def __init__(self, suite: Suite, Q: bytes, responder: Public):
        self.suite, self.Q = suite, Q
        self.C = HASH(suite.construction)
        self.H = HASH(HASH(self.C + IDENTIFIER) + responder.Id)

    def mix_hash(self, data: bytes) -> None:
        self.H = HASH(self.H + data)

    def mix_key(self, data: bytes) -> None:
        (self.C,) = KDF(1, self.C, data)

    def mix_key_and_get(self, data: bytes) -> bytes:
        self.C, k = KDF(2, self.C, data)
        return k

    def mix_preshared_key(self) -> bytes:
        self.C, t, k = KDF(3, self.C, self.Q)
        self.mix_hash(t)
        return k

    def mix_preshared_key_for_two(self) -> bytes:
        self.C, t, k, self.m = KDF(4, self.C, self.Q)
        self.mix_hash(t)
        return k

    def with_macs(self, part: bytes) -> bytes:
        return part + MAC(self.m, part) + bytes(16)

    def without_macs(self, part: bytes) -> bytes:
        body = part[:-MACS]
        if part != self.with_macs(body):
            raise Refused("the MACs of a part of the response are others")
        return body

    def seal(self, k: bytes, plaintext: bytes) -> bytes:
        sealed = AEAD(k, 0, plaintext, self.H)
        self.mix_hash(sealed)
        return sealed

    def open(self, k: bytes, sealed: bytes) -> bytes:
        plaintext = AEAD_OPEN(k, 0, sealed, self.H)
        self.mix_hash(sealed)
        return plaintext

    def tag(self) -> bytes:
        tag = MAC(self.mix_key_and_get(b""), self.H)[:8]
        self.mix_hash(tag)
        return tag

    def encapsulate(self, EK: bytes, coins: bytes) -> tuple[bytes, bytes]:
        """(K, ct); the coins are m of FIPS 203's algorithm 17. Checks EK as §7.2 says."""
        return self.suite.kem._encaps_internal(EK, coins)

    def session(self) -> tuple[bytes, bytes]:
        """The keys with which the initiator and the responder send."""
        to_responder, to_initiator = KDF(2, self.C, self.H)
        return to_responder, to_initiator


class Fields:
    """A part, from its beginning; refuses one of another length."""

    def __init__(self, part: bytes):
        self.rest = part

    def take(self, length: int) -> bytes:
        taken, self.rest = self.rest[:length], self.rest[length:]
        if len(taken) < length:
            raise Refused("a part is too short")
        return taken

    def header(self, expected: bytes) -> bytes:
        if (header := self.take(len(expected))) != expected:
            raise Refused(f"a part begins with {header.hex()}, not {expected.hex()}")
        return header

    def end(self) -> None:
        if self.rest:
            raise Refused(f"a part is too long by {len(self.rest)} bytes")


class Initiator(Handshake):
    def __init__(self, suite: Suite, Q: bytes, keys: Keys, peer: Public):
        super().__init__(suite, Q, peer)
        self.keys, self.peer = keys, peer

    def initiation(self, timestamp: bytes, generator: Iterator[bytes]) -> list[bytes]:
        suite, keys, peer = self.suite, self.keys, self.peer
        header = suite.header(INITIATION, A, INITIATOR_INDEX)
        self.mix_hash(header)
        hedge = Hedge(keys, self.H, self.Q, timestamp, generator)
        self.E = hedge.draw(Hedge.E)
        EK_e, self.dk_e = suite.kem.key_derive(hedge.draw(Hedge.D) + hedge.draw(Hedge.Z))

        E_pub = DH_PUBLIC(self.E)
        self.mix_key(E_pub)
        self.mix_hash(E_pub)
        self.mix_key(DH(self.E, peer.S))
        if suite.static:
            K1, kem = self.encapsulate(peer.EK, hedge.draw(Hedge.CT1))
        else:
            K1, kem = b"", EK_e
        self.mix_hash(kem)
        identity = self.seal(self.mix_key_and_get(K1), keys.public.Id[:28])
        self.mix_hash(keys.public.Id)
        self.mix_key(DH(keys.S, peer.S))
        part_a = header + E_pub + kem + identity + self.seal(self.mix_preshared_key_for_two(), timestamp)
        if not suite.static:
            return [part_a]

        header = suite.header(INITIATION, B, INITIATOR_INDEX)
        self.mix_hash(header)
        self.mix_hash(EK_e)
        return [part_a, header + EK_e + self.tag()]

    def finish(self, response: list[bytes]) -> tuple[bytes, bytes]:
        """Reads a response and gives the session's keys."""
        suite, keys = self.suite, self.keys
        part = Fields(self.without_macs(response[0]))
        self.mix_hash(part.header(suite.header(RESPONSE, A, RESPONDER_INDEX, INITIATOR_INDEX)))
        E_r = part.take(32)
        self.mix_key(E_r)
        self.mix_hash(E_r)
        self.mix_key(DH(self.E, E_r))
        self.mix_key(DH(keys.S, E_r))
        ct2 = part.take(suite.ct)
        self.mix_hash(ct2)
        K2 = suite.kem.decaps(self.dk_e, ct2)
        if suite.static:
            self.open(self.mix_key_and_get(K2), part.take(16))
            part.end()
            part = Fields(self.without_macs(response[1]))
            self.mix_hash(part.header(suite.header(RESPONSE, B, RESPONDER_INDEX, INITIATOR_INDEX)))
            ct3 = self.open(self.mix_key_and_get(b""), part.take(suite.ct + 16))
            self.mix_key(suite.kem.decaps(keys.dk, ct3))
        else:
            self.mix_key(K2)
        self.open(self.mix_preshared_key(), part.take(16))
        part.end()
        return self.session()


class Responder(Handshake):
    def __init__(self, suite: Suite, Q: bytes, keys: Keys, peer: Public):
        super().__init__(suite, Q, keys.public)
        self.keys, self.peer = keys, peer

    def read(self, initiation: list[bytes]) -> bytes:
        """Reads an initiation and gives its timestamp."""
        suite, keys, peer = self.suite, self.keys, self.peer
        part = Fields(initiation[0])
        self.mix_hash(part.header(suite.header(INITIATION, A, INITIATOR_INDEX)))
        self.E_i = part.take(32)
        self.mix_key(self.E_i)
        self.mix_hash(self.E_i)
        self.mix_key(DH(keys.S, self.E_i))
        kem = part.take(suite.ct if suite.static else suite.ek)
        self.mix_hash(kem)
        K1 = suite.kem.decaps(keys.dk, kem) if suite.static else b""
        if self.open(self.mix_key_and_get(K1), part.take(28 + 16)) != peer.Id[:28]:
            raise Refused("the initiation has another identity than the initiator's")
        self.mix_hash(peer.Id)
        self.mix_key(DH(keys.S, peer.S))
        timestamp = self.open(self.mix_preshared_key_for_two(), part.take(12 + 16))
        part.end()
        if not suite.static:
            self.EK_e = kem
            return timestamp

        part = Fields(initiation[1])
        self.mix_hash(part.header(suite.header(INITIATION, B, INITIATOR_INDEX)))
        self.EK_e = part.take(suite.ek)
        self.mix_hash(self.EK_e)
        if part.take(8) != self.tag():
            raise Refused("the tag of part B is another")
        part.end()
        return timestamp

    def response(self, timestamp: bytes, generator: Iterator[bytes]) -> list[bytes]:
        suite, peer = self.suite, self.peer
        hedge = Hedge(self.keys, self.H, self.Q, timestamp, generator)
        header = suite.header(RESPONSE, A, RESPONDER_INDEX, INITIATOR_INDEX)
        self.mix_hash(header)
        E = hedge.draw(Hedge.E)
        E_pub = DH_PUBLIC(E)
        self.mix_key(E_pub)
        self.mix_hash(E_pub)
        self.mix_key(DH(E, self.E_i))
        self.mix_key(DH(E, peer.S))
        K2, ct2 = self.encapsulate(self.EK_e, hedge.draw(Hedge.CT2))
        self.mix_hash(ct2)
        part_a = header + E_pub + ct2
        if not suite.static:
            self.mix_key(K2)
            return [self.with_macs(part_a + self.seal(self.mix_preshared_key(), b""))]

        part_a += self.seal(self.mix_key_and_get(K2), b"")
        header = suite.header(RESPONSE, B, RESPONDER_INDEX, INITIATOR_INDEX)
        self.mix_hash(header)
        k = self.mix_key_and_get(b"")
        K3, ct3 = self.encapsulate(peer.EK, hedge.draw(Hedge.CT3))
        sealed = self.seal(k, ct3)
        self.mix_key(K3)
        part_b = header + sealed + self.seal(self.mix_preshared_key(), b"")
        return [self.with_macs(part_a), self.with_macs(part_b)]


# The vectors.


class Vector(dict[str, bytes]):
    """One handshake of the file, and which of its lines were read and compared."""

    def __init__(self, suite: Suite, line: int):
        super().__init__()
        self.suite, self.line = suite, line
        self.read: set[str] = set()
        self.compared: set[str] = set()

    def input(self, name: str) -> bytes:
        if name not in self:
            raise Refused(f"{name} is missing")
        self.read.add(name)
        return self[name]

    def compare(self, name: str, computed: bytes) -> None:
        given = self.input(name)
        if given != computed:
            at = next((i for i, (x, y) in enumerate(zip(given, computed)) if x != y), min(len(given), len(computed)))
            raise Refused(
                f"{name} differs from byte {at} on: {given[at : at + 16].hex()}… of {len(given)} bytes,"
                f" computed {computed[at : at + 16].hex()}… of {len(computed)}"
            )
        self.compared.add(name)


def read_vectors(path: Path) -> list[Vector]:
    vectors: list[Vector] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = line.strip()
        try:
            if line.startswith("["):
                vectors.append(Vector(SUITES[line.strip("[]")], number))
            elif line and not line.startswith("#"):
                name, value = line.split(" = ")
                if name in vectors[-1]:
                    raise ValueError("given twice")
                vectors[-1][name] = bytes.fromhex(value)
        except (KeyError, IndexError, ValueError) as error:
            sys.exit(f"{path}:{number}: neither a suite in brackets nor 'name = hex': {error}")
    return vectors


def peer_keys(vector: Vector, role: str) -> Keys:
    suite = vector.suite
    seed = vector.input(f"{role}.pq_private_key") if suite.static else b""
    keys = Keys(suite, vector.input(f"{role}.private_key"), seed)
    vector.compare(f"{role}.public_key", keys.public.S)
    if suite.static:
        vector.compare(f"{role}.pq_public_key.blake2s", HASH(keys.public.EK))
    vector.compare(f"{role}.identity", keys.public.Id[:28])
    return keys


def compare_parts(vector: Vector, message: str, computed: list[bytes]) -> list[bytes]:
    names = [f"{message}.a", f"{message}.b"][: len(computed)]
    for name, part in zip(names, computed):
        vector.compare(name, part)
        size, said = len(part) + (MACS if message == "initiation" else 0), vector.suite.sizes[name]
        if size != said:
            raise Refused(f"{name} has {size} bytes with its MACs, the page says {said}")
    return [vector[name] for name in names]


def generator(first: int) -> Iterator[bytes]:
    return (bytes([byte]) * 32 for byte in range(first, 256))


def check(vector: Vector) -> None:
    keys_i, keys_r = peer_keys(vector, "initiator"), peer_keys(vector, "responder")
    Q = vector.input("preshared_key")
    initiator = Initiator(vector.suite, Q, keys_i, keys_r.public)
    responder = Responder(vector.suite, Q, keys_r, keys_i.public)

    initiation = initiator.initiation(vector.input("initiator.timestamp"), generator(0x80))
    initiation = compare_parts(vector, "initiation", initiation)
    vector.compare("initiator.timestamp", responder.read(initiation))

    response = responder.response(vector.input("responder.timestamp"), generator(0xC0))
    response = compare_parts(vector, "response", response)

    for session in responder.session(), initiator.finish(response):
        vector.compare("initiator.sends_with", session[0])
        vector.compare("responder.sends_with", session[1])
    if unknown := vector.keys() - vector.read:
        raise Refused(f"nothing says how to compute {', '.join(sorted(unknown))}")


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("hybrid.txt")
    vectors, wrong = read_vectors(path), 0
    for vector in vectors:
        try:
            check(vector)
        except (Refused, ValueError) as error:
            wrong += 1
            print(f"{path}:{vector.line}: {vector.suite.name}: {error}", file=sys.stderr)
    for name in SUITES.keys() - {vector.suite.name for vector in vectors}:
        wrong += 1
        print(f"{path}: no vector of {name}", file=sys.stderr)
    if wrong:
        sys.exit(1)
    compared = sum(len(vector.compared) for vector in vectors)
    print(f"{len(vectors)} handshakes, {compared} computed values: as docs/post-quantum.md says")


if __name__ == "__main__":
    main()
