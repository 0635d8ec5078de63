//! `taupe up` is killed with SIGKILL at every step, and `taupe down` removes the remains.

use crate::closed::kill_device;
use crate::state::State as SystemState;
use crate::{INTERFACE, World, called};
use std::path::Path;
use taupe_adapter::{
    Change, Comparison, Compatibility, Devices, LastState, Linux, LookError, Machine, Namespace,
    Options, Report, Request, SaveError, Snapshot, Socket, State, StepError, up_on,
};
use taupe_config::file::{Dialect, File, parse};
use taupe_lab::process;
use taupe_lab::sandbox::{figure, scratch, step};
use taupe_lab::{Error, Result, ensure};

/// Moment of the process's death.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum KillMoment {
    /// Before the step.
    Before,
    /// After the step.
    After,
}

const DEATHS: [KillMoment; 2] = [KillMoment::Before, KillMoment::After];

/// Returns files that together use every kind of step.
fn files(world: &World) -> Result<Vec<(&'static str, String)>> {
    let hooks = format!(
        "PreUp = true\nPostUp = nft add table ip hooked\nPreDown = wg show %i fwmark > {}\n\
         PostDown = nft delete table ip hooked 2>/dev/null || true",
        scratch(ANSWER).display()
    );
    Ok(vec![
        (
            "full",
            world.file(
                &format!("{hooks}\nDNS = 10.77.0.53, example.org"),
                "AllowedIPs = 0.0.0.0/0, ::/0",
            )?,
        ),
        ("networks", {
            let file = world.file("MTU = 1300", "AllowedIPs = 10.88.0.0/16, fd88::/48")?;
            let other = scratch("other");
            std::fs::create_dir_all(&other).map_err(Error::io("other"))?;
            let path = other.join(format!("{INTERFACE}.conf"));
            std::fs::rename(&file, &path).map_err(Error::io("other"))?;
            // The first file again, under its own name.
            world.file(
                &format!("{hooks}\nDNS = 10.77.0.53, example.org"),
                "AllowedIPs = 0.0.0.0/0, ::/0",
            )?;
            path.display().to_string()
        }),
    ])
}

/// File for the answer to a PreDown command.
const ANSWER: &str = "answer";

pub(crate) fn killed_at_every_step() -> Result<()> {
    own_resolv_conf()?;
    let world = World::new()?;
    crate::same::conntrack_begins(&world)?;
    let before = SystemState::of(&world.near)?;
    for (name, path) in files(&world)? {
        let steps = count(&world, &path)?;
        world.down(&path)?;
        unchanged(&world, &before, "down")?;
        figure(name, steps);
        ensure!(steps > 6, "{name}: only {steps} steps");
        for at in 0..steps {
            for death in DEATHS {
                step(&format!("{name}: step {at} of {steps}: {death:?}"));
                killed(&world, &path, at, death)?;
                world.down(&path)?;
                unchanged(&world, &before, &format!("{name}, step {at}, {death:?}"))?;
            }
        }
    }
    let (_, path) = &files(&world)?[0];
    over_a_killed_device(&world, path, &before)
}

/// Kills every process that a tunnel depends on: the device, and the `up` that cleans up after it
/// while a stand-in answers for the device.
fn over_a_killed_device(world: &World, path: &str, before: &SystemState) -> Result<()> {
    let is_answered = |what: &str| {
        let answer = std::fs::read_to_string(scratch(ANSWER)).unwrap_or_default();
        ensure!(answer == "0xca6c\n", "{what}: the command got {answer:?}");
        std::fs::remove_file(scratch(ANSWER)).map_err(Error::io(ANSWER))
    };
    step("the device is killed");
    count(world, path)?;
    kill_device(world)?;
    world.down(path)?;
    is_answered("down")?;
    unchanged(world, before, "down after a kill")?;
    // The first step is the PreDown command.
    for death in DEATHS {
        step(&format!("the device is killed, and up: {death:?}"));
        world.up(path)?;
        kill_device(world)?;
        killed(world, path, 0, death)?;
        if death == KillMoment::After {
            is_answered("up")?;
        }
        world.down(path)?;
        is_answered("down after a killed up")?;
        unchanged(world, before, "down after a killed up")?;
    }
    Ok(())
}

