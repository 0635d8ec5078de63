//! `freebsd-2022`: the cost of a tunnel in user space compared with one in the kernel.
//!
//! Everything runs inside one [`Guest`], a virtual machine whose kernel has WireGuard even if this
//! machine's kernel lacks it. A virtual cable connects two network namespaces of the guest. All
//! tunnels between them are up all the time, and carry a stream of iperf3 in turn. The guest's
//! kernel counts system calls (a `hist` trigger on `raw_syscalls:sys_enter`), the other figures
//! come from its `/proc/stat`.
//!
//! The guest's processors are emulated and slow. The table therefore holds shares and amounts per
//! byte, no speeds.

use super::{DescribedRow, Description, Statistic};
use crate::measure::iperf::{self, Transfer};
use crate::results::{Better, Failure, Metric, Report, Unit};
use crate::side::{PORT, Side};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use taupe_lab::error::{Error, Result};
use taupe_lab::guest::{self, Clock, Guest, GuestOptions, Namespace};
use taupe_lab::host::Host;
use taupe_lab::peers::{Implementation, Keys, PeerSettings, Place, Settings, Tunnel};

/// Name of the table, and prefix of its metrics' keys.
pub const NAME: &str = "freebsd-2022";

/// The contestants in the order of the rounds.
const CONTESTANTS: [(&str, Connection); 4] = [
    ("direct", Connection::Cable),
    ("kernel", Connection::Kernel),
    (
        "wireguard-go",
        Connection::Program(Implementation::WireguardGo),
    ),
    ("taupe", Connection::Program(Implementation::Taupe)),
];

/// Connection between the two namespaces.
#[derive(Debug, Clone, Copy)]
enum Connection {
    Cable,
    Kernel,
    Program(Implementation),
}

/// Tracepoint at which the guest's kernel counts system calls.
const COUNTER: &str = "/sys/kernel/tracing/events/raw_syscalls/sys_enter";

fn throughput() -> Metric {
    let title = "throughput, share of no tunnel";
    metric("throughput", title, Unit::Share, Better::Higher)
}

fn retransmits() -> Metric {
    metric("retransmits", "retransmits", Unit::Count, Better::Lower)
}

fn calls() -> Metric {
    metric("calls", "system calls", Unit::PerGigabyte, Better::Lower)
}

fn switches() -> Metric {
    let title = "context switches";
    metric("switches", title, Unit::PerGigabyte, Better::Lower)
}

fn user() -> Metric {
    metric("user", "user", Unit::Share, Better::Lower)
}

fn system() -> Metric {
    metric("system", "system", Unit::Share, Better::Lower)
}

fn idle() -> Metric {
    metric("idle", "idle", Unit::Share, Better::Higher)
}

fn metric(key: &str, title: &str, unit: Unit, better: Better) -> Metric {
    Metric::new(format!("{NAME}/{key}"), title, unit, better)
}

/// Returns the table's description.
pub fn description() -> Description {
    let row = DescribedRow::new;
    Description {
        name: NAME,
        title: "WireGuard in the kernel and in user space, emulated, medians",
        source: "a comparison of FreeBSD's WireGuard in the kernel with wireguard-go, 2022",
        columns: vec![
            throughput(),
            retransmits(),
            calls(),
            switches(),
            user(),
            system(),
            idle(),
        ],
        #[rustfmt::skip]
        rows: vec![
            row("FreeBSD, no tunnel", None,
                &[Some("935 Mbit/s"), Some("0"), Some("about 97k/s")]),
            row("FreeBSD, wireguard-go", None,
                &[Some("555 Mbit/s"), Some("423"), Some("215k/s")]),
            row("FreeBSD, in the kernel", None,
                &[Some("660 Mbit/s"), Some("138"), Some("14k/s")]),
            row("Linux, no tunnel", Some("direct"), &[Some("936 Mbit/s"), Some("0")]),
            row("Linux, in the kernel", Some("kernel"), &[Some("601 Mbit/s"), Some("78")]),
            row("Linux, wireguard-go", Some("wireguard-go"), &[]),
            row("Linux, Taupe", Some("taupe"), &[]),
        ],
        statistic: Statistic::Median,
        differences: [
            "Everything measured here ran in one virtual machine whose two processors are \
             emulated, with Debian's kernel. Emulation slows the instructions that encrypt \
             far more than others, so the shares of throughput are much below those of a \
             real machine. Compare the rows with one another.",
            "Published throughput is in Mbit/s between two machines. Beside no tunnel it is \
             0.59 for wireguard-go and 0.71 for the kernel on FreeBSD, and 0.64 for the \
             kernel on Linux.",
            "Published system calls are per second, those measured here for 10⁹ bytes of \
             payload: at the published rates 0.83, 3.1 and 0.17 million on FreeBSD. Both \
             count all programs of a machine, iperf3 among them, whose start and end are \
             about 400 calls; here both ends are on it.",
            "System is the kernel's time with that of interrupts, idle includes waiting. The \
             shares are of both processors.",
            "FreeBSD itself is not run. Context switches, user, system and idle are published \
             without figures here.",
        ]
        .map(str::to_owned)
        .to_vec(),
    }
}

