//! `genkey`, `genpsk` and `pubkey`.

use super::{Call, Failed, Outcome, console};
use rustix::fs::{FileType, Mode, fstat};
use std::fmt::Write as _;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt as _;
use taupe_client::{KEY_LEN, PrivateKey};
use taupe_config::key::Encoding;
use zeroize::Zeroizing;

/// How many bytes a key has in base64.
pub(super) const TEXT: usize = Encoding::Base64.length();

pub(super) fn genkey(call: &Call<'_>) -> Outcome {
    let key = random(call)?;
    // Clamped, so that it looks the same wherever it is shown.
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

fn random(call: &Call<'_>) -> Result<Zeroizing<[u8; KEY_LEN]>, Failed> {
    if !call.rest.is_empty() {
        return Err(call.misused());
    }
    // A file that everyone can read is no place for a key.
    let shared = fstat(rustix::stdio::stdout()).is_ok_and(|stat| {
        let mode = Mode::from_raw_mode(stat.st_mode);
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && mode.intersects(Mode::RWXO)
    });
    if shared {
        console::complain(
            b"Warning: writing to world accessible file.\n\
              Consider setting the umask to 077 and trying again.\n",
        );
    }
    let mut key = Zeroizing::new([0; KEY_LEN]);
    taupe_sys::random::fill(&mut *key);
    Ok(key)
}

pub(super) fn pubkey(call: &Call<'_>) -> Outcome {
    if !call.rest.is_empty() {
        return Err(call.misused());
    }
    let failed = |wg: &str, taupe: &str| {
        let program = call.program.as_bytes();
        let wg = [program, b": ", wg.as_bytes()].concat();
        call.failed(&wg, || taupe.to_owned())
    };
    let key = match read(Stdin, |byte| byte == 0 || is_blank(byte)) {
        Ok(Some(Ok(key))) => key,
        Ok(Some(Err(Trailing(_)))) => {
            return Err(failed(
                "Trailing characters found after key",
                "there is more than a key on standard input; expected a private key of 44 \
                 characters, such as `taupe genkey` prints, and nothing after it",
            ));
        }
        Ok(None) => {
            return Err(failed(
                "Key is not the correct length or format",
                "standard input holds nothing, or less than a key; expected a private key of 44 \
                 characters, such as `taupe genkey` prints",
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
            "what stands on standard input is not a key; expected 43 base64 digits and one `=`",
        ));
    };
    write(&taupe_client::public_key(&key).0)
}

/// A byte that is neither of a key nor a blank after it.
pub(super) struct Trailing(pub(super) u8);

/// Reads the text of one key, after which there may be what `is_blank` says;
/// `None` when there are too few bytes for one. Reads no more than it has to hold.
pub(super) fn read(
    mut source: impl Read,
    is_blank: fn(u8) -> bool,
) -> io::Result<Option<Result<Zeroizing<[u8; TEXT]>, Trailing>>> {
    let mut text = Zeroizing::new([0; TEXT]);
    if fill(&mut source, &mut *text)? < TEXT {
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

/// Fills a buffer as far as there is something to read.
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

/// The blanks of `isspace(3)`.
pub(super) fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// The key that a text stands for, as it is: not clamped.
pub(super) fn bytes(text: &[u8; TEXT]) -> Option<Zeroizing<[u8; KEY_LEN]>> {
    let text = str::from_utf8(text).ok()?;
    let key = Encoding::Base64.preshared_key(text).ok()?;
    Some(Zeroizing::new(*key.expose()))
}

/// Standard input, without the buffer that the standard library would leave
/// the key in.
struct Stdin;

impl Read for Stdin {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(rustix::stdio::stdin(), buffer)?)
    }
}

fn write(key: &[u8; KEY_LEN]) -> Outcome {
    let mut output = console::Output::new();
    let _ = writeln!(output, "{}", Encoding::Base64.encode(key).as_str());
    output.finish()
}
