//! A virtual machine with Debian's kernel, for tests with the kernel's WireGuard.
//!
//! The processor is emulated, so that it runs wherever QEMU runs: user space is up after some
//! seconds, and a tunnel carries some 100 Mbit/s. Measurements inside are comparable only with
//! other measurements inside.
//!
//! The guest's `eth0` is at the other end of a TAP interface of its [`Host`]. The guest has `wg`,
//! `ip`, dash and busybox's applets (`ping`, `nc`, `sha256sum`); [`Guest::run`] runs scripts of
//! them. [`Guest::tunnel`] makes a [`Tunnel`] of the kernel's WireGuard. A guest can have
//! [`Namespace`]s like the hosts of a sandbox, and run programs of this machine: see [`GuestOptions`].

mod agent;
mod image;
mod namespace;
mod programs;

pub use image::{Architecture, Kernel, install, version};
pub use namespace::Namespace;
pub use programs::{EBPF_CORE, program};

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

/// Time limit for booting when many tests share few processors; alone, a guest boots in five to seven
/// seconds.
pub const BOOT: Duration = Duration::from_secs(120);

/// Default time limit of a script.
const PATIENCE: Duration = Duration::from_secs(30);

/// Options for every kernel. QEMU keeps what it has translated of a program, and finds it again only
/// at the same addresses: with random ones, a program takes two to four times as long to start.
const KERNEL_OPTIONS: &str = "quiet panic=-1 norandmaps";

/// Properties of a guest.
#[derive(Debug, Clone)]
pub struct GuestOptions {
    /// Number of processors.
    pub processors: u8,
    /// True if they run at the same time, for measurements. Otherwise they take turns: with a
    /// thread for each, QEMU 7.2 sometimes crashes while a guest boots.
    pub parallel: bool,
    /// The kernel.
    pub kernel: Kernel,
    /// Memory in MiB.
    pub memory: u16,
    /// The clock source, on x86-64.
    pub clock: Clock,
    /// Programs of this machine that are copied into the guest with their libraries; [`program`]
    /// returns their paths inside.
    pub programs: Vec<PathBuf>,
    /// More TAP interfaces of the host, to be created and up like the first one. At their other
    /// ends are the guest's `eth1` and following, which are down.
    pub more_taps: Vec<String>,
}

impl Default for GuestOptions {
    fn default() -> Self {
        Self {
            processors: 1,
            parallel: false,
            kernel: Kernel::default(),
            memory: 192,
            clock: Clock::Hpet,
            programs: Vec::new(),
            more_taps: Vec::new(),
        }
    }
}

/// Clock source of a guest.
///
/// Linux must not calibrate one clock against another while it boots: on a busy machine the guest
/// is paused in between, and then its time runs at a wrong rate, or Linux finds no working timer.
/// So it takes interrupts from the HPET, whose rate is known, without checks. (QEMU's faster
/// machine type `microvm` has no HPET.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// The HPET: always exact, but programs read it by a system call.
    Hpet,
    /// The processor's counter, which programs read without a system call, as on real machines.
    /// Linux calibrates it against the HPET, so on a busy machine its seconds may be wrong by some
    /// percent.
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

/// Arguments of QEMU for a processor.
struct Emulator {
    program: &'static str,
    machine: &'static str,
    processor: &'static str,
    kernel_options: &'static str,
    /// True if the guest's clock source can be chosen.
    has_clocks: bool,
}

impl Emulator {
    const fn of(architecture: Architecture) -> Self {
        match architecture {
            Architecture::Amd64 => Self {
                program: "qemu-system-x86_64",
                machine: "pc",
                processor: "max",
                kernel_options: "console=ttyS0 no_timer_check noapictimer ",
                has_clocks: true,
            },
            // Newer processors have pointer authentication, whose emulation is very slow.
            Architecture::Arm64 => Self {
                program: "qemu-system-aarch64",
                machine: "virt",
                processor: "neoverse-n1",
                kernel_options: "console=ttyAMA0",
                has_clocks: false,
            },
        }
    }
}

/// QEMU, with the guest's agent; `Err` with its output if it ended.
type Boot = std::result::Result<(Process, Agent), String>;

/// Runs QEMU until the guest's agent answers at `socket`, or until it ends.
fn start_emulator(host: &Host, command: &[&str], name: &str, socket: &str) -> Result<Boot> {
    let mut qemu = host.spawn(command)?;
    let mut stream = None;
    wait_until("QEMU's start", BOOT, || {
        stream = UnixStream::connect(socket).ok();
        Ok(stream.is_some() || !qemu.runs()?)
    })?;
    match stream.map(|stream| Agent::connect(name, stream, BOOT)) {
        Some(Ok(agent)) => Ok(Ok((qemu, agent))),
        Some(Err(error)) if qemu.runs()? => Err(error),
        _ => Ok(Err(qemu.output().trim().to_owned())),
    }
}

