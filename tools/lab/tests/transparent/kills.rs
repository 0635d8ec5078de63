//! A process of a tunnel is killed at a random moment, again and again.
//!
//! A case starts a tunnel, does something to it, and kills one of its processes meanwhile: the broker,
//! the packet process, or the command that the user has run. Afterwards
//!
//! - no packet of the selected application was received outside the tunnel, from the end of `lock` or
//!   `up` to the beginning of the last `down`;
//! - all processes of the tunnel end by themselves, and its interface with them;
//! - the command or `status` reports it, or `up` works at once;
//! - after `down`, everything is as before the case.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::process::Signal;
use taupe_lab::peers::{Implementation, PeerSettings, Settings, Tunnel};
use taupe_lab::process::{Process, wait_until};
use taupe_lab::sandbox::{figure, step};
use taupe_lab::{Error, Result, ensure, uapi};

use self::case::{KINDS, KillCase, KillMoment, MOMENTS, TunnelKind};
use self::digger::{ReceivedRecords, now};
use self::victims::{Program, Victim};
use crate::chatter;
use crate::leaks::number;
use crate::world::{
    ENDPOINT_PORT, INTERFACE, NEIGHBOUR, SERVER, TUNNEL, World, private_key, succeeded,
};

mod case;
pub(crate) mod digger;
mod victims;

/// Default number of cases, unless `KILLS` is set.
const CASES: u32 = 40;

/// Time limit for anything that must happen by itself.
const PATIENCE: Duration = Duration::from_secs(30);

/// Time that the application may take on a busy machine from making a record to sending it.
const SLACK: Duration = Duration::from_millis(250);

/// Longest delay before a kill while no command runs.
const SHORT_DELAY: Duration = Duration::from_millis(30);

/// Folders in which programs of a tunnel have files.
const FOLDERS: [&str; 2] = ["/run/taupe", "/run/wireguard"];

/// Returns the time limit of the test.
pub(crate) fn limit() -> Duration {
    // The test itself reports an invalid number.
    let cases = cases().unwrap_or(CASES);
    Duration::from_secs(120) + cases * Duration::from_secs(8)
}

fn cases() -> Result<u32> {
    Ok(number("KILLS")?.unwrap_or(CASES))
}

/// Runs the cases in a random order, which `SEED` repeats.
pub(crate) fn killed_processes() -> Result<()> {
    let seed = number("SEED")?.unwrap_or_else(|| fastrand::u64(..));
    figure("SEED", seed);
    let mut yard = Yard::new(seed)?;
    yard.measure()?;
    for number in 0..cases()? {
        let case = KillCase::random(&mut yard.rng);
        step(&format!("{number}: {case:?}"));
        yard.run(case)?;
    }
    yard.conclude()
}

/// Longest delays before a kill: the durations of commands that nothing interrupts.
#[derive(Clone, Copy, Debug, Default)]
struct Durations {
    start: Duration,
    reload: Duration,
    down: Duration,
}

struct Yard {
    world: World,
    rng: Rng,
    program: Program,
    path: String,
    received: Arc<ReceivedRecords>,
    _digger: Process,
    /// The device of [`TunnelKind::Device`].
    device: Option<Process>,
    file: String,
    durations: [Durations; KINDS.len()],
    before: (String, Vec<String>),
    files: BTreeSet<String>,
    /// Begin of the time in which the selected application is blocked or in the tunnel.
    closed_since: Option<Duration>,
    closed: Vec<(Duration, Duration)>,
    /// Number of records received outside the tunnel while that was allowed.
    allowed: usize,
    /// Number of cases whose victim was alive, by role and moment.
    killed: Vec<(Victim, KillMoment)>,
}

