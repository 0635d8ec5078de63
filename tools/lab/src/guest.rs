//! A virtual machine that runs Debian's kernel, for the WireGuard inside it.
//!
//! The processor is emulated, so that it runs wherever QEMU does: user space
//! is up after about two seconds, and a tunnel carries some 100 Mbit/s. It is
//! there to be talked to; what is measured inside can be compared only with
//! what else is measured inside.
//!
//! The guest's `eth0` is at the other end of a TAP interface of the [`Host`]
//! that it is attached to. Inside are `wg`, `ip`, dash and busybox's applets
//! (`ping`, `nc`, `sha256sum`); [`Guest::run`] runs scripts of them. The
//! kernel's WireGuard itself is a [`Tunnel`] as any other, made by
//! [`Guest::tunnel`]. A guest can have [`Namespace`]s as the sandbox has hosts,
//! and programs of this machine in it: see [`Equipment`].

mod agent;
mod image;
mod namespace;
mod programs;

pub use image::{Kernel, install, version};
pub use namespace::Namespace;
pub use programs::program;

use crate::error::{Error, Result};
use crate::host::Host;
use crate::peers::{Place, Quirks, Tunnel};
use crate::process::{Output, Process, uptime, wait_until};
use crate::sandbox::scratch;
use agent::Agent;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long booting may take where many tests share few processors; a guest
/// with one for itself takes two seconds.
pub const BOOT: Duration = Duration::from_secs(120);

/// How long a script may take unless it says otherwise.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is said to every kernel.
const KERNEL_OPTIONS: &str = "console=ttyS0 quiet panic=-1 no_timer_check noapictimer";

/// What a guest is made of.
#[derive(Debug, Clone)]
pub struct Equipment {
    /// How many processors it has.
    pub processors: u8,
    /// Whose kernel.
    pub kernel: Kernel,
    /// How much memory, in MiB.
    pub memory: u16,
    /// What it takes the time from.
    pub clock: Clock,
    /// Programs of this machine that it brings along, with their libraries:
    /// [`program`] tells where they are inside.
    pub programs: Vec<PathBuf>,
}

impl Default for Equipment {
    fn default() -> Self {
        Self {
            processors: 1,
            kernel: Kernel::default(),
            memory: 192,
            clock: Clock::Hpet,
            programs: Vec::new(),
        }
    }
}

/// What a guest takes the time from.
///
/// Linux must not measure one clock by another while it boots: on a busy machine
/// it is paused in between, and then its time runs at any speed, or it finds
/// that it has no timer. So it takes interrupts from the HPET, whose rate is
/// known, and does not check. (QEMU's quicker machine `microvm` has no such
/// clock.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// The HPET: always right, but programs read it by a system call.
    Hpet,
    /// The processor's counter, which programs read without a system call, as
    /// they do on real machines. Linux measures its rate by the HPET, so that
    /// the seconds of a busy machine may be wrong by some percent.
    Tsc,
}

impl Clock {
    const fn option(self) -> &'static str {
        match self {
            Self::Hpet => "clocksource=hpet",
            Self::Tsc => "clocksource=tsc tsc=reliable",
        }
    }
}

/// A running virtual machine.
///
/// It is gone when the last handle to it, this or a [`Tunnel`] in it, is
/// dropped. Its console is in the log of QEMU, which a failed test prints.
#[derive(Debug, Clone)]
pub struct Guest {
    name: String,
    machine: Arc<Machine>,
}

#[derive(Debug)]
struct Machine {
    agent: Mutex<Agent>,
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
    /// Those of [`install`], which should have been called before, outside the
    /// sandbox; [`Error::Command`] when the interface's name is taken;
    /// [`Error::Timeout`] when the guest is not up within [`BOOT`].
    pub fn boot(host: &Host, tap: &str, addresses: &[&str]) -> Result<Self> {
        Self::boot_with(host, tap, addresses, &Equipment::default())
    }