/// A running virtual machine.
///
/// It ends when the last handle to it is dropped: this one or a [`Tunnel`] in it. Its console is
/// part of QEMU's log, which a failed test prints.
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
    /// The interface, called `tap`, is up and has no addresses; the guest's `eth0` is up and has
    /// `addresses`, which include their prefix length and are usable at once.
    ///
    /// # Errors
    ///
    /// Those of [`install`], which should be called before, outside the sandbox; [`Error::Command`]
    /// if the interface's name is taken; [`Error::Timeout`] if the guest is not up within [`BOOT`].
    pub fn boot(host: &Host, tap: &str, addresses: &[&str]) -> Result<Self> {
        Self::boot_with(host, tap, addresses, &GuestOptions::default())
    }

    /// As [`boot`](Self::boot), with other equipment.
    ///
    /// # Errors
    ///
    /// As [`boot`](Self::boot); [`Error::Io`] if a program cannot be read.
    pub fn boot_with(
        host: &Host,
        tap: &str,
        addresses: &[&str],
        equipment: &GuestOptions,
    ) -> Result<Self> {
        let image = equipment.kernel.install()?;
        let name = format!("guest-{}-{tap}", host.name());
        let mut network = Vec::new();
        for (number, tap) in [tap]
            .into_iter()
            .chain(equipment.more_taps.iter().map(|tap| &**tap))
            .enumerate()
        {
            host.ip(&["tuntap", "add", "name", tap, "mode", "tap"])?;
            host.ip(&["link", "set", tap, "up"])?;
            network.extend([
                "-device".to_owned(),
                format!("virtio-net-pci,netdev=network{number},romfile="),
                "-netdev".to_owned(),
                format!("tap,id=network{number},ifname={tap},script=no,downscript=no"),
            ]);
        }

        let start = Instant::now();
        let socket = scratch(&name).display().to_string();
        let kernel = image.join(image::KERNEL).display().to_string();
        let mut initramfs = image.join(image::INITRAMFS);
        if !equipment.programs.is_empty() {
            let packed = scratch(&format!("{name}.initramfs"));
            let is_own = equipment.kernel.architecture() == Architecture::Amd64;
            programs::pack(&initramfs, &equipment.programs, is_own, &packed)?;
            initramfs = packed;
        }
        let initramfs = initramfs.display().to_string();
        let emulator = Emulator::of(equipment.kernel.architecture());
        let mut options = format!("{KERNEL_OPTIONS} {}", emulator.kernel_options);
        if emulator.has_clocks {
            options += equipment.clock.option();
        }
        let accelerator = match equipment.parallel {
            true => "tcg,thread=multi,tb-size=256",
            false => "tcg,thread=single,tb-size=256",
        };
        let processors = equipment.processors.to_string();
        let memory = equipment.memory.to_string();
        let agent = format!("socket,id=agent,path={socket},server=on,wait=off");
        #[rustfmt::skip]
        let machine = [
            emulator.program, "-nodefaults", "-no-user-config", "-no-reboot",
            "-machine", emulator.machine, "-accel", accelerator, "-cpu", emulator.processor,
            "-smp", &processors, "-m", &memory, "-display", "none", "-serial", "stdio",
            "-kernel", &kernel, "-initrd", &initramfs, "-append", &options,
            "-device", "virtio-serial-pci", "-chardev", &agent,
            "-device", "virtserialport,chardev=agent",
        ];
        let network: Vec<_> = network.iter().map(|word| &**word).collect();
        let command = [&machine[..], &network].concat();
        let mut booted = start_emulator(host, &command, &name, &socket)?;
        // See `GuestOptions::parallel`.
        if let Err(output) = &booted
            && equipment.parallel
        {
            eprintln!("{} {name}: once more, since QEMU ended: {output}", uptime());
            booted = start_emulator(host, &command, &name, &socket)?;
        }
        let (qemu, agent) = booted.map_err(|output| Error::unmet(format!("QEMU: {output}")))?;
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

    /// Creates a WireGuard interface of the guest's kernel, not yet configured.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] if the name is taken.
    pub fn tunnel(&self, interface: &str) -> Result<Tunnel> {
        self.run(&format!("ip link add {interface} type wireguard"))?;
        let quirks = Quirks::default();
        Ok(Tunnel::at("kernel", self.clone(), interface, quirks))
    }

    /// Runs a shell script in the guest, which must succeed within 30 seconds.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] with its output if its last command fails; [`Error::Timeout`].
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

    /// Implements [`Place::serve_echo`]; `place` is a prefix of the commands.
    fn serve_echo_in(&self, place: &str, address: SocketAddr) -> Result<()> {
        let (ip, port) = (address.ip(), address.port());
        self.run(&format!(
            "{place} nc -ll -p {port} {ip} -e /bin/busybox cat > /dev/null 2>&1 &\n\
             until {place} netstat -lnt | grep -q ':{port} '; do sleep 0.05; done"
        ))
        .map(drop)
    }

    /// Runs a script; `title` stands for it in messages.
    fn execute(&self, limit: Duration, script: &str, title: &str) -> Result<Output> {
        eprintln!("{} {}: {title}", uptime(), self.name);
        let agent = self.machine.agent.lock();
        let mut agent = agent.unwrap_or_else(PoisonError::into_inner);
        let start = Instant::now();
        let (status, output) = agent.execute(limit, script)?;
        match status {
            0 => Ok(output),
            // Ended by the guest's `timeout`, with SIGTERM or then SIGKILL.
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

/// Quotes the command for a shell.
fn quote(command: &[&str]) -> String {
    let quoted = command.iter();
    let quoted = quoted.map(|word| format!("'{}'", word.replace('\'', r"'\''")));
    quoted.collect::<Vec<_>>().join(" ")
}