fn fail(report: &mut Report, contestant: &str, reason: &Error) {
    report.failures.push(Failure {
        what: NAME.to_owned(),
        contestant: contestant.to_owned(),
        reason: reason.to_string(),
    });
}

/// The guest with all contestants that can run in it. Dropping it ends the guest.
pub struct Laboratory {
    guest: Guest,
    client: Namespace,
    /// Contestants, and the server's address in the tunnel of each.
    contestants: Vec<(&'static str, String)>,
}

impl Laboratory {
    /// Boots the guest, starts all contestants in it and waits until packets pass. The report's
    /// failures list contestants that do not run; they list all of them if there is no guest or
    /// nothing can be measured in it.
    ///
    /// Call [`guest::install`] and [`Implementation::install`] before, outside the sandbox.
    pub fn start(report: &mut Report) -> Option<Self> {
        let started = Self::prepare(report);
        if let Err(reason) = &started {
            for (id, _) in CONTESTANTS {
                fail(report, id, reason);
            }
        }
        started.ok()
    }

    fn prepare(report: &mut Report) -> Result<Self> {
        let mut programs = vec![installed("iperf3")?];
        let mut ready = Vec::new();
        for (id, connection) in CONTESTANTS {
            if let Connection::Program(implementation) = connection {
                match implementation.program() {
                    Ok(path) => programs.push(path),
                    Err(reason) => {
                        fail(report, id, &reason);
                        continue;
                    }
                }
            }
            ready.push((id, connection));
        }
        let equipment = GuestOptions {
            processors: 2,
            parallel: true,
            memory: 512,
            clock: Clock::Tsc,
            programs,
            ..GuestOptions::default()
        };
        let host = Host::new(NAME)?;
        let guest = Guest::boot_with(&host, "tap0", &[], &equipment)?;
        let sides = Sides {
            client: guest.namespace(Side::Client.name())?,
            server: guest.namespace(Side::Server.name())?,
            keys: [Keys::new(&host)?, Keys::new(&host)?],
        };
        sides.link()?;
        let server = ["/lab/iperf3", "--server", "--rcv-timeout", "10000"];
        sides.server.start(&server, "/tmp/iperf3-server")?;
        guest.run(&format!(
            "mount -t tracefs trace /sys/kernel/tracing && \
             echo hist:keys=common_cpu > {COUNTER}/trigger"
        ))?;
        let mut contestants = Vec::new();
        for (number, (id, connection)) in ready.into_iter().enumerate() {
            let joined = sides
                .join(number, id, connection)
                .and_then(|target| answered(&guest, &sides.client, &target).map(|()| target));
            match joined {
                Ok(target) => contestants.push((id, target)),
                Err(reason) => fail(report, id, &reason),
            }
        }
        Ok(Self {
            guest,
            client: sides.client,
            contestants,
        })
    }

    /// Measures every contestant once, for `seconds` each. A contestant that fails is added to the
    /// report's failures and is not measured again.
    pub fn round(&mut self, seconds: u32, report: &mut Report) {
        let mut untunnelled = None;
        let mut failed = Vec::new();
        for (id, target) in &self.contestants {
            let sample = match self.sample(target, seconds) {
                Ok(sample) => sample,
                Err(reason) => {
                    fail(report, id, &reason);
                    failed.push(*id);
                    continue;
                }
            };
            let rate = sample.stream.rate();
            if *id == "direct" {
                untunnelled = Some(rate);
            }
            if let Some(untunnelled) = untunnelled {
                report.record(id, &throughput(), rate / untunnelled);
            }
            let gigabytes = sample.stream.bytes() as f64 / 1e9;
            let spent = sample.spent;
            let time = spent.user + spent.system + spent.idle;
            if let Some(count) = sample.stream.retransmits() {
                report.record(id, &retransmits(), count as f64);
            }
            for (metric, figure) in [
                (calls(), spent.calls / gigabytes),
                (switches(), spent.switches / gigabytes),
                (user(), spent.user / time),
                (system(), spent.system / time),
                (idle(), spent.idle / time),
            ] {
                report.record(id, &metric, figure);
            }
        }
        self.contestants.retain(|(id, _)| !failed.contains(id));
    }

