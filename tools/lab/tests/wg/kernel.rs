//! The kernel's devices, in a virtual machine.

use crate::compare::{Comparison, Outcome, with_keys};
use crate::show::FIELDS;
use base64ct::{Base64, Encoding as _};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use taupe_lab::guest::Guest;
use taupe_lab::host::{Host, add_address};
use taupe_lab::peers::{Implementation, Place as _};
use taupe_lab::sandbox::scratch;
use taupe_lab::{Error, Result, ensure};

const PROGRAM: &str = "/tmp/taupe/wg";

/// A guest that has both programs.
struct Machine {
    guest: Guest,
}

impl Machine {
    fn new() -> Result<Self> {
        let host = Host::new("a")?;
        let guest = Guest::boot(&host, "tap0", &["192.0.2.2/24"])?;
        add_address(&host, "tap0", "192.0.2.1/24")?;
        let archive = archive()?;
        let listener =
            host.enter(|| TcpListener::bind("192.0.2.1:7000").map_err(Error::io("tap0")))?;
        std::thread::spawn(move || {
            if let Ok((mut stream, _)) = listener.accept() {
                let _ = stream.write_all(&archive);
            }
        });
        let fetch = "mkdir -p /tmp/taupe && nc 192.0.2.1 7000 < /dev/null | tar -x -C /tmp/taupe";
        guest.run_within(Duration::from_secs(120), fetch)?;
        let machine = Self { guest };
        let output = machine.wg(true, &["version"])?;
        ensure!(output.out().contains("Taupe"), "{output}");
        Ok(machine)
    }

    /// Runs `wg WORDS`, with keys for `{K1}` and the like.
    fn wg(&self, taupe: bool, words: &[&str]) -> Result<Outcome> {
        self.wg_with(taupe, "", words)
    }

    fn wg_with(&self, taupe: bool, environment: &str, words: &[&str]) -> Result<Outcome> {
        let words: Vec<_> = words
            .iter()
            .map(|word| format!("'{}'", with_keys(word).replace('\'', r"'\''")))
            .collect();
        let words = words.join(" ");
        let path = match taupe {
            true => "PATH=/tmp/taupe:$PATH LD_LIBRARY_PATH=/tmp/taupe",
            false => "",
        };
        let script =
            format!("{environment} {path} wg {words} 2> /tmp/stderr; echo $?; cat /tmp/stderr >&2");
        let output = self.guest.run(&script)?;
        let text = output.stdout.trim_end_matches('\n');
        let (stdout, status) = match text.rfind(|c: char| !c.is_ascii_digit()) {
            Some(end) => text.split_at(end + 1),
            None => ("", text),
        };
        Ok(Outcome {
            status: status.parse().ok(),
            stdout: stdout.as_bytes().to_vec(),
            stderr: output.stderr.into_bytes(),
        })
    }

    fn compare(&self, comparison: &mut Comparison, words: &[&str]) -> Result<()> {
        let (debian, taupe) = (self.wg(false, words)?, self.wg(true, words)?);
        comparison.compare(&words.join(" "), &debian, &taupe);
        Ok(())
    }

    /// Applies the same command to both devices, each with one of the programs, and compares the
    /// resulting states.
    fn compare_effects(&self, comparison: &mut Comparison, words: &[&str]) -> Result<()> {
        let one = |interface: &str, taupe: bool| -> Result<String> {
            let words: Vec<_> = words
                .iter()
                .map(|word| if *word == "IF" { interface } else { word })
                .collect();
            let output = self.wg(taupe, &words)?;
            let dump = self.wg(false, &["show", interface, "dump"])?;
            let file = self.wg(false, &["showconf", interface])?;
            Ok(format!("{output}\n{}{}", dump.out(), file.out()))
        };
        let (debian, taupe) = (one("wgdebian", false)?, one("wgtaupe", true)?);
        comparison.effects(&words.join(" "), &debian, &taupe);
        Ok(())
    }
}

/// Returns an archive with Taupe, without debug information and called `wg`, and its libraries.
fn archive() -> Result<Vec<u8>> {
    let program = Implementation::Taupe.program()?;
    let folder = scratch("guest");
    fs::create_dir_all(&folder).map_err(Error::io("guest"))?;
    let target = folder.join("wg");
    output(
        "strip",
        &[
            "-o",
            &target.display().to_string(),
            &program.display().to_string(),
        ],
    )?;
    let listed = output("ldd", &[&program.display().to_string()])?;
    let listed = String::from_utf8_lossy(&listed).into_owned();
    let libraries: BTreeSet<_> = listed
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
        .collect();
    for library in libraries {
        let name = Path::new(library).file_name().unwrap_or_default();
        fs::copy(library, folder.join(name)).map_err(Error::io(library))?;
    }
    output("tar", &["-c", "-C", &folder.display().to_string(), "."])
}

fn output(program: &str, arguments: &[&str]) -> Result<Vec<u8>> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(Error::io(program))?;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{program}: {error}");
    Ok(output.stdout)
}