/// Gives the sandbox an `/etc/resolv.conf` of its own, a regular file. Name servers are then set by
/// the third method, which has the most steps.
pub(crate) fn own_resolv_conf() -> Result<()> {
    use rustix::mount::mount_bind_recursive;
    let upper = scratch("etc");
    std::fs::create_dir_all(&upper).map_err(Error::io("etc"))?;
    let mut copy = std::process::Command::new("cp");
    copy.args(["-a", "/etc/.", &upper.display().to_string()]);
    process::run("this sandbox", copy, None)?;
    let _ = std::fs::remove_file(upper.join("resolv.conf"));
    std::fs::write(upper.join("resolv.conf"), "nameserver 192.0.2.53\n")
        .map_err(Error::io("resolv.conf"))?;
    mount_bind_recursive(&upper, "/etc").map_err(Error::io("bind /etc"))?;
    Ok(())
}

/// Returns the number of steps: brings the file's tunnel up and leaves it.
fn count(world: &World, path: &str) -> Result<usize> {
    let ended = by_another_process(
        world,
        &format!("{} {:?} {path}", usize::MAX, KillMoment::Before),
    )?;
    let count = ended.stdout.trim().parse();
    count.map_err(|_| Error::unmet(format!("without a fault: {ended:?}")))
}

/// Does the same in a process that is killed at a step.
fn killed(world: &World, path: &str, at: usize, death: KillMoment) -> Result<()> {
    let ended = by_another_process(world, &format!("{at} {death:?} {path}"))?;
    // `ip netns exec` executes the process, so the signal ends it.
    ensure!(ended.status.is_none(), "it was not killed: {ended:?}");
    Ok(())
}

fn by_another_process(world: &World, order: &str) -> Result<process::Attempt> {
    let executable = std::env::current_exe().map_err(Error::io("own executable"))?;
    let mut command = world.near.command(&[&executable.display().to_string()]);
    command.env(ORDER, order);
    process::attempt(world.near.name(), command, None)
}

/// Environment variable that tells a process of this executable when to die.
const ORDER: &str = "TAUPE_LAB_DIES_AT";

/// Runs as such a process.
pub(crate) fn be_killed() -> Option<std::convert::Infallible> {
    let order = std::env::var(ORDER).ok()?;
    let mut words = order.splitn(3, ' ');
    let at: usize = words.next()?.parse().ok()?;
    let death = words.next()?;
    let death = DEATHS
        .into_iter()
        .find(|known| format!("{known:?}") == death)?;
    let path = words.next()?;
    let text = std::fs::read(path).ok()?;
    let file = parse(&text, Dialect::WgQuick).file?;
    let mut devices = CurrentNamespace;
    let state = State::default();
    let machine = Linux::new(INTERFACE, &state, &mut devices).ok()?;
    let mut machine = KilledAtStep {
        machine,
        at,
        death,
        count: 0,
    };
    let request = Request {
        transparent: None,
        outer: None,
        outer_stamp: None,
        interface: INTERFACE,
        config: Path::new(path),
        stamp: None,
        file: &file,
        compatibility: Compatibility::Taupe,
        options: Options::default(),
    };
    match up_on(&mut machine, &state, &request, &mut NoReport) {
        Ok(()) => println!("{}", machine.count),
        Err(error) => println!("{error}"),
    }
    std::process::exit(1)
}

fn unchanged(world: &World, before: &SystemState, what: &str) -> Result<()> {
    let left = before.difference(&SystemState::of(&world.near)?);
    ensure!(left.is_empty(), "{what}: left behind:\n{left}");
    Ok(())
}

struct NoReport;

impl Report for NoReport {
    fn step(&mut self, _: &str) {}
    fn note(&mut self, _: &str) {}
}

/// Starts devices in the current namespace.
struct CurrentNamespace;

