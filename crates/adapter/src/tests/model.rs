//! A system in memory.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::{self, File as DiskFile};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::symlink;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use taupe_config::file::File;
use taupe_os_linux::netlink::{NetlinkError, Route};

use crate::bypass::Bypass;
use crate::comparison::{Comparison, Deviation};
use crate::dns::{self, Paths};
use crate::fixtures::host;
use crate::identity::Socket;
use crate::last_state::LastState;
use crate::{
    Change, Compatibility, Down, DownError, FileStamp, LookError, Machine, Namespace, Options,
    Phase, ReloadError, Report, Request, SaveError, Snapshot, State, StepError, UpError, down_on,
    reload_on, up_on,
};

pub(super) const INTERFACE: &str = "wg0";

/// The state of the system that tunnels change.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct World {
    /// The index of the tunnel's interface.
    pub(super) link: Option<u32>,
    /// Objects that end with the interface.
    pub(super) of_device: BTreeSet<String>,
    /// Objects that do not.
    pub(super) of_host: BTreeSet<String>,
    /// The device's mark; 0 means none.
    pub(super) mark: u32,
    /// True if the sysctl differs from its original value.
    pub(super) valid_mark: bool,
}

/// A fault at a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// The call fails without an effect.
    Fail,
    /// Like [`Fault::Fail`], and from then on the journal cannot be written. For a model after
    /// [`Model::move_journal_to_memory`].
    FailWithFullDisk,
    /// From this call on the journal cannot be written. For a model after
    /// [`Model::move_journal_to_memory`].
    FullDisk,
    /// The process dies before the effect.
    DieBefore,
    /// The process dies after the effect.
    DieAfter,
}

/// The payload of the panic that simulates the death of a process.
struct Death;

pub(super) struct Model {
    pub(super) world: World,
    /// Phases of the executed hooks, in order.
    pub(super) ran: Vec<Phase>,
    /// The mark of the file that was examined last.
    file_mark: u32,
    /// Number of interfaces created.
    made: u32,
    /// Number of calls that change something.
    pub(super) calls: usize,
    /// The number of the call at which a fault occurs, and the fault.
    pub(super) fault: Option<(usize, Fault)>,
    /// True if the fault has occurred.
    pub(super) struck: bool,
    /// The number of the device whose process is running.
    process: Option<u32>,
    /// Another program removes name servers as soon as they are set.
    pub(super) loses_dns: bool,
    /// The effect of a PostUp command.
    pub(super) hook: Option<fn(&mut World)>,
    /// Hooks of this phase fail.
    pub(super) failing: Option<Phase>,
    pub(super) resolvable: bool,
    pub(super) savable: bool,
    /// True if the present interface is a WireGuard device.
    pub(super) is_wireguard: bool,
    /// True if the process of the interface was killed.
    is_dying: bool,
    /// Error of the caller's part of a reload.
    pub(super) refuses: Option<&'static str>,
    pub(super) saved: usize,
    /// Number of times that a socket answered in place of a device.
    pub(super) stood_in: usize,
    /// Additional routes of the system.
    pub(super) routes: Vec<Route>,
    /// Foreign routes that bypass the tunnel.
    pub(super) bypasses: Vec<Bypass>,
    /// The path of the file.
    pub(super) config: PathBuf,
    directory: PathBuf,
    /// The journal and its draft, if they are files in memory.
    in_memory: Vec<DiskFile>,
}

impl Drop for Model {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Model {
    pub(super) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("taupe-adapter-{}-{number}", std::process::id());
        Self {
            world: World::default(),
            ran: Vec::new(),
            file_mark: 0,
            made: 40,
            calls: 0,
            fault: None,
            struck: false,
            process: None,
            loses_dns: false,
            hook: None,
            failing: None,
            resolvable: true,
            savable: true,
            is_wireguard: false,
            is_dying: false,
            refuses: None,
            saved: 0,
            stood_in: 0,
            routes: Vec::new(),
            bypasses: Vec::new(),
            config: PathBuf::from("/etc/wireguard/wg0.conf"),
            directory: std::env::temp_dir().join(name),
            in_memory: Vec::new(),
        }
    }

    /// Schedules the fault for the `number`th call from now on.
    pub(super) fn strike(&mut self, number: usize, fault: Fault) {
        self.calls = 0;
        self.struck = false;
        self.fault = Some((number, fault));
    }

    pub(super) fn calm(&mut self) {
        self.fault = None;
    }

