//! `genkey`, `genpsk` and `pubkey`.

use super::{Call, Compatibility, Failed, Outcome, console};
use crate::system;
use std::fmt::Write as _;
use std::io::{self, Read};
use taupe_client::{KEY_LEN, PqPrivateKey, PrivateKey, Secret, Suite};
use taupe_uapi::key::Encoding;
use zeroize::Zeroizing;

/// Length of a key in base64.
pub(super) const TEXT: usize = Encoding::Base64.length();

/// Option for an ML-KEM key.
const PQ: &str = "--pq";

/// Length of the seed of ML-KEM keys in base64.
const PQ_TEXT: usize = PqPrivateKey::LEN.div_ceil(3) * 4;

pub(super) fn genkey(call: &Call<'_>) -> Outcome {
    if call.compatibility == Compatibility::Taupe && call.rest == [PQ] {
        return pq_genkey(call);
    }
    let key = random(call)?;
    // The key is clamped, so that it looks the same wherever it is shown.
    let Some(key) = PrivateKey::new(*key) else {
        return Err(call.failed(b"getrandom: Invalid argument", || {
            "the kernel's randomness is all zeros".into()
        }));
    };
    write(key.expose())
}

pub(super) fn genpsk(call: &Call<'_>) -> Outcome {
    write(&*random(call)?)
}

fn pq_genkey(call: &Call<'_>) -> Outcome {
    let mut seed = Secret::zeroed();
    fill_random(seed.expose_mut());
    let Some(seed) = PqPrivateKey::new(seed) else {
        return Err(call.failed(b"", || "the kernel's randomness is all zeros".into()));
    };
    let mut output = console::Output::new();
    let text = Encoding::Base64.encode_pq_private_key(&seed);
    let _ = writeln!(output, "{}", text.as_str());
    output.finish()
}

fn random(call: &Call<'_>) -> Result<Zeroizing<[u8; KEY_LEN]>, Failed> {
    if !call.rest.is_empty() {
        return Err(call.misused());
    }
    let mut key = Zeroizing::new([0; KEY_LEN]);
    fill_random(&mut *key);
    Ok(key)
}

/// Fills a key with random bytes. The key is to be written to standard output.
fn fill_random(key: &mut [u8]) {
    // A file that everyone can read must not contain a key.
    if system::stdout().is_ok_and(|output| system::is_world_accessible(&output)) {
        console::complain(
            b"Warning: writing to world accessible file.\n\
              Consider setting the umask to 077 and trying again.\n",
        );
    }
    taupe_runtime::random::fill(key);
}

/// Prints the public key of a seed on standard input.
fn pq_pubkey(call: &Call<'_>, suite: Suite) -> Outcome {
    let failed = |reason: String| {
        call.failed(b"", || {
            format!(
                "{reason}; expected a private key of {PQ_TEXT} characters, as `taupe genkey --pq` \
                 prints it, and nothing after it"
            )
        })
    };
    let text = match read::<PQ_TEXT>(Stdin, |byte| byte == 0 || is_blank(byte)) {
        Ok(Some(Ok(text))) => text,
        Ok(Some(Err(Trailing(_)))) => {
            return Err(failed("there is more than a key on standard input".into()));
        }
        Ok(None) => {
            return Err(failed(
                "standard input is empty, or shorter than a post-quantum key".into(),
            ));
        }
        Err(error) => return Err(failed(format!("standard input cannot be read: {error}"))),
    };
    let seed = str::from_utf8(&*text).map_err(|_| failed("standard input is not text".into()))?;
    let seed = Encoding::Base64.pq_private_key(seed);
    let seed = seed.map_err(|error| failed(error.to_string()))?;
    let seed = seed.ok_or_else(|| failed("the key is all zeros".into()))?;
    let key = taupe_client::pq_public_key(&seed, suite);
    let text = Encoding::Base64.encode_pq_public_key(&key);
    console::print(format!("{text}\n").into_bytes())
}