impl Yard {
    fn new(seed: u64) -> Result<Self> {
        let world = World::new()?;
        let received = digger::receive(&world.far)?;
        let digger = digger::start(&world.near, &chatter::install(chatter::MOLE)?)?;
        let program = Program::on(&world.near)?;
        let path = Implementation::Taupe.program()?.display().to_string();
        let (before, files) = (world.configuration()?, listed()?);
        Ok(Self {
            world,
            rng: Rng::with_seed(seed),
            program,
            path,
            received,
            _digger: digger,
            device: None,
            file: String::new(),
            durations: Default::default(),
            before,
            files,
            closed_since: None,
            closed: Vec::new(),
            allowed: 0,
            killed: Vec::new(),
        })
    }

    /// Measures commands that nothing interrupts. Files that stay after them are no leftovers.
    fn measure(&mut self) -> Result<()> {
        for kind in KINDS {
            step(&format!("{kind:?}, uninterrupted"));
            self.write_file(kind, "")?;
            let began = Instant::now();
            self.start(kind)?;
            let start = began.elapsed();
            self.carried(kind)?;
            let began = Instant::now();
            self.write_file(kind, "PersistentKeepalive = 25")?;
            if let Some(command) = self.command(kind, KillMoment::Reload, false) {
                succeeded("reload", &self.world.taupe(&borrowed(&command))?)?;
            }
            let reload = began.elapsed();
            let down = self.end(kind, true)?;
            self.durations[kind as usize] = Durations {
                start,
                reload,
                down,
            };
            self.files = listed()?;
        }
        figure("durations", self.durations);
        Ok(())
    }

    fn run(&mut self, case: KillCase) -> Result<()> {
        let KillCase { kind, moment, .. } = case;
        self.write_file(kind, "")?;
        if case.is_locked_before {
            succeeded("lock", &self.world.taupe(&["lock", &self.file])?)?;
            self.closed_since = Some(now());
        }
        let killed = match moment {
            KillMoment::Start => self.interrupted_start(case)?,
            _ => {
                self.start(kind)?;
                if moment == KillMoment::Traffic || moment == KillMoment::Rekey {
                    self.carried(kind)?;
                }
                self.interrupted(case)?
            }
        };
        if killed {
            self.killed.push((case.victim, moment));
        }
        let remaining = self.settle(case, killed)?;
        if case.comes_back && !remaining {
            self.start(kind)?;
            self.carried(kind)?;
        } else if killed && case.victim != Victim::UserCommand {
            self.is_reported(case)?;
        }
        self.end(kind, case.comes_back && !remaining)?;
        self.judge()
    }

    /// Writes the file of a tunnel, with another line in its `[Peer]`.
    fn write_file(&mut self, kind: TunnelKind, line: &str) -> Result<()> {
        let applications = match kind {
            TunnelKind::Device | TunnelKind::Adapter => "",
            TunnelKind::Marks | TunnelKind::Transparent => "AllowedApps = mole\n",
        };
        self.file = self.world.file(&format!("{applications}{line}"))?;
        Ok(())
    }

    /// Returns the command for a moment, without the program.
    fn command(
        &self,
        kind: TunnelKind,
        moment: KillMoment,
        keeps_closed: bool,
    ) -> Option<Vec<String>> {
        let words: &[&str] = match (kind, moment) {
            (TunnelKind::Device, _) => return None,
            (TunnelKind::Transparent, KillMoment::Start) => &["up"],
            (_, KillMoment::Start) => &["up", "--adapter"],
            (_, KillMoment::Reload) => &["reload"],
            (_, KillMoment::Down) if keeps_closed => &["down", "--keep-closed"],
            (_, KillMoment::Down) => &["down"],
            _ => return None,
        };
        let file: &str = &self.file;
        let words = words.iter().chain([&file]);
        Some(words.map(|&word| word.to_owned()).collect())
    }

    fn spawn(&self, command: &[String]) -> Result<Process> {
        self.world
            .near
            .spawn(&[&[&*self.path], &*borrowed(command)].concat())
    }