    pub(super) fn state(&self) -> State {
        State::at(&self.directory)
    }

    fn journal(&self) -> PathBuf {
        self.directory.join("wg0.journal")
    }

    pub(super) fn has_journal(&self) -> bool {
        self.journal().exists()
    }

    /// Replaces the journal and its draft by files in memory, which the kernel can keep from growing.
    pub(super) fn move_journal_to_memory(&mut self) {
        let path = self.journal();
        let text = fs::read(&path).expect("a journal");
        fs::remove_file(&path).expect("removed");
        let draft = path.with_extension("journal-draft");
        for (path, text) in [(path, &*text), (draft, &[])] {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = memfd_create("journal", flags).expect("a file in memory");
            let mut file = DiskFile::from(file);
            file.write_all(text).expect("written");
            symlink(format!("/proc/self/fd/{}", file.as_raw_fd()), path).expect("a link");
            self.in_memory.push(file);
        }
    }

    fn fill_disk(&self) {
        assert!(!self.in_memory.is_empty(), "a journal in memory");
        for file in &self.in_memory {
            fcntl_add_seals(file, SealFlags::GROW).expect("sealed");
        }
    }

    /// Returns true if everything that the journal lists is in effect.
    pub(super) fn is_as_recorded(&mut self) -> bool {
        let lock = self.state().lock(INTERFACE, Duration::ZERO);
        let journal = lock.expect("the lock").journal().expect("in order");
        let applied = journal.expect("there").applied();
        let applied: Vec<&Change> = applied.iter().map(|(_, change)| change).collect();
        let found = self.verify(&applied, None).expect("a comparison");
        found.deviations.iter().all(Option::is_none)
    }

    /// Kills the device's process and thereby removes its interface.
    pub(super) fn kill_device(&mut self) {
        self.world.link = None;
        self.world.mark = 0;
        self.world.of_device.clear();
        self.process = None;
    }

    /// Moves the interface to another network namespace.
    pub(super) fn move_device(&mut self) {
        self.world.link = None;
        self.world.of_device.clear();
    }

    /// Kills the device's process, whose interface still exists for a moment.
    pub(super) fn is_about_to_kill_device(&mut self) {
        self.is_dying = true;
    }

    /// Another program creates an interface of this name.
    pub(super) fn intrude(&mut self) {
        self.made += 1;
        self.world.link = Some(self.made);
    }

    /// Brings the tunnel up. Returns `None` if the process died.
    pub(super) fn up(
        &mut self,
        file: &File,
        compatibility: Compatibility,
        report: &mut Listener,
    ) -> Option<Result<(), UpError>> {
        self.up_with(file, compatibility, Options::default(), report)
    }

    pub(super) fn up_with(
        &mut self,
        file: &File,
        compatibility: Compatibility,
        options: Options,
        report: &mut Listener,
    ) -> Option<Result<(), UpError>> {
        let state = self.state();
        let config = self.config.clone();
        let request = Request {
            transparent: None,
            outer: None,
            outer_stamp: None,
            interface: INTERFACE,
            config: &config,
            stamp: FileStamp::of(&config),
            file,
            compatibility,
            options,
        };
        mortal(|| up_on(self, &state, &request, report))
    }

    /// Brings the tunnel down without the file, as after its loss.
    pub(super) fn down(&mut self, report: &mut Listener) -> Option<Result<(), DownError>> {
        self.down_with(None, Compatibility::Taupe, report)
    }

    pub(super) fn down_with(
        &mut self,
        file: Option<&File>,
        compatibility: Compatibility,
        report: &mut Listener,
    ) -> Option<Result<(), DownError>> {
        let state = self.state();
        let config = self.config.clone();
        let request = Down {
            interface: INTERFACE,
            file: file.map(|file| (&*config, file)),
            problem: None,
            compatibility,
            save: true,
        };
        mortal(|| down_on(self, &state, &request, report))
    }

    pub(super) fn reload(
        &mut self,
        file: &File,
        report: &mut Listener,
    ) -> Option<Result<(), ReloadError>> {
        let state = self.state();
        let config = self.config.clone();
        let request = Request {
            transparent: None,
            outer: None,
            outer_stamp: None,
            interface: INTERFACE,
            config: &config,
            stamp: FileStamp::of(&config),
            file,
            compatibility: Compatibility::Taupe,
            options: Options::default(),
        };
        let refused = self.refuses.map(str::to_owned);
        let mut first = || refused.clone().map_or(Ok(()), Err);
        mortal(|| reload_on(self, &state, &request, &mut first, report))
    }