/// Returns the suite in the arguments of `pubkey`. `None` for a key of X25519.
fn wanted_suite(call: &Call<'_>) -> Result<Option<Suite>, Failed> {
    let words: Vec<_> = call.rest.iter().map(|word| word.to_str()).collect();
    let suite = match (call.compatibility, words.as_slice()) {
        (_, []) => return Ok(None),
        (Compatibility::Taupe, [Some(PQ)]) => return Ok(Some(Suite::Hybrid768)),
        (Compatibility::Taupe, [Some(PQ), Some("--suite"), Some(suite)]) => suite,
        (Compatibility::Taupe, [Some(PQ), Some(word)]) if word.starts_with("--suite=") => {
            word.trim_start_matches("--suite=")
        }
        _ => return Err(call.misused()),
    };
    match Suite::ALL.into_iter().find(|one| one.name() == suite) {
        Some(suite @ (Suite::Hybrid768 | Suite::Hybrid512)) => Ok(Some(suite)),
        Some(Suite::Light) => Err(call.failed(b"", || {
            "hybrid-light has no keys; write PostQuantum = require into the section of the peer, \
             without PqPublicKey"
                .into()
        })),
        None => Err(call.failed(b"", || {
            format!("{suite:?} is not a suite; expected hybrid-768 or hybrid-512")
        })),
    }
}

pub(super) fn pubkey(call: &Call<'_>) -> Outcome {
    if let Some(suite) = wanted_suite(call)? {
        return pq_pubkey(call, suite);
    }
    let failed = |wg: &str, taupe: &str| {
        let program = call.program.as_encoded_bytes();
        let wg = [program, b": ", wg.as_bytes()].concat();
        call.failed(&wg, || taupe.to_owned())
    };
    let key = match read::<TEXT>(Stdin, |byte| byte == 0 || is_blank(byte)) {
        Ok(Some(Ok(key))) => key,
        Ok(Some(Err(Trailing(_)))) => {
            return Err(failed(
                "Trailing characters found after key",
                "there is more than a key on standard input; expected a private key of 44 \
                 characters, as `taupe genkey` prints it, and nothing after it (for a key of `taupe \
                 genkey --pq`, use `taupe pubkey --pq`)",
            ));
        }
        Ok(None) => {
            return Err(failed(
                "Key is not the correct length or format",
                "standard input is empty, or shorter than a key; expected a private key of 44 \
                 characters, as `taupe genkey` prints it",
            ));
        }
        Err(error) => {
            return Err(failed(
                "Key is not the correct length or format",
                &format!("standard input cannot be read: {error}"),
            ));
        }
    };
    let Some(key) = bytes(&key) else {
        return Err(failed(
            "Key is not the correct length or format",
            "standard input is not a key; expected 43 base64 digits and one `=`",
        ));
    };
    write(&taupe_client::public_key(&key).0)
}

/// A byte after a key that is no blank.
pub(super) struct Trailing(pub(super) u8);

/// Reads the text of one key, after which bytes may follow for which `is_blank` is true. Returns
/// `None` if there are too few bytes for a key. Reads no more than necessary.
pub(super) fn read<const LENGTH: usize>(
    mut source: impl Read,
    is_blank: fn(u8) -> bool,
) -> io::Result<Option<Result<Zeroizing<[u8; LENGTH]>, Trailing>>> {
    let mut text = Zeroizing::new([0; LENGTH]);
    if fill(&mut source, &mut *text)? < LENGTH {
        return Ok(None);
    }
    let mut block = Zeroizing::new([0; 64]);
    loop {
        let count = fill(&mut source, &mut *block)?;
        let more = block.get(..count).unwrap_or_default();
        let odd = more.iter().find(|byte| !is_blank(**byte));
        if let Some(odd) = odd {
            return Ok(Some(Err(Trailing(*odd))));
        }
        if more.is_empty() {
            return Ok(Some(Ok(text)));
        }
    }
}

/// Fills a buffer as far as the source has data.
pub(super) fn fill(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut count = 0;
    while let Some(rest) = buffer.get_mut(count..).filter(|rest| !rest.is_empty()) {
        match source.read(rest) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

/// Checks for the blanks of `isspace(3)`.
pub(super) fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// Decodes a key without clamping it.
pub(super) fn bytes(text: &[u8; TEXT]) -> Option<Zeroizing<[u8; KEY_LEN]>> {
    let text = str::from_utf8(text).ok()?;
    let key = Encoding::Base64.preshared_key(text).ok()?;
    Some(Zeroizing::new(*key.expose()))
}

/// Standard input without the buffer of the standard library, which would keep a copy of the key.
struct Stdin;

impl Read for Stdin {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        system::stdin()?.read(buffer)
    }
}

fn write(key: &[u8; KEY_LEN]) -> Outcome {
    let mut output = console::Output::new();
    let _ = writeln!(output, "{}", Encoding::Base64.encode(key).as_str());
    output.finish()
}