pub(crate) fn devices() -> Result<()> {
    let mut comparison = Comparison::new("kernel");
    let machine = Machine::new()?;
    let guest = &machine.guest;
    ensure!(
        guest.run(&format!("test -x {PROGRAM}")).is_ok(),
        "no {PROGRAM}"
    );
    // There is no device yet.
    for words in [
        &[][..],
        &["show", "interfaces"],
        &["show", "nosuch"],
        &["show", "lo"],
        &["show", "a-name-that-is-much-too-long"],
        &["show", ""],
        &["showconf", "nosuch"],
        &["set", "nosuch", "listen-port", "5"],
        &["set", "lo", "listen-port", "5"],
        &["setconf", "nosuch", "/dev/null"],
        &["syncconf", "nosuch", "/dev/null"],
    ] {
        machine.compare(&mut comparison, words)?;
    }
    let _devices = [guest.tunnel("wgdebian")?, guest.tunnel("wgtaupe")?];
    shown(&machine, &mut comparison)?;

    for (name, text) in [
        ("private", "{K1}"),
        ("preshared", "{P1}"),
        (
            "small.conf",
            "[Interface]\nPrivateKey={K1}\nFwMark=7\n[Peer]\nPublicKey={P1}\nAllowedIPs=192.0.2.0/24\n",
        ),
        (
            "other.conf",
            "[Interface]\nPrivateKey={K2}\n[Peer]\nPublicKey={P2}\nEndpoint=[fe80::1%eth0]:5\nAllowedIPs=::/0\n",
        ),
    ] {
        guest.run_with_input(&["tee", &format!("/tmp/{name}")], &with_keys(text))?;
    }
    for words in [
        &["set", "IF", "private-key", "/tmp/private"][..],
        &["set", "IF", "fwmark", "0xca6c"],
        &["set", "IF", "peer", "{P1}"],
        &["set", "IF", "peer", "{P1}", "endpoint", "192.0.2.7:1"],
        &[
            "set",
            "IF",
            "peer",
            "{P2}",
            "preshared-key",
            "/tmp/preshared",
        ],
        &[
            "set",
            "IF",
            "peer",
            "{P2}",
            "endpoint",
            "[2001:db8::7]:65535",
            "persistent-keepalive",
            "65535",
            "allowed-ips",
            "10.0.0.0/24,fd00::/64,0.0.0.0/0,::/0,192.0.2.1/32",
        ],
        &[
            "set",
            "IF",
            "peer",
            "{P1}",
            "endpoint",
            "[fe80::1%eth0]:1",
            "allowed-ips",
            "10.0.0.0/24",
        ],
        &[
            "set",
            "IF",
            "peer",
            "{P2}",
            "preshared-key",
            "/dev/null",
            "persistent-keepalive",
            "off",
        ],
        &["set", "IF", "peer", "{P1}", "remove"],
        &["set", "IF", "private-key", "/dev/null", "fwmark", "off"],
        &["setconf", "IF", "/tmp/small.conf"],
        &["addconf", "IF", "/tmp/other.conf"],
        &["syncconf", "IF", "/tmp/small.conf"],
        &["setconf", "IF", "/dev/null"],
    ] {
        machine.compare_effects(&mut comparison, words)?;
        shown(&machine, &mut comparison)?;
    }
    large(&machine, &mut comparison)?;

    // Debian's does not support signs yet.
    let set = |change| {
        let words = ["set", "wgtaupe", "peer", "{P1}", "allowed-ips", change];
        machine.wg(true, &words)
    };
    for change in ["10.1.0.0/16", "+10.2.0.0/16"] {
        let output = set(change)?;
        ensure!(
            output.status == Some(0) && output.err().is_empty(),
            "{output}"
        );
    }
    // Before 6.16 the kernel cannot remove an allowed IP: this is reported.
    let output = set("-10.1.0.0/16")?;
    let refusal = "Unable to modify interface: Invalid argument\n";
    ensure!(
        output.status == Some(1) && output.err() == refusal,
        "{output}"
    );
    let networks = machine.wg(false, &["show", "wgtaupe", "allowed-ips"])?;
    let line = with_keys("{P1}\t10.1.0.0/16 10.2.0.0/16\n");
    ensure!(networks.out().contains(&line), "{networks}");
    comparison.finish()
}

fn shown(machine: &Machine, comparison: &mut Comparison) -> Result<()> {
    for words in [
        &[][..],
        &["show", "all"],
        &["show", "wgtaupe"],
        &["show", "interfaces"],
        &["show", "wgtaupe", "dump"],
        &["show", "all", "dump"],
        &["showconf", "wgtaupe"],
    ] {
        machine.compare(comparison, words)?;
    }
    Ok(())
}

/// More than fits into one message, to the kernel and from it.
fn large(machine: &Machine, comparison: &mut Comparison) -> Result<()> {
    let mut file = with_keys("[Interface]\nPrivateKey = {K1}\n");
    for (index, networks) in (1u8..).zip([0, 1, 2000, 0, 3, 75, 76, 77, 78, 500]) {
        let key = Base64::encode_string(&[index; 32]);
        file += &format!("[Peer]\nPublicKey = {key}\nPresharedKey = {key}\n");
        for network in 0..networks {
            let [high, low] = u16::to_be_bytes(network);
            file += &match network % 2 {
                0 => format!("AllowedIPs = 10.{index}.{high}.{low}/32\n"),
                _ => format!("AllowedIPs = fd00:{index}::{network:x}/128\n"),
            };
        }
    }
    for index in 20..120u8 {
        let key = Base64::encode_string(&[index; 32]);
        file += &format!("[Peer]\nPublicKey = {key}\nEndpoint = [2001:db8::{index}]:{index}\n");
    }
    machine
        .guest
        .run_with_input(&["tee", "/tmp/large.conf"], &file)?;
    for verb in ["setconf", "addconf", "syncconf"] {
        machine.compare_effects(comparison, &[verb, "IF", "/tmp/large.conf"])?;
    }
    for field in FIELDS {
        machine.compare(comparison, &["show", "wgtaupe", field])?;
    }
    shown(machine, comparison)
}