    /// Executes one call, with a fault if it is due.
    fn call(
        &mut self,
        effect: impl FnOnce(&mut Self) -> Result<(), StepError>,
    ) -> Result<(), StepError> {
        let due = self.fault.filter(|(number, _)| *number == self.calls);
        self.calls += 1;
        self.struck |= due.is_some();
        match due {
            None => effect(self),
            Some((_, Fault::Fail)) => Err(failure("injected")),
            Some((_, Fault::FailWithFullDisk)) => {
                self.fill_disk();
                Err(failure("injected"))
            }
            Some((_, Fault::FullDisk)) => {
                self.fill_disk();
                effect(self)
            }
            Some((_, Fault::DieBefore)) => die(),
            Some((_, Fault::DieAfter)) => {
                let _ = effect(self);
                die()
            }
        }
    }

    fn add(&mut self, change: &Change) -> Result<(), StepError> {
        match change {
            Change::Hook(hook) => {
                self.ran.push(hook.phase);
                if self.failing == Some(hook.phase) {
                    return Err(failure("hook"));
                }
                if let (Phase::PostUp, Some(effect)) = (hook.phase, self.hook) {
                    effect(&mut self.world);
                }
            }
            Change::Device => {
                assert_eq!(self.world.link, None, "one interface of a name");
                self.made += 1;
                self.world.link = Some(self.made);
                self.process = Some(self.made);
            }
            Change::ValidMark { .. } => self.world.valid_mark = true,
            Change::Mark(mark) => {
                self.world.link.ok_or(StepError::NoInterface)?;
                self.world.mark = *mark;
            }
            // This step sets a value instead of adding one.
            Change::Up { .. } => {
                let old = |what: &String| !what.starts_with("Up");
                self.world.of_device.retain(old);
                self.world.of_device.insert(format!("{change:?}"));
            }
            Change::Dns(_) if self.loses_dns => {}
            change if change.ends_with_device() => {
                self.world.link.ok_or(StepError::NoInterface)?;
                let new = self.world.of_device.insert(format!("{change:?}"));
                assert!(new, "{change:?} exists");
                if *change == Change::Configure {
                    self.world.mark = self.file_mark;
                }
            }
            change => {
                if !self.world.of_host.insert(format!("{change:?}")) {
                    return Err(StepError::System(NetlinkError {
                        what: format!("make {change:?}"),
                        reason: None,
                        source: io::Error::from_raw_os_error(17), // EEXIST
                    }));
                }
            }
        }
        Ok(())
    }

    fn remove(&mut self, change: &Change) {
        match change {
            Change::Hook(_) | Change::Configure | Change::Up { .. } => {}
            // Its own interface is elsewhere, and this one belongs to another program.
            Change::Device if self.process.is_some() && self.world.link != self.process => {
                self.process = None;
            }
            Change::Device => self.kill_device(),
            Change::Mark(_) => self.world.mark = 0,
            Change::ValidMark { original } => self.world.valid_mark &= original.is_none(),
            change => {
                self.world.of_device.remove(&format!("{change:?}"));
                self.world.of_host.remove(&format!("{change:?}"));
            }
        }
    }
}

impl Machine for Model {
    fn namespace(&mut self) -> Namespace {
        Namespace::current()
    }

    fn is_gone(&mut self, namespace: &Namespace) -> bool {
        namespace.is_gone()
    }

    fn recover(&mut self) -> Result<Option<String>, StepError> {
        Ok(None)
    }

    fn interface(&mut self) -> Result<Option<u32>, StepError> {
        Ok(self.world.link)
    }

    fn socket(&mut self) -> Option<Socket> {
        self.process.map(|number| Socket::numbered(number.into()))
    }

    fn lives(&mut self, socket: Socket) -> bool {
        self.socket() == Some(socket)
    }

    fn select_device(&mut self, _: Option<u32>, _: Option<Socket>) {}

    fn interface_if_alive(&mut self) -> Result<Option<u32>, StepError> {
        if std::mem::take(&mut self.is_dying) {
            self.kill_device();
        }
        self.interface()
    }

    fn own_interface(&mut self) -> Result<Option<u32>, StepError> {
        self.interface()
    }

    fn is_wireguard(&mut self) -> bool {
        self.is_wireguard
    }

