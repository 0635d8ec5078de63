//! A virtual machine that runs Debian's kernel, for the WireGuard inside it.
//!
//! The processor is emulated, so that it runs wherever QEMU does: user space
//! is up after about two seconds, and a tunnel carries some 100 Mbit/s. It is
//! there to be talked to, not to be measured.
//!
//! The guest's `eth0` is at the other end of a TAP interface of the [`Host`]
//! that it is attached to. Inside are `wg`, `ip`, dash and busybox's applets
//! (`ping`, `nc`, `sha256sum`); [`Guest::run`] runs scripts of them.

mod image;

pub use image::install;

use crate::error::{Error, Result};
use crate::host::Host;
use crate::process::{Output, Process, uptime, wait_until};
use crate::sandbox::scratch;
use base64ct::{Base64, Encoding};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long booting may take where six tests share two processors; alone on
/// one it takes two seconds.
const BOOT: Duration = Duration::from_secs(60);

/// How long the guest may take beyond what a script is allowed, before it is
/// given up.
const GRACE: Duration = Duration::from_secs(20);

/// A running virtual machine. It is gone when this is dropped.
#[derive(Debug)]
pub struct Guest {
    name: String,
    agent: Mutex<BufReader<UnixStream>>,
    // Dropped last: the log that it leaves holds the guest's console.
    _qemu: Process,
}

impl Guest {
    /// Boots a guest at the end of a new TAP interface of `host`.
    ///
    /// The interface, called `tap`, is up and has no addresses; the guest's
    /// `eth0` is up and has `addresses`, written with their prefix length and
    /// usable at once.
    ///
    /// # Errors
    ///
    /// Those of [`install`]; [`Error::Command`] when the interface's name is
    /// taken; [`Error::Timeout`] when the guest is not up within a minute.
    pub fn boot(host: &Host, tap: &str, addresses: &[&str]) -> Result<Self> {
        let image = install()?;
        let name = format!("guest-{}-{tap}", host.name());
        host.ip(&["tuntap", "add", "name", tap, "mode", "tap"])?;
        host.ip(&["link", "set", tap, "up"])?;

        let socket = scratch(&name).display().to_string();
        let kernel = image.join(image::KERNEL).display().to_string();
        let initramfs = image.join(image::INITRAMFS).display().to_string();
        let agent = format!("socket,id=agent,path={socket},server=on,wait=off");
        let network = format!("tap,id=network,ifname={tap},script=no,downscript=no");
        // The PC and not the quicker `microvm`: that one has no timer but the
        // PIT, and Linux cannot calibrate its clock by it on a busy machine.
        #[rustfmt::skip]
        let mut qemu = host.spawn(&[
            "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot",
            "-machine", "pc", "-accel", "tcg,tb-size=64", "-cpu", "max", "-smp", "1", "-m", "192",
            "-display", "none", "-serial", "stdio",
            "-kernel", &kernel, "-initrd", &initramfs, "-append", "console=ttyS0 quiet panic=-1",
            "-device", "virtio-serial-pci", "-chardev", &agent,
            "-device", "virtserialport,chardev=agent",
            "-device", "virtio-net-pci,netdev=network,romfile=", "-netdev", &network,
        ])?;

        let start = Instant::now();
        let mut stream = None;
        wait_until("QEMU's start", BOOT, || {
            stream = UnixStream::connect(&socket).ok();
            Ok(stream.is_some() || !qemu.runs()?)
        })?;
        let stream = stream.ok_or_else(|| Error::unmet("QEMU ended at once, see its log"))?;
        let guest = Self {
            name,
            agent: Mutex::new(BufReader::new(stream)),
            _qemu: qemu,
        };
        guest.expect_ready()?;
        eprintln!(
            "{} {}: up after {:?}",
            uptime(),
            guest.name,
            start.elapsed()
        );
        for address in addresses {
            let nodad = if address.contains(':') { "nodad" } else { "" };
            guest.run(&format!("ip address add {address} dev eth0 {nodad}"))?;
        }
        Ok(guest)
    }

    /// Runs a shell script in the guest and waits, 30 seconds at most, for it
    /// to succeed.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] with everything it printed, if its last command
    /// fails; [`Error::Timeout`].
    pub fn run(&self, script: &str) -> Result<Output> {
        self.run_within(Duration::from_secs(30), script)
    }

    /// As [`run`](Self::run), with another limit, in whole seconds.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn run_within(&self, limit: Duration, script: &str) -> Result<Output> {
        eprintln!("{} {}: {script}", uptime(), self.name);
        let start = Instant::now();
        let (status, output) = self
            .ask(limit, script)
            .map_err(|error| self.lost(error, limit + GRACE))?;
        match status {
            0 => Ok(output),
            // Ended by the guest's `timeout`, by SIGTERM or then SIGKILL.
            143 | 137 if start.elapsed() >= limit => Err(Error::Timeout {
                what: format!("end of `{script}` in {}", self.name),
                limit,
            }),
            _ => Err(Error::Command {
                command: script.to_owned(),
                place: self.name.clone(),
                status: format!("exit status {status}"),
                output: output.stderr + &output.stdout,
            }),
        }
    }

    /// One request and its answer, as `guest/init` describes them.
    fn ask(&self, limit: Duration, script: &str) -> io::Result<(u8, Output)> {
        let mut agent = self.agent.lock().unwrap_or_else(PoisonError::into_inner);
        let script = Base64::encode_string(script.as_bytes());
        agent.get_ref().set_read_timeout(Some(limit + GRACE))?;
        agent
            .get_mut()
            .write_all(format!("{} {script}\n", limit.as_secs()).as_bytes())?;

        let head = line(&mut agent)?;
        let numbers: Vec<u32> = head.split(' ').map_while(|n| n.parse().ok()).collect();
        let [status, stdout, stderr] = numbers[..] else {
            return Err(io::Error::other(format!("answer {head:?} makes no sense")));
        };
        let mut text = |length: u32| -> io::Result<String> {
            let mut bytes = Vec::new();
            agent.by_ref().take(length.into()).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        let output = Output {
            stdout: text(stdout)?,
            stderr: text(stderr)?,
        };
        Ok((u8::try_from(status).unwrap_or(u8::MAX), output))
    }

    fn expect_ready(&self) -> Result<()> {
        let mut agent = self.agent.lock().unwrap_or_else(PoisonError::into_inner);
        let ready = agent.get_ref().set_read_timeout(Some(BOOT));
        let ready = ready.and_then(|()| line(&mut agent));
        match ready.map_err(|error| self.lost(error, BOOT))?.as_str() {
            "ready" => Ok(()),
            other => Err(Error::Malformed {
                what: format!("{}'s first word", self.name),
                why: format!("it is {other:?}"),
            }),
        }
    }

    fn lost(&self, source: io::Error, limit: Duration) -> Error {
        match source.kind() {
            io::ErrorKind::WouldBlock => Error::Timeout {
                what: format!("any answer of {}", self.name),
                limit,
            },
            _ => Error::Io {
                what: format!("{} (its console is in its log)", self.name),
                source,
            },
        }
    }
}

/// A line without its end; that the guest ended is an error.
fn line(agent: &mut BufReader<UnixStream>) -> io::Result<String> {
    let mut line = String::new();
    agent.read_line(&mut line)?;
    match line.strip_suffix('\n') {
        Some(line) => Ok(line.to_owned()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
