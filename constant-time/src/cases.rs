//! The operations.

use crate::{Case, classify, declassify};
use std::hint::black_box;
use taupe_crypto::{
    AWS_LC, AWS_LC_AVX2, AWS_LC_SINGLE, Agreement, BASE_POINT, KemParameters, PORTABLE, Packet,
    Provider, Secret, TAG_LEN,
};
use taupe_packet::checksum::Sum;
use taupe_uapi::key::Encoding;

const PROVIDERS: [&Provider; 4] = [&AWS_LC, &AWS_LC_SINGLE, &AWS_LC_AVX2, &PORTABLE];

/// Lengths of packets: around blocks of 16 and 64 bytes, and a full one.
const LENGTHS: [usize; 8] = [0, 1, 16, 63, 64, 128, 1000, 1420];

pub(crate) fn all() -> Vec<Case> {
    let mut cases = planted();
    for provider in PROVIDERS {
        cases.extend(x25519(provider));
        cases.extend(ml_kem(provider));
        cases.extend(aead(provider));
        cases.extend(hashes(provider));
    }
    cases.push(internet_checksum());
    cases.extend(comparisons());
    cases.extend(keys_as_text());
    cases
}

fn case(name: impl Into<String>, run: impl Fn() + 'static) -> Case {
    Case {
        name: name.into(),
        run: Box::new(run),
        leaks: false,
    }
}

/// Bytes that look random.
fn bytes<const N: usize>(seed: u8) -> [u8; N] {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ u64::from(seed);
    std::array::from_fn(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    })
}

fn secret<const N: usize>(seed: u8) -> Secret<N> {
    let secret = Secret::new(bytes(seed));
    classify(secret.expose());
    secret
}

/// Operations that leak. Each kind must be found.
fn planted() -> Vec<Case> {
    const TABLE: [u8; 256] = [7; 256];
    let branch = || {
        let key = secret::<32>(1);
        if black_box(key.expose()[3]) & 1 == 1 {
            black_box(2);
        }
    };
    let address = || {
        let (key, table) = (secret::<32>(1), black_box(TABLE));
        black_box(table[usize::from(black_box(key.expose()[3]))]);
    };
    let early_end = || {
        let (a, b) = (secret::<32>(1), secret::<32>(2));
        let same = a.expose().iter().zip(b.expose());
        black_box(
            same.take_while(|(a, b)| black_box(a) == black_box(b))
                .count(),
        );
    };
    let leaks: [(&str, fn()); 3] = [
        ("planted branch", branch),
        ("planted address", address),
        ("planted comparison that ends early", early_end),
    ];
    let leaking = |(name, run): (&str, fn())| Case {
        leaks: true,
        ..case(name, run)
    };
    leaks.into_iter().map(leaking).collect()
}

fn x25519(provider: &'static Provider) -> Vec<Case> {
    let name = provider.name;
    let public = move || {
        let private = secret::<32>(1);
        black_box(provider.dh.public(private.expose()));
    };
    let agree = move || {
        let private = secret::<32>(1);
        black_box(provider.dh.agree(private.expose(), &BASE_POINT));
    };
    let mut cases = vec![
        case(format!("{name}: X25519 public key"), public),
        case(format!("{name}: X25519"), agree),
    ];
    for count in [2, 8] {
        let agree_many = move || {
            let privates: Vec<Secret<32>> = (0..count).map(secret::<32>).collect();
            let agreements: Vec<Agreement<'_>> = privates
                .iter()
                .map(|private| Agreement {
                    private: private.expose(),
                    public: &BASE_POINT,
                })
                .collect();
            let mut shared: Vec<_> = privates.iter().map(|_| None).collect();
            provider.dh.agree_many(&agreements, &mut shared);
            black_box(&shared);
        };
        cases.push(case(format!("{name}: X25519, {count} at once"), agree_many));
    }
    cases
}

fn ml_kem(provider: &'static Provider) -> Vec<Case> {
    let mut cases = Vec::new();
    for parameters in [KemParameters::MlKem512, KemParameters::MlKem768] {
        let name = format!("{}: {parameters:?}", provider.name);
        let make = move || {
            black_box(provider.kem.decapsulation_key(parameters, &secret(1)));
        };
        let encapsulate = move || {
            let seed = Secret::new(bytes(1));
            let key = provider.kem.decapsulation_key(parameters, &seed);
            let public = key.encapsulation_key();
            let public = provider.kem.encapsulation_key(parameters, &public);
            let public = public.expect("a key");
            black_box(public.encapsulate(&secret(2)));
        };
        let decapsulate = move |is_valid: bool| {
            let seed = secret(1);
            let key = provider.kem.decapsulation_key(parameters, &seed);
            declassify(seed.expose());
            let public = key.encapsulation_key();
            declassify(&*public);
            let public = provider.kem.encapsulation_key(parameters, &public);
            let public = public.expect("a key");
            let (mut ciphertext, _) = public.encapsulate(&Secret::new(bytes(2)));
            declassify(&*ciphertext);
            ciphertext[5] ^= u8::from(!is_valid);
            black_box(key.decapsulate(&ciphertext)).expect("the right length");
        };
        cases.extend([
            case(format!("{name}, key generation"), make),
            case(format!("{name}, encapsulation"), encapsulate),
            case(format!("{name}, decapsulation"), move || decapsulate(true)),
            case(
                format!("{name}, decapsulation of a wrong ciphertext"),
                move || {
                    decapsulate(false);
                },
            ),
        ]);
    }
    cases
}