    fn look(
        &mut self,
        file: &File,
        own: &[Change],
        _report: &mut dyn Report,
    ) -> Result<Snapshot, LookError> {
        if !self.resolvable {
            return Err(LookError::Interrupted);
        }
        self.file_mark = file.interface.fwmark.unwrap_or(0);
        let paths = Paths::new(self.directory.clone(), "".as_ref(), None);
        let (servers, search) = (&file.interface.dns, &file.interface.dns_search);
        let mark = own.iter().find_map(|change| match change {
            Change::Mark(mark) => Some(*mark),
            _ => None,
        });
        let mut snapshot = host();
        snapshot.routes.extend_from_slice(&self.routes);
        Ok(Snapshot {
            dns: dns::choose(&paths, INTERFACE, servers, search)?,
            mark,
            ..snapshot
        })
    }

    fn set_known_endpoints(&mut self, _device: Option<LastState>) {}

    fn recognise(&mut self, _file: &File) -> Result<Vec<Change>, LookError> {
        Ok(vec![Change::Device])
    }

    fn command(&mut self, change: &Change, interface: &str) -> String {
        change.command(interface).to_string()
    }

    fn undoing(&mut self, change: &Change, interface: &str) -> Option<String> {
        change.undoing(interface)
    }

    fn apply(&mut self, change: &Change) -> Result<(), StepError> {
        self.call(|model| model.add(change))
    }

    fn undo(&mut self, change: &Change) -> Result<Option<String>, StepError> {
        self.call(|model| {
            model.remove(change);
            Ok(())
        })?;
        Ok(None)
    }

    fn verify(
        &mut self,
        changes: &[&Change],
        _index: Option<u32>,
    ) -> Result<Comparison, StepError> {
        let deviation = |change: &&Change| {
            let text = format!("{change:?}");
            let holds = match change {
                Change::Hook(_) | Change::Device | Change::Configure => true,
                Change::ValidMark { .. } => self.world.valid_mark,
                Change::Mark(mark) => self.world.mark == *mark,
                change if change.ends_with_device() => self.world.of_device.contains(&text),
                _ => self.world.of_host.contains(&text),
            };
            (!holds).then_some(Deviation::Removed)
        };
        Ok(Comparison {
            deviations: changes.iter().map(deviation).collect(),
            bypasses: self.bypasses.clone(),
        })
    }

    fn restore(&mut self, change: &Change) -> Result<(), StepError> {
        self.apply(change)
    }

    fn device(&mut self) -> Option<LastState> {
        self.process.map(|_| LastState::default())
    }

    fn stand_in(&mut self, state: Option<&LastState>) -> io::Result<()> {
        assert!(
            state.is_none() || self.process.is_none(),
            "a device answers itself"
        );
        self.stood_in += usize::from(state.is_some());
        Ok(())
    }

    fn sync(&mut self, mark: Option<u32>) -> Result<(), StepError> {
        self.call(|model| {
            model.world.mark = mark.unwrap_or(model.file_mark);
            Ok(())
        })
    }

    fn save(&mut self, _: &File, config: &Path, _: Compatibility) -> Result<(), SaveError> {
        if self.savable {
            self.saved += 1;
            return Ok(());
        }
        Err(SaveError::Io {
            what: "write",
            path: config.to_owned(),
            source: io::ErrorKind::StorageFull.into(),
        })
    }
}

fn failure(what: &str) -> StepError {
    StepError::Io {
        what: what.to_owned(),
        source: io::ErrorKind::Other.into(),
    }
}

fn die() -> ! {
    std::panic::resume_unwind(Box::new(Death))
}

/// Runs code that a fault may kill; other panics continue.
fn mortal<T>(body: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => Some(value),
        Err(panic) if panic.is::<Death>() => None,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Records progress and notes.
#[derive(Default)]
pub(super) struct Listener {
    pub(super) steps: Vec<String>,
    pub(super) notes: Vec<String>,
    /// Interrupts at the `n`th call of `is_interrupted`.
    pub(super) patience: Option<usize>,
    pub(super) asked: Cell<usize>,
}

impl Report for Listener {
    fn step(&mut self, command: &str) {
        self.steps.push(command.to_owned());
    }

    fn note(&mut self, sentence: &str) {
        self.notes.push(sentence.to_owned());
    }

    fn is_interrupted(&self) -> bool {
        self.asked.set(self.asked.get() + 1);
        self.patience
            .is_some_and(|patience| self.asked.get() > patience)
    }
}