impl Devices for CurrentNamespace {
    fn start(&mut self, interface: &str) -> std::result::Result<(), String> {
        let program = called("taupe").map_err(|error| error.to_string())?;
        let mut command = std::process::Command::new(program);
        command.args(["device", interface]);
        let started = process::run("near", command, None);
        started.map(drop).map_err(|error| error.to_string())
    }
}

/// A system on which the process dies at one step.
struct KilledAtStep<'a> {
    machine: Linux<'a>,
    at: usize,
    death: KillMoment,
    /// Number of steps so far.
    count: usize,
}

impl KilledAtStep<'_> {
    fn die_at(&self, step: usize, moment: KillMoment) {
        if step == self.at && moment == self.death {
            let own = rustix::process::getpid();
            let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
        }
    }
}

impl Machine for KilledAtStep<'_> {
    fn set_known_endpoints(&mut self, device: Option<LastState>) {
        self.machine.set_known_endpoints(device);
    }

    fn namespace(&mut self) -> Namespace {
        self.machine.namespace()
    }

    fn is_gone(&mut self, namespace: &Namespace) -> bool {
        self.machine.is_gone(namespace)
    }

    fn recover(&mut self) -> std::result::Result<Option<String>, StepError> {
        self.machine.recover()
    }

    fn interface(&mut self) -> std::result::Result<Option<u32>, StepError> {
        self.machine.interface()
    }

    fn interface_if_alive(&mut self) -> std::result::Result<Option<u32>, StepError> {
        self.machine.interface_if_alive()
    }

    fn is_wireguard(&mut self) -> bool {
        self.machine.is_wireguard()
    }

    fn look(
        &mut self,
        file: &File,
        own: &[Change],
        report: &mut dyn Report,
    ) -> std::result::Result<Snapshot, LookError> {
        self.machine.look(file, own, report)
    }

    fn recognise(&mut self, file: &File) -> std::result::Result<Vec<Change>, LookError> {
        self.machine.recognise(file)
    }

    fn command(&mut self, change: &Change, interface: &str) -> String {
        self.machine.command(change, interface)
    }

    fn undoing(&mut self, change: &Change, interface: &str) -> Option<String> {
        self.machine.undoing(change, interface)
    }

    fn apply(&mut self, change: &Change) -> std::result::Result<(), StepError> {
        let step = self.count;
        self.count += 1;
        self.die_at(step, KillMoment::Before);
        let taken = self.machine.apply(change);
        self.die_at(step, KillMoment::After);
        taken
    }

    fn undo(&mut self, change: &Change) -> std::result::Result<Option<String>, StepError> {
        self.machine.undo(change)
    }

    fn socket(&mut self) -> Option<Socket> {
        self.machine.socket()
    }

    fn lives(&mut self, socket: Socket) -> bool {
        self.machine.lives(socket)
    }

    fn select_device(&mut self, index: Option<u32>, socket: Option<Socket>) {
        self.machine.select_device(index, socket);
    }

    fn own_interface(&mut self) -> std::result::Result<Option<u32>, StepError> {
        self.machine.own_interface()
    }

    fn verify(
        &mut self,
        changes: &[&Change],
        index: Option<u32>,
    ) -> std::result::Result<Comparison, StepError> {
        self.machine.verify(changes, index)
    }

    fn restore(&mut self, change: &Change) -> std::result::Result<(), StepError> {
        self.machine.restore(change)
    }

    fn device(&mut self) -> Option<LastState> {
        self.machine.device()
    }

    fn stand_in(&mut self, state: Option<&LastState>) -> std::io::Result<()> {
        self.machine.stand_in(state)
    }

    fn sync(&mut self, mark: Option<u32>) -> std::result::Result<(), StepError> {
        self.machine.sync(mark)
    }

    fn save(
        &mut self,
        file: &File,
        config: &Path,
        compatibility: Compatibility,
    ) -> std::result::Result<(), SaveError> {
        self.machine.save(file, config, compatibility)
    }
}