fn aead(provider: &'static Provider) -> Vec<Case> {
    let name = provider.name;
    let packets = move |is_open: bool| {
        let key = provider.aead.key(&secret(1));
        let mut data: Vec<Vec<u8>> = LENGTHS
            .iter()
            .map(|length| vec![9; length + TAG_LEN])
            .collect();
        if !is_open {
            data.iter().for_each(|data| classify(&**data));
        }
        let batch = |data: &'_ mut [Vec<u8>], run: &mut dyn FnMut(&mut [Packet<'_>])| {
            let mut packets: Vec<Packet<'_>> = (0..)
                .zip(data)
                .map(|(counter, data)| Packet { counter, data })
                .collect();
            run(&mut packets);
        };
        batch(&mut data, &mut |packets| key.seal(packets));
        if !is_open {
            black_box(&data);
            return;
        }
        // What was sent is public.
        data.iter().for_each(|data| declassify(&**data));
        data[3][2] ^= 1;
        let mut authentic = [false; LENGTHS.len()];
        batch(&mut data, &mut |packets| key.open(packets, &mut authentic));
        declassify(&authentic);
        assert!(
            authentic.iter().filter(|is| !**is).count() == 1,
            "{authentic:?}"
        );
    };
    let single = move |extended: bool| {
        let (key, ad) = (secret(1), bytes::<32>(4));
        let mut data = bytes::<48>(3);
        classify(&data[..32]);
        match extended {
            false => provider.aead.seal_with(&key, 7, &ad, &mut data),
            true => provider.aead.xseal_with(&key, &bytes(8), &ad, &mut data),
        }
        declassify(&data);
        let opened = match extended {
            false => provider.aead.open_with(&key, 7, &ad, &mut data),
            true => provider.aead.xopen_with(&key, &bytes(8), &ad, &mut data),
        };
        black_box(opened).expect("authentic");
    };
    vec![
        case(format!("{name}: sealing a batch"), move || packets(false)),
        case(format!("{name}: opening a batch"), move || packets(true)),
        case(
            format!("{name}: ChaCha20-Poly1305 with associated data"),
            move || {
                single(false);
            },
        ),
        case(format!("{name}: XChaCha20-Poly1305"), move || single(true)),
    ]
}

fn hashes(provider: &'static Provider) -> Vec<Case> {
    let name = provider.name;
    let mac = move || {
        let key = secret::<32>(1);
        black_box(provider.hash.mac(key.expose(), &[&bytes::<116>(2)]));
    };
    let kdf = move || {
        let (key, input) = (secret::<32>(1), secret::<32>(2));
        let mut outputs = [Secret::zeroed(), Secret::zeroed(), Secret::zeroed()];
        provider
            .hash
            .kdf(key.expose(), input.expose(), &mut outputs);
        black_box(&outputs);
    };
    vec![
        case(format!("{name}: keyed BLAKE2s"), mac),
        case(format!("{name}: KDF"), kdf),
    ]
}

/// Packets in clear are secret, and so are their checksums.
fn internet_checksum() -> Case {
    case("Internet checksum", || {
        for length in LENGTHS {
            let packet = vec![9; length];
            classify(&*packet);
            black_box(Sum::ZERO.bytes(&packet).checksum());
        }
    })
}

fn comparisons() -> Vec<Case> {
    let compare = |second: u8| {
        move || {
            black_box(secret::<32>(1) == secret::<32>(second));
        }
    };
    vec![
        case("comparison of equal secrets", compare(1)),
        case("comparison of different secrets", compare(2)),
    ]
}

fn keys_as_text() -> Vec<Case> {
    let mut cases = Vec::new();
    for encoding in [Encoding::Hex, Encoding::Base64] {
        let parse = move || {
            let text = encoding.encode(&bytes(1));
            // `base64ct` computes the length from the last two characters: whether they are `=`.
            let secret = match encoding {
                Encoding::Hex => text.as_str(),
                Encoding::Base64 => text.split_at(encoding.length() - 2).0,
            };
            classify(secret);
            let key = encoding.private_key(&text);
            black_box(key.is_ok());
        };
        let write = move || {
            let key = secret::<32>(1);
            black_box(encoding.encode(key.expose()));
        };
        cases.extend([
            case(format!("{encoding:?}: a private key is parsed"), parse),
            case(format!("{encoding:?}: a private key is written"), write),
        ]);
    }
    cases
}
