//! `genkey`, `genpsk` and `pubkey`.

use crate::compare::{Call, Comparison, Program, with_keys};
use base64ct::{Base64, Encoding as _};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use taupe_lab::sandbox::scratch;
use taupe_lab::{Error, Result, ensure};

pub(crate) fn keys() -> Result<()> {
    let mut comparison = Comparison::new("keys");
    let inputs = [
        "",
        "x",
        "{K1}",
        "{K1}\n",
        "{K1}\n\n \t\r\u{b}\u{c}",
        "{K1}\nx",
        "{K1}x",
        "{K1}{K1}",
        " {K1}",
        "\n",
        "\n{K1}",
        "WFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFg",
        "WFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFZ=",
        "WFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWF==",
        "WFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWF-=",
        // Neither of these is clamped.
        "{P1}",
        "{P2}",
        "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        "//////////////////////////////////////////8=",
    ];
    for input in inputs {
        let call = Call::new(&["pubkey"]).input(with_keys(input).as_bytes());
        comparison.call(&call)?;
    }
    comparison.call(&Call::new(&["pubkey"]).input(&[0xff; 44]))?;
    comparison.call(&Call::new(&["pubkey"]).input(&[0; 45]))?;
    // Debian's accepts Taupe's keys, and computes the same public key.
    let mut seen = BTreeSet::new();
    for verb in ["genkey", "genpsk"] {
        for _ in 0..20 {
            let output = Call::new(&[verb]).run(Program::Taupe)?;
            ensure!(
                output.status == Some(0) && output.err().is_empty(),
                "{output}"
            );
            let text = output.out();
            ensure!(
                text.len() == 45 && text.ends_with('\n'),
                "{verb}: {} bytes",
                text.len()
            );
            let key = Base64::decode_vec(text.trim_end())
                .map_err(|error| Error::unmet(format!("{verb}: {error}")))?;
            let clamped = key.first().is_some_and(|byte| byte & 7 == 0)
                && key.last().is_some_and(|byte| byte & 0xc0 == 0x40);
            ensure!(
                clamped || verb == "genpsk",
                "genkey makes a key that is not clamped"
            );
            ensure!(seen.insert(key), "{verb} makes the same key twice");
            comparison.call(&Call::new(&["pubkey"]).input(text.as_bytes()))?;
        }
    }
    comparison.finish()
}

/// The warning depends on the mode of the file to which a key is written.
pub(crate) fn shared_files() -> Result<()> {
    let path = scratch("key");
    for mode in [0o600, 0o640, 0o644, 0o604, 0o601, 0o602, 0o660, 0o666] {
        for verb in ["genkey", "genpsk", "pubkey"] {
            let call = Call::new(&[verb]).input(with_keys("{K1}").as_bytes());
            let mut output = Vec::new();
            for program in [Program::Debian, Program::Taupe] {
                let file = File::create(&path).map_err(Error::io("key"))?;
                fs::set_permissions(&path, fs::Permissions::from_mode(mode))
                    .map_err(Error::io("key"))?;
                output.push(call.run_into(program, file.into())?);
                let length = fs::metadata(&path).map_err(Error::io("key"))?.len();
                ensure!(length == 45, "{verb} writes {length} bytes");
            }
            let equal = output.windows(2).all(|two| two.first() == two.last());
            ensure!(
                equal,
                "{mode:o}: {}",
                output.iter().map(ToString::to_string).collect::<String>()
            );
            let shared = mode & 0o007 != 0 && verb != "pubkey";
            let warned = output
                .iter()
                .all(|output| output.err().contains("world accessible"));
            ensure!(warned == shared, "{verb} to a file of mode {mode:o}");
        }
    }
    // A terminal, a pipe or a device causes no warning.
    let null = || File::create("/dev/null").map_err(Error::io("/dev/null"));
    for program in [Program::Debian, Program::Taupe] {
        let output = Call::new(&["genkey"]).run_into(program, null()?.into())?;
        ensure!(output.err().is_empty(), "{output}");
    }
    // Debian's does not report a key that it could not write.
    let full = || File::create("/dev/full").map_err(Error::io("/dev/full"));
    let output = Call::new(&["genkey"]).run_into(Program::Taupe, full()?.into())?;
    ensure!(
        output.status == Some(1) && output.err().contains("No space left"),
        "{output}"
    );
    Ok(())
}