    /// As [`sample_of`](Self::sample_of), again and longer until something arrives: a tunnel in an
    /// emulated processor may need more than a second for one block of iperf3.
    fn sample(&self, target: &str, seconds: u32) -> Result<Sample> {
        let mut fault = Error::unmet("nothing was received");
        for seconds in [seconds, 4 * seconds, 16 * seconds] {
            match self.sample_of(target, seconds) {
                Ok(sample) if sample.stream.bytes() > 0 => return Ok(sample),
                Ok(_) => {}
                Err(error) if iperf::is_servers_fault(&error) => fault = error,
                Err(error) => return Err(error),
            }
        }
        Err(fault)
    }

    /// Runs one TCP stream from the client, and counts what the guest does meanwhile.
    fn sample_of(&self, target: &str, seconds: u32) -> Result<Sample> {
        let stream = self.client.command(&[
            "/lab/iperf3",
            "--client",
            target,
            "--time",
            &seconds.to_string(),
            "--connect-timeout",
            "10000",
            "--json",
        ]);
        let reported = self.guest.run_within(
            Duration::from_secs(u64::from(seconds) + 30),
            &format!(
                "counts() {{ grep -hE '^(cpu |ctxt )|Hits:' {COUNTER}/hist /proc/stat; }}\n\
                 counts > /tmp/before\n\
                 {stream} > /tmp/stream || {{ cat /tmp/stream; exit 1; }}\n\
                 counts > /tmp/after\n\
                 cat /tmp/before; echo; cat /tmp/after; echo; cat /tmp/stream"
            ),
        )?;
        let mut parts = reported.stdout.splitn(3, "\n\n");
        let mut part = || parts.next().unwrap_or_default();
        let (before, after) = (Counts::read(part())?, Counts::read(part())?);
        Ok(Sample {
            spent: after.since(before),
            stream: iperf::parse_with_nothing(part())?,
        })
    }
}

/// One stream and its cost in the guest.
#[derive(Debug)]
struct Sample {
    stream: Transfer,
    spent: Counts,
}

/// Counters of the guest's kernel. Times are in its ticks.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Counts {
    calls: f64,
    switches: f64,
    user: f64,
    system: f64,
    idle: f64,
}

impl Counts {
    /// Reads the total of a histogram, and the lines `cpu` and `ctxt` of `/proc/stat` (proc(5)).
    fn read(text: &str) -> Result<Self> {
        let numbers = |name: &str| -> Result<Vec<f64>> {
            let mut lines = text.lines();
            let line = lines.find_map(|line| line.trim_start().strip_prefix(name));
            let words = line.map(|line| line.split_whitespace().map(str::parse));
            match words.map(Iterator::collect) {
                Some(Ok(numbers)) => Ok(numbers),
                _ => Err(Error::Malformed {
                    what: "the guest's counters".to_owned(),
                    why: format!("no numbers after {name} in {text:?}"),
                }),
            }
        };
        let time = numbers("cpu ")?;
        let tick = |column: usize| time.get(column).copied().unwrap_or_default();
        let total = |name| Ok(numbers(name)?.first().copied().unwrap_or_default());
        Ok(Self {
            calls: total("Hits:")?,
            switches: total("ctxt ")?,
            // Includes nice.
            user: tick(0) + tick(1),
            // Includes interrupts.
            system: tick(2) + tick(5) + tick(6),
            // Includes waiting for devices.
            idle: tick(3) + tick(4),
        })
    }

    fn since(self, before: Self) -> Self {
        Self {
            calls: self.calls - before.calls,
            switches: self.switches - before.switches,
            user: self.user - before.user,
            system: self.system - before.system,
            idle: self.idle - before.idle,
        }
    }
}

/// The two namespaces, before any measurement.
struct Sides {
    client: Namespace,
    server: Namespace,
    /// Keys of the client and of the server.
    keys: [Keys; 2],
}

