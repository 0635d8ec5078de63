//! The real system with a fault at one of its calls.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

use taupe_adapter::{
    Change, Comparison, Compatibility, LastState, Linux, LookError, Machine, Namespace, Report,
    SaveError, Snapshot, Socket, StepError,
};
use taupe_config::file::File;

/// Effect of a fault at a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// The call fails without doing anything.
    Fail,
    /// The process dies before the call.
    DieBefore,
    /// The process dies after the call.
    DieAfter,
}

/// The fault, the number of the call at which it happens, and the number of calls so far.
#[derive(Default)]
pub(crate) struct Schedule {
    pub(crate) due: Option<(usize, Fault)>,
    pub(crate) calls: usize,
    pub(crate) struck: bool,
}

/// Panic payload of a dying process. Unwinding skips all clean-up except what the kernel does,
/// which releases the lock.
struct InjectedCrash;

pub(crate) struct FaultInjector<'a, 'b> {
    pub(crate) inner: Linux<'a>,
    pub(crate) schedule: &'b mut Schedule,
}

impl FaultInjector<'_, '_> {
    fn call<T>(
        &mut self,
        call: impl FnOnce(&mut Linux<'_>) -> Result<T, StepError>,
    ) -> Result<T, StepError> {
        let schedule = &mut *self.schedule;
        let due = schedule.due.filter(|(number, _)| *number == schedule.calls);
        schedule.calls += 1;
        schedule.struck |= due.is_some();
        match due {
            None => call(&mut self.inner),
            Some((_, Fault::Fail)) => Err(StepError::Device("injected".to_owned())),
            Some((_, Fault::DieBefore)) => resume_unwind(Box::new(InjectedCrash)),
            Some((_, Fault::DieAfter)) => {
                let _ = call(&mut self.inner);
                resume_unwind(Box::new(InjectedCrash))
            }
        }
    }
}

/// Runs a function that may die of a fault; `None` if it did.
pub(crate) fn mortal<T>(body: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => Some(value),
        Err(panic) if panic.is::<InjectedCrash>() => None,
        Err(panic) => resume_unwind(panic),
    }
}

impl Machine for FaultInjector<'_, '_> {
    fn set_known_endpoints(&mut self, device: Option<LastState>) {
        self.inner.set_known_endpoints(device);
    }

    fn namespace(&mut self) -> Namespace {
        self.inner.namespace()
    }

    fn is_gone(&mut self, namespace: &Namespace) -> bool {
        self.inner.is_gone(namespace)
    }

    fn recover(&mut self) -> Result<Option<String>, StepError> {
        self.inner.recover()
    }

    fn interface(&mut self) -> Result<Option<u32>, StepError> {
        self.inner.interface()
    }

    fn interface_if_alive(&mut self) -> Result<Option<u32>, StepError> {
        self.inner.interface_if_alive()
    }

    fn is_wireguard(&mut self) -> bool {
        self.inner.is_wireguard()
    }

    fn look(
        &mut self,
        file: &File,
        own: &[Change],
        report: &mut dyn Report,
    ) -> Result<Snapshot, LookError> {
        self.inner.look(file, own, report)
    }

    fn recognise(&mut self, file: &File) -> Result<Vec<Change>, LookError> {
        self.inner.recognise(file)
    }

    fn command(&mut self, change: &Change, interface: &str) -> String {
        self.inner.command(change, interface)
    }

    fn undoing(&mut self, change: &Change, interface: &str) -> Option<String> {
        self.inner.undoing(change, interface)
    }

    fn apply(&mut self, change: &Change) -> Result<(), StepError> {
        self.call(|inner| inner.apply(change))
    }

    fn undo(&mut self, change: &Change) -> Result<Option<String>, StepError> {
        self.call(|inner| inner.undo(change))
    }

    fn socket(&mut self) -> Option<Socket> {
        self.inner.socket()
    }

    fn lives(&mut self, socket: Socket) -> bool {
        self.inner.lives(socket)
    }

    fn select_device(&mut self, index: Option<u32>, socket: Option<Socket>) {
        self.inner.select_device(index, socket);
    }

    fn own_interface(&mut self) -> Result<Option<u32>, StepError> {
        self.inner.own_interface()
    }

    fn verify(&mut self, changes: &[&Change], index: Option<u32>) -> Result<Comparison, StepError> {
        self.inner.verify(changes, index)
    }

    fn restore(&mut self, change: &Change) -> Result<(), StepError> {
        self.call(|inner| inner.restore(change))
    }

    fn device(&mut self) -> Option<LastState> {
        self.inner.device()
    }

    fn stand_in(&mut self, state: Option<&LastState>) -> io::Result<()> {
        self.inner.stand_in(state)
    }

    fn sync(&mut self, mark: Option<u32>) -> Result<(), StepError> {
        self.call(|inner| inner.sync(mark))
    }

    fn save(
        &mut self,
        file: &File,
        config: &Path,
        compatibility: Compatibility,
    ) -> Result<(), SaveError> {
        self.inner.save(file, config, compatibility)
    }
}