    /// Starts a tunnel without a kill.
    fn start(&mut self, kind: TunnelKind) -> Result<()> {
        match self.command(kind, KillMoment::Start, false) {
            Some(command) => succeeded("up", &self.world.taupe(&borrowed(&command))?)?,
            None => {
                self.start_device()?;
                wait_until("the device", PATIENCE, || {
                    Ok(uapi::exchange(INTERFACE, "get=1\n\n").is_ok())
                })?;
                self.configure()?;
            }
        }
        if kind.has_kill_switch() && self.closed_since.is_none() {
            self.closed_since = Some(now());
        }
        Ok(())
    }

    fn start_device(&mut self) -> Result<()> {
        let command = ["device", "--foreground", INTERFACE].map(str::to_owned);
        self.device = Some(self.spawn(&command)?);
        Ok(())
    }

    fn tunnel(&self) -> Tunnel {
        let quirks = Implementation::Taupe.quirks();
        Tunnel::at("taupe", self.world.near.clone(), INTERFACE, quirks)
    }

    fn peer(&self) -> PeerSettings<'_> {
        PeerSettings {
            public_key: self.world.server_key(),
            preshared_key: None,
            endpoint: Some((NEIGHBOUR, ENDPOINT_PORT).into()),
            allowed_ips: "0.0.0.0/0, ::/0",
        }
    }

    /// Configures the device of [`TunnelKind::Device`].
    fn configure(&self) -> Result<()> {
        let text = fs::read_to_string(&self.file).map_err(Error::io(&*self.file))?;
        let [v4, v6] = [format!("{}/24", TUNNEL[0]), format!("{}/64", TUNNEL[1])];
        self.tunnel().configure(&Settings {
            private_key: private_key(&text)?.1,
            listen_port: None,
            addresses: &[&v4, &v6],
            peers: &[self.peer()],
        })
    }

    /// Waits until traffic is carried.
    fn carried(&self, kind: TunnelKind) -> Result<()> {
        if kind == TunnelKind::Device {
            let ping = ["ping", "-n", "-c", "1", "-W", "20", SERVER[0]];
            return self.world.near.run(&ping).map(drop);
        }
        let counts = &self.received.by_tunnel;
        let now = || counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        let before = now();
        wait_until("records by the tunnel", PATIENCE, || {
            Ok(now().iter().zip(before).all(|(now, before)| *now > before))
        })
    }

    /// Starts a tunnel and kills a process meanwhile.
    fn interrupted_start(&mut self, case: KillCase) -> Result<bool> {
        let longest = self.durations[case.kind as usize].start;
        let Some(command) = self.command(case.kind, KillMoment::Start, false) else {
            self.start_device()?;
            return self.kill(case, longest, None);
        };
        let mut command = self.spawn(&command)?;
        let killed = self.kill(case, longest, Some(&mut command))?;
        let status = command.wait(PATIENCE)?;
        ensure!(
            status.success() || case.victim == Victim::UserCommand || !command.output().is_empty(),
            "`up` fails without a reason: {status}"
        );
        if status.success() && case.kind.has_kill_switch() && self.closed_since.is_none() {
            self.closed_since = Some(now());
        }
        Ok(killed)
    }

    /// Does something to a running tunnel, and kills a process meanwhile.
    fn interrupted(&mut self, case: KillCase) -> Result<bool> {
        let durations = self.durations[case.kind as usize];
        let longest = match case.moment {
            KillMoment::Reload => durations.reload,
            KillMoment::Down => durations.down,
            _ => SHORT_DELAY,
        };
        match case.moment {
            KillMoment::Reload => self.write_file(case.kind, "PersistentKeepalive = 25")?,
            KillMoment::Down if !case.keeps_closed => self.open(),
            _ => {}
        }
        if let Some(command) = self.command(case.kind, case.moment, case.keeps_closed) {
            let mut command = self.spawn(&command)?;
            let killed = self.kill(case, longest, Some(&mut command))?;
            let status = command.wait(PATIENCE)?;
            ensure!(
                status.success()
                    || case.victim == Victim::UserCommand
                    || !command.output().is_empty(),
                "the command fails without a reason: {status}"
            );
            return Ok(killed);
        }
        match (case.moment, &self.device) {
            (KillMoment::Down, Some(device)) => {
                device.signal(Signal::TERM)?;
                self.kill(case, longest, None)
            }
            (KillMoment::ListenPort | KillMoment::Rekey, _) => {
                let script = self.script(case.moment);
                let mut script = self.world.near.spawn(&["sh", "-c", &script])?;
                let killed = self.kill(case, longest, None)?;
                script.wait(PATIENCE)?;
                Ok(killed)
            }
            _ => self.kill(case, longest, None),
        }
    }

    /// Returns a script that changes the device again and again. It ends when the device has.
    fn script(&self, moment: KillMoment) -> String {
        let key = self.world.server_key();
        let endpoint = format!("{NEIGHBOUR}:{ENDPOINT_PORT}");
        let changes = (0..4).flat_map(|number| match moment {
            KillMoment::ListenPort => {
                [40_000, 41_000].map(|it| format!("listen-port {}", it + number))
            }
            _ => [
                format!("peer {key} remove"),
                format!("peer {key} endpoint {endpoint} allowed-ips 0.0.0.0/0,::/0"),
            ],
        });
        changes.fold(String::new(), |mut script, change| {
            let _ = writeln!(script, "wg set {INTERFACE} {change} || exit 0");
            script
        })
    }

    /// Kills the victim of a case after a part of `longest`. Waits for it while `command` runs, or else
    /// for a while. Returns false if it has not been alive.
    fn kill(
        &self,
        case: KillCase,
        longest: Duration,
        mut command: Option<&mut Process>,
    ) -> Result<bool> {
        sleep(longest.mul_f64(case.delay));
        let began = Instant::now();
        loop {
            if self.program.kill(case.victim)? {
                return Ok(true);
            }
            let goes_on = match &mut command {
                Some(command) => command.runs()?,
                None => case.moment == KillMoment::Start && began.elapsed() < PATIENCE,
            };
            if !goes_on {
                return Ok(false);
            }
        }
    }

    /// Waits until the tunnel's processes have ended. If its processes need not end, waits until
    /// none of them is without the other. Returns true if they stay.
    fn settle(&mut self, case: KillCase, killed: bool) -> Result<bool> {
        let must_end = killed && case.victim != Victim::UserCommand;
        let mut processes = Vec::new();
        let settled = wait_until("end of the tunnel's processes", PATIENCE, || {
            processes = self.program.processes()?;
            let count = |role| processes.iter().filter(|(_, it)| *it == role).count();
            let is_whole = || {
                (!case.kind.has_packet_process()
                    || count(Victim::Broker) == count(Victim::PacketProcess))
                    && uapi::exchange(INTERFACE, "get=1\n\n").is_ok()
            };
            Ok(count(Victim::UserCommand) == 0
                && (processes.is_empty() || (!must_end && is_whole())))
        });
        settled.map_err(|error| Error::unmet(format!("{error}; left: {processes:?}")))?;
        if processes.is_empty() {
            self.world.wait_for_end()?;
        }
        if let Some(mut device) = self.device.take_if(|_| processes.is_empty()) {
            let status = device.wait(PATIENCE)?;
            let output = device.output();
            ensure!(
                case.victim != Victim::PacketProcess
                    || status.success()
                    || output.contains("packet process"),
                "the device's end is not explained ({status}): {output}"
            );
        }
        Ok(!processes.is_empty())
    }

    /// Checks that `status` reports that a tunnel's process has ended.
    fn is_reported(&self, case: KillCase) -> Result<()> {
        if matches!(case.moment, KillMoment::Start | KillMoment::Down)
            || case.kind == TunnelKind::Device
        {
            // The command has reported it.
            return Ok(());
        }
        let status = self.world.taupe(&["status", INTERFACE])?;
        ensure!(
            status.status == Some(2) && status.stdout.contains("degraded"),
            "status: {status:?}"
        );
        Ok(())
    }

    /// Notes that the selected application may be outside the tunnel from now on.
    fn open(&mut self) {
        if let Some(since) = self.closed_since.take() {
            self.closed.push((since, now()));
        }
    }

    /// Takes the tunnel down, and checks that nothing stays. `is_up` is true if it must be up. Returns
    /// the time that taking it down took.
    fn end(&mut self, kind: TunnelKind, is_up: bool) -> Result<Duration> {
        self.open();
        let began = Instant::now();
        if kind == TunnelKind::Device {
            match &mut self.device {
                Some(device) => {
                    device.signal(Signal::TERM)?;
                    let status = device.wait(PATIENCE)?;
                    ensure!(status.success(), "the device: {status}");
                }
                // The kernel leaves the file of a killed program's socket.
                None => {
                    let _ = fs::remove_file(uapi_file());
                }
            }
            self.device = None;
        } else {
            let down = self.world.taupe(&["down", &self.file])?;
            ensure!(
                down.status == Some(0) || (!is_up && down.stderr.contains("is not")),
                "down: {down:?}"
            );
        }
        let time = began.elapsed();
        let mut left = Vec::new();
        wait_until("end of the tunnel's processes", PATIENCE, || {
            left = self.program.processes()?;
            Ok(left.is_empty())
        })
        .map_err(|error| Error::unmet(format!("{error}; left: {left:?}")))?;
        self.world.wait_for_end()?;
        self.world.is_as_before(&self.before, "something is left")?;
        let files = listed()?;
        // Some files stay after the first tunnel of a kind.
        let left: Vec<_> = files.difference(&self.files).collect();
        ensure!(
            left.is_empty() || self.durations[kind as usize].start.is_zero(),
            "files are left: {left:?}"
        );
        Ok(time)
    }

    /// Checks that no record was received outside the tunnel while the selected application was blocked.
    fn judge(&mut self) -> Result<()> {
        let outside = self.received.take_outside();
        let is_closed = |time: Duration| {
            let mut closed = self.closed.iter();
            closed.any(|(from, to)| (*from..*to).contains(&(time + SLACK)) && time >= *from)
        };
        let leaked: Vec<_> = outside
            .iter()
            .filter(|(time, _)| is_closed(*time))
            .collect();
        ensure!(
            leaked.is_empty(),
            "{} records outside the tunnel while it was closed {:?}: {:?}",
            leaked.len(),
            self.closed,
            leaked.get(..leaked.len().min(5))
        );
        self.allowed += outside.len();
        // Records of this case may still be on their way.
        if self.closed.len() > 8 {
            self.closed.remove(0);
        }
        Ok(())
    }

    fn conclude(self) -> Result<()> {
        for moment in MOMENTS {
            let victims = self.killed.iter().filter(|(_, at)| *at == moment);
            let victims: Vec<Victim> = victims.map(|(victim, _)| *victim).collect();
            let count = |role| victims.iter().filter(|victim| **victim == role).count();
            figure(
                &format!("killed, {moment:?}"),
                [Victim::Broker, Victim::PacketProcess, Victim::UserCommand].map(count),
            );
        }
        let by_tunnel = &self.received.by_tunnel;
        let by_tunnel = by_tunnel.each_ref().map(|it| it.load(Ordering::Relaxed));
        figure("records by the tunnel", by_tunnel);
        figure("records outside it, while that was allowed", self.allowed);
        // Records that are never received would prove nothing.
        ensure!(self.allowed > 0, "nothing was received outside the tunnel");
        Ok(())
    }
}

fn borrowed(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

fn uapi_file() -> String {
    format!("/run/wireguard/{INTERFACE}.sock")
}

/// Returns the paths of all files and pins of tunnels.
fn listed() -> Result<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    let mut folders: Vec<_> = FOLDERS.iter().map(|it| Path::new(it).to_owned()).collect();
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries {
            let path = entry
                .map_err(Error::io(folder.display().to_string()))?
                .path();
            if path.is_dir() {
                folders.push(path.clone());
            }
            all.insert(path.display().to_string());
        }
    }
    Ok(all)
}