impl Sides {
    fn place(&self, side: Side) -> &Namespace {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    fn link(&self) -> Result<()> {
        let server = Side::Server.name();
        self.client.ip(&format!(
            "link add {PORT} type veth peer name {PORT} netns {server}"
        ))?;
        for side in Side::BOTH {
            let place = self.place(side);
            place.add_address(PORT, &format!("{}/24", side.outer()))?;
            place.ip(&format!("link set {PORT} up"))?;
        }
        Ok(())
    }

    /// Connects the namespaces; returns the server's address in the tunnel.
    fn join(&self, number: usize, id: &str, connection: Connection) -> Result<String> {
        if matches!(connection, Connection::Cable) {
            return Ok(Side::Server.outer().to_string());
        }
        let [client, server] = &self.keys;
        let port = 51_820 + number as u16;
        for side in Side::BOTH {
            let (own, other, last) = match side {
                Side::Client => (client, server, 1),
                Side::Server => (server, client, 2),
            };
            let endpoint = SocketAddr::from((Side::Server.outer(), port));
            let network = format!("10.66.{number}.0/24");
            let tunnel = self.interface(side, id, connection)?;
            tunnel.configure(&Settings {
                private_key: &own.private,
                listen_port: (side == Side::Server).then_some(port),
                addresses: &[&format!("10.66.{number}.{last}/24")],
                peers: &[PeerSettings {
                    public_key: &other.public,
                    preshared_key: None,
                    endpoint: (side == Side::Client).then_some(endpoint),
                    allowed_ips: &network,
                }],
            })?;
        }
        Ok(format!("10.66.{number}.2"))
    }

    /// Creates a WireGuard interface in one of the namespaces, not yet configured.
    fn interface(&self, side: Side, id: &str, connection: Connection) -> Result<Tunnel> {
        let place = self.place(side);
        // Both sides' configuration sockets share a folder, so the names must differ.
        let name = format!("{id}-{}", &side.name()[..1]);
        let Connection::Program(implementation) = connection else {
            return place.kernel_tunnel(&name);
        };
        let program = guest::program(&implementation.program()?);
        let command = implementation.command(&program, &name);
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        place.start(&words, &format!("/tmp/{name}"))?;
        place.program_tunnel(&name, implementation.quirks())
    }
}

/// Waits for the first answered ping.
fn answered(guest: &Guest, client: &Namespace, target: &str) -> Result<()> {
    let ping = client.command(&["ping", "-c", "1", "-W", "1", target]);
    let script = format!("until {ping} > /dev/null; do :; done");
    guest.run_within(Duration::from_secs(20), &script).map(drop)
}

/// Returns the path of a program in `PATH`.
fn installed(name: &str) -> Result<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders).map(|folder| folder.join(name));
    found
        .into_iter()
        .find(|path| path.is_file())
        .ok_or_else(|| Error::Missing {
            name: name.to_owned(),
            path: "the folders of PATH".into(),
            remedy: format!("install Debian's package {name}"),
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Entry;

    const BEFORE: &str = "    Hits: 14229\ncpu  1610 1 5001 789 2 3 571 0 0 0\nctxt 4711";

    #[test]
    fn counts_of_the_guest_are_parsed() -> Result<()> {
        let before = Counts::read(BEFORE)?;
        let expected = Counts {
            calls: 14_229.0,
            switches: 4_711.0,
            user: 1_611.0,
            system: 5_575.0,
            idle: 791.0,
        };
        assert_eq!(before, expected);
        let after = Counts::read("Hits: 14230\nctxt 4713\ncpu 1613 1 5002 793 2 3 571")?;
        let expected = Counts {
            calls: 1.0,
            switches: 2.0,
            user: 3.0,
            system: 1.0,
            idle: 4.0,
        };
        assert_eq!(after.since(before), expected);
        Ok(())
    }

    #[test]
    fn missing_or_malformed_counts_are_errors() {
        for line in BEFORE.lines() {
            let without: Vec<&str> = BEFORE.lines().filter(|other| *other != line).collect();
            assert!(Counts::read(&without.join("\n")).is_err(), "without {line}");
        }
        for text in [
            "",
            "Hits: many\ncpu  1 2\nctxt 3",
            "Hits: 1\ncpu  x\nctxt 3",
        ] {
            assert!(Counts::read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_failed_guest_is_a_reason_for_all_contestants() {
        let mut report = Report::default();
        for (id, _) in CONTESTANTS {
            fail(&mut report, id, &Error::unmet("no QEMU"));
        }
        let table = super::super::fill(&description(), &report);
        let notes: Vec<_> = table.rows.iter().map(|row| row.note.clone()).collect();
        let output = Some("freebsd-2022: no QEMU".to_owned());
        assert_eq!(notes[..3], [None, None, None]);
        assert!(notes[3..].iter().all(|note| *note == output), "{notes:?}");
    }

    #[test]
    fn kernel_wireguard_is_independent_of_the_guests() {
        let unavailable = Entry {
            id: "kernel".to_owned(),
            title: "in the kernel".to_owned(),
            version: None,
            unavailable: Some("this kernel has no WireGuard".to_owned()),
        };
        let mut report = Report {
            contestants: vec![unavailable],
            ..Report::default()
        };
        let note = |report: &Report| {
            super::super::fill(&description(), report).rows[4]
                .note
                .clone()
        };
        assert!(note(&report).is_some());
        report.record("kernel", &throughput(), 0.5);
        assert_eq!(note(&report), None);
        fail(&mut report, "kernel", &Error::unmet("then it crashed"));
        assert_eq!(
            note(&report).as_deref(),
            Some("freebsd-2022: then it crashed")
        );
    }
}
