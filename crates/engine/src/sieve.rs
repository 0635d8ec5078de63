//! A flood shed in the kernel.
//!
//! To receive a message costs more than to find out that it is not wanted. So while
//! there is a flood, the sockets for handshakes have a filter of eBPF (`bpf/sieve.c`),
//! which keeps an initiation only of who has sent one some 5 s before, as whoever means
//! it does. It takes `CAP_BPF`; where the system refuses it, all is received, and
//! judged by `taupe_protocol` alone.

use aya::maps::{MapData, MapError, PerCpuArray};
use aya::programs::{ProgramError, SocketFilter};
use aya::{Ebpf, EbpfError, EbpfLoader, include_bytes_aligned};
use std::os::fd::BorrowedFd;
use thiserror::Error;
use tracing::{debug, info};
use zeroize::Zeroizing;

/// What `scripts/bpf` made of `bpf/sieve.c`.
static OBJECT: &[u8] = include_bytes_aligned!("bpf/sieve.o");

/// The filter of a device's sockets.
pub(crate) struct Sieve {
    loaded: Loaded,
    /// Whether the sockets have it.
    is_on: bool,
    /// What it had dropped when it was last asked.
    dropped: u64,
}

/// It is loaded for the first flood, and stays: it remembers who has come.
enum Loaded {
    NotYet,
    /// The system does not let us, or it is not wanted.
    Never,
    Yes(Box<Program>),
}

struct Program {
    object: Ebpf,
    dropped: PerCpuArray<MapData, u64>,
}

#[derive(Debug, Error)]
enum Refused {
    #[error(transparent)]
    Object(#[from] EbpfError),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Map(#[from] MapError),
    #[error("the object lacks {0}")]
    Lacks(&'static str),
}

impl Sieve {
    pub(crate) fn new(is_wanted: bool) -> Self {
        Self {
            loaded: if is_wanted {
                Loaded::NotYet
            } else {
                Loaded::Never
            },
            is_on: false,
            dropped: 0,
        }
    }

    /// The sockets are others now, which have no filter.
    pub(crate) fn forget_sockets(&mut self) {
        self.is_on = false;
    }

    /// Has the sockets filtered during a flood, and not otherwise.
    pub(crate) fn follow<'a>(
        &mut self,
        flood: bool,
        sockets: impl Iterator<Item = BorrowedFd<'a>>,
        random: impl FnOnce(&mut [u8]),
    ) {
        if flood == self.is_on {
            return;
        }
        if let Loaded::NotYet = self.loaded {
            self.loaded = match Program::load(random) {
                Ok(program) => Loaded::Yes(Box::new(program)),
                Err(error) => {
                    info!(%error, "a flood of handshakes cannot be shed in the kernel");
                    Loaded::Never
                }
            };
        }
        let Loaded::Yes(program) = &self.loaded else {
            return;
        };
        // Also where it fails, or it would be tried every few milliseconds.
        self.is_on = flood;
        for socket in sockets {
            if let Err(error) = program.filter(socket, flood) {
                debug!(%error, flood, "filtering a socket for handshakes");
            }
        }
    }

    /// How many messages it has dropped since it was last asked.
    pub(crate) fn news(&mut self) -> u64 {
        let Loaded::Yes(program) = &self.loaded else {
            return 0;
        };
        if !self.is_on {
            return 0;
        }
        let dropped = program.dropped();
        dropped.saturating_sub(std::mem::replace(&mut self.dropped, dropped))
    }
}

impl Program {
    fn load(random: impl FnOnce(&mut [u8])) -> Result<Self, Refused> {
        // Where a sender is remembered, nobody else is to know.
        let mut secret = Zeroizing::new([0; 16]);
        random(&mut secret[..]);
        let mut object = EbpfLoader::new()
            .override_global("secret", &*secret, true)
            .load(OBJECT)?;
        let filter: &mut SocketFilter = object
            .program_mut("sieve")
            .ok_or(Refused::Lacks("the program"))?
            .try_into()?;
        filter.load()?;
        let dropped = object.take_map("dropped");
        let dropped = dropped.ok_or(Refused::Lacks("the counter"))?.try_into()?;
        Ok(Self { object, dropped })
    }

    fn filter(&self, socket: BorrowedFd<'_>, on: bool) -> Result<(), ProgramError> {
        let filter = self.object.program("sieve");
        let Some(filter) = filter.and_then(|program| <&SocketFilter>::try_from(program).ok())
        else {
            return Ok(());
        };
        if on {
            filter.attach(socket)
        } else {
            SocketFilter::detach(socket)
        }
    }

    /// How many messages have been dropped, on all processors.
    fn dropped(&self) -> u64 {
        self.dropped
            .get(&0, 0)
            .map_or(0, |counts| counts.iter().sum())
    }
}
