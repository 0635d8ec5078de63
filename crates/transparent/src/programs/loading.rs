//! Loading the programs of an object into the kernel.

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::{Mutex, PoisonError};
use std::thread;

use aya::programs::{Program, ProgramError};
use aya::{Btf, Ebpf, EbpfLoader};

use super::{AttachPoint, CaptureMode, ProgramSpec, kernel_types};
use crate::error::TransparentError;

/// Maximum number of programs that the kernel verifies at one time.
const MAX_THREADS: usize = 4;

/// Relocates the programs of a mode, and creates or opens their maps.
pub(super) fn load_maps(
    mode: CaptureMode,
    configure: impl FnOnce(&mut EbpfLoader<'_>),
) -> Result<Ebpf, TransparentError> {
    let types = kernel_types::of_object(mode.object())?;
    let mut loader = EbpfLoader::new();
    configure(&mut loader);
    let loaded = loader.btf(Some(&types)).load(mode.object());
    loaded.map_err(TransparentError::object)
}

/// As [`load_maps`], and loads the programs that are wanted.
pub(super) fn load_object(
    mode: CaptureMode,
    configure: impl FnOnce(&mut EbpfLoader<'_>),
    is_wanted: fn(&ProgramSpec) -> bool,
) -> Result<Ebpf, TransparentError> {
    let mut object = load_maps(mode, configure)?;
    let wanted = mode.programs().iter().filter(|spec| is_wanted(spec));
    let specs: Vec<_> = wanted.collect();
    let loaded = load_programs(&mut object, &specs)?;
    for (spec, loaded) in specs.into_iter().zip(loaded) {
        let loaded =
            loaded.map_err(|source| TransparentError::program(spec.name, spec.needs, source));
        match (loaded, spec.attach_point) {
            (Err(error), _) if error.is_exhaustion() => return Err(error),
            // The kernel may lack the hook. [`Programs::missing_features`] reports it.
            (_, AttachPoint::Entry(_) | AttachPoint::Security(_)) => {}
            // [`Programs::selected_sockets`] has another way.
            (_, AttachPoint::MapIterator(_)) => {}
            (loaded, _) => loaded?,
        }
    }
    Ok(object)
}

/// Loads programs, and returns the results in the same order. The kernel verifies a program for up to
/// 0.3 s, so several threads load them.
pub(super) fn load_programs(
    object: &mut Ebpf,
    specs: &[&ProgramSpec],
) -> Result<Vec<Result<(), ProgramError>>, TransparentError> {
    let btf = Btf::from_sys_fs().map_err(|error| TransparentError::object(error.into()))?;
    let mut programs: HashMap<&str, &mut Program> = object.programs_mut().collect();
    let mut jobs = Vec::new();
    for &spec in specs {
        let program = programs.remove(spec.name);
        let program = program.ok_or(TransparentError::Missing(spec.name))?;
        jobs.push((spec, program, None));
    }
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = threads.min(MAX_THREADS);
    let queue = Mutex::new(jobs.iter_mut());
    let load = || {
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        while let Some((spec, program, loaded)) = next() {
            *loaded = load_program(program, spec.attach_point, &btf);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // Without another thread this one loads all.
            let _ = thread::Builder::new().spawn_scoped(scope, load);
        }
        load();
    });
    let loaded = jobs
        .into_iter()
        .map(|(spec, _, loaded)| loaded.ok_or(TransparentError::Missing(spec.name)));
    loaded.collect()
}

/// Returns `None` if the program is not of the kind that is attached there.
fn load_program(
    program: &mut Program,
    attach_point: AttachPoint,
    btf: &Btf,
) -> Option<Result<(), ProgramError>> {
    Some(match (program, attach_point) {
        (Program::CgroupSock(program), _) => program.load(),
        (Program::CgroupSockAddr(program), _) => program.load(),
        (Program::CgroupSkb(program), _) => program.load(),
        (Program::SchedClassifier(program), _) => program.load(),
        (Program::BtfTracePoint(program), AttachPoint::Tracepoint(on)) => program.load(on, btf),
        (Program::Iter(program), AttachPoint::Iterator(over) | AttachPoint::MapIterator(over)) => {
            program.load(over, btf)
        }
        (Program::FEntry(program), AttachPoint::Entry(function)) => program.load(function, btf),
        (Program::Lsm(program), AttachPoint::Security(hook)) => program.load(hook, btf),
        _ => return None,
    })
}