    /// As [`boot`](Self::boot), with other equipment.
    ///
    /// # Errors
    ///
    /// As [`boot`](Self::boot); [`Error::Io`] when a program cannot be read.
    pub fn boot_with(
        host: &Host,
        tap: &str,
        addresses: &[&str],
        equipment: &Equipment,
    ) -> Result<Self> {
        let image = equipment.kernel.install()?;
        let name = format!("guest-{}-{tap}", host.name());
        host.ip(&["tuntap", "add", "name", tap, "mode", "tap"])?;
        host.ip(&["link", "set", tap, "up"])?;

        let start = Instant::now();
        let socket = scratch(&name).display().to_string();
        let kernel = image.join(image::KERNEL).display().to_string();
        let mut initramfs = image.join(image::INITRAMFS);
        if !equipment.programs.is_empty() {
            let packed = scratch(&format!("{name}.initramfs"));
            programs::pack(&initramfs, &equipment.programs, &packed)?;
            initramfs = packed;
        }
        let initramfs = initramfs.display().to_string();
        let options = format!("{KERNEL_OPTIONS} {}", equipment.clock.option());
        let processors = equipment.processors.to_string();
        let memory = equipment.memory.to_string();
        let agent = format!("socket,id=agent,path={socket},server=on,wait=off");
        let network = format!("tap,id=network,ifname={tap},script=no,downscript=no");
        #[rustfmt::skip]
        let mut qemu = host.spawn(&[
            "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot",
            "-machine", "pc", "-accel", "tcg,tb-size=64", "-cpu", "max",
            "-smp", &processors, "-m", &memory, "-display", "none", "-serial", "stdio",
            "-kernel", &kernel, "-initrd", &initramfs, "-append", &options,
            "-device", "virtio-serial-pci", "-chardev", &agent,
            "-device", "virtserialport,chardev=agent",
            "-device", "virtio-net-pci,netdev=network,romfile=", "-netdev", &network,
        ])?;
        let mut stream = None;
        wait_until("QEMU's start", BOOT, || {
            stream = UnixStream::connect(&socket).ok();
            Ok(stream.is_some() || !qemu.runs()?)
        })?;
        let stream = stream.ok_or_else(|| Error::unmet(format!("QEMU: {}", qemu.output())))?;
        let agent = Agent::greet(&name, stream, BOOT)?;
        eprintln!("{} {name}: up after {:?}", uptime(), start.elapsed());

        let machine = Machine {
            agent: Mutex::new(agent),
            _qemu: qemu,
        };
        let guest = Self {
            name,
            machine: Arc::new(machine),
        };
        for address in addresses {
            guest.add_address("eth0", address)?;
        }
        Ok(guest)
    }

    /// A new WireGuard interface of the guest's kernel, yet to be configured.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] when the name is taken.
    pub fn tunnel(&self, interface: &str) -> Result<Tunnel> {
        self.run(&format!("ip link add {interface} type wireguard"))?;
        let quirks = Quirks::default();
        Ok(Tunnel::at("kernel", self.clone(), interface, quirks))
    }

    /// Runs a shell script in the guest and waits, for 30 seconds at most, for
    /// it to succeed.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] with everything it printed, if its last command
    /// fails; [`Error::Timeout`].
    pub fn run(&self, script: &str) -> Result<Output> {
        self.run_within(PATIENCE, script)
    }

    /// As [`run`](Self::run), with another limit, in whole seconds.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn run_within(&self, limit: Duration, script: &str) -> Result<Output> {
        self.execute(limit, script, script)
    }

    /// [`Place::serve_echo`]; `place` precedes the commands.
    fn serve_echo_in(&self, place: &str, address: SocketAddr) -> Result<()> {
        let (ip, port) = (address.ip(), address.port());
        self.run(&format!(
            "{place} nc -ll -p {port} {ip} -e /bin/busybox cat > /dev/null 2>&1 &\n\
             until {place} netstat -lnt | grep -q ':{port} '; do sleep 0.05; done"
        ))
        .map(drop)
    }

    /// In messages the script is called `title`.
    fn execute(&self, limit: Duration, script: &str, title: &str) -> Result<Output> {
        eprintln!("{} {}: {title}", uptime(), self.name);
        let agent = self.machine.agent.lock();
        let mut agent = agent.unwrap_or_else(PoisonError::into_inner);
        let start = Instant::now();
        let (status, output) = agent.ask(limit, script)?;
        match status {
            0 => Ok(output),
            // Ended by the guest's `timeout`, by SIGTERM or then SIGKILL.
            143 | 137 if start.elapsed() >= limit => Err(Error::Timeout {
                what: format!("end of `{title}` in {}", self.name),
                limit,
            }),
            _ => Err(Error::Command {
                command: title.to_owned(),
                place: self.name.clone(),
                status: format!("exit status {status}"),
                output: output.stderr + &output.stdout,
            }),
        }
    }
}

impl Place for Guest {
    fn run(&self, command: &[&str]) -> Result<Output> {
        self.run(&quote(command))
    }

    fn run_with_input(&self, command: &[&str], input: &str) -> Result<Output> {
        let (source, command) = (quote(&["printf", "%s", input]), quote(command));
        self.execute(PATIENCE, &format!("{source} | {command}"), &command)
    }

    fn add_address(&self, interface: &str, address: &str) -> Result<()> {
        let nodad = if address.contains(':') { "nodad" } else { "" };
        self.run(&format!("ip address add {address} dev {interface} {nodad}"))
            .map(drop)
    }

    fn serve_echo(&self, address: SocketAddr) -> Result<()> {
        self.serve_echo_in("", address)
    }
}

/// The command as a shell reads it back.
fn quote(command: &[&str]) -> String {
    let quoted = command.iter();
    let quoted = quoted.map(|word| format!("'{}'", word.replace('\'', r"'\''")));
    quoted.collect::<Vec<_>>().join(" ")
}
