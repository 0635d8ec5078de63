//! Replay windows of a session: one, or one for each lane of the sender.
//!
//! A lane of the sender that waits for its processor loses no messages to a window, because no
//! other lane moves its window.

use std::sync::{Mutex, MutexGuard};

use crate::lanes::{LaneId, Lanes, SessionLanes, position};
use crate::lock;
use crate::peer::replay::ReplayWindow;

pub(crate) enum Windows {
    One(Mutex<ReplayWindow>),
    /// The window of each lane of the sender, for the positions of its counters.
    Striped {
        lanes: Lanes,
        windows: Box<[LaneWindow]>,
    },
}

/// Aligned to two cache lines, because the processor may fetch two together and each lane of this
/// side writes to a different window.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct LaneWindow(Mutex<ReplayWindow>);

impl Windows {
    pub(crate) fn new(lanes: SessionLanes) -> Self {
        if !lanes.is_striped() {
            return Self::One(Mutex::default());
        }
        let windows = lanes.remote.ids().map(|_| LaneWindow::default());
        Self::Striped {
            lanes: lanes.remote,
            windows: windows.collect(),
        }
    }

    /// Returns the windows for the counters of one batch.
    pub(crate) fn lock(&self) -> LockedWindows<'_> {
        match self {
            Self::One(window) => LockedWindows::One(lock(window)),
            Self::Striped { lanes, windows } => LockedWindows::Striped {
                lanes: *lanes,
                windows,
                locked: None,
            },
        }
    }

    /// Returns the greatest counter received plus one; with lanes, the greatest position plus one.
    #[cfg(feature = "testing")]
    pub(crate) fn next(&self) -> u64 {
        self.each().map(|window| window.next()).max().unwrap_or(0)
    }

    /// Returns the allocated bytes.
    #[cfg(feature = "testing")]
    pub(crate) fn allocated(&self) -> usize {
        self.each().map(|window| window.allocated()).sum()
    }

    #[cfg(feature = "testing")]
    fn each(&self) -> impl Iterator<Item = MutexGuard<'_, ReplayWindow>> {
        let (one, striped) = match self {
            Self::One(window) => (Some(window), &[][..]),
            Self::Striped { windows, .. } => (None, &**windows),
        };
        let striped = striped.iter().map(|LaneWindow(window)| window);
        one.into_iter().chain(striped).map(lock)
    }
}

/// Windows for the counters of one batch. The window of a lane stays locked until a counter of
/// another lane follows.
pub(crate) enum LockedWindows<'a> {
    One(MutexGuard<'a, ReplayWindow>),
    Striped {
        lanes: Lanes,
        windows: &'a [LaneWindow],
        locked: Option<(LaneId, MutexGuard<'a, ReplayWindow>)>,
    },
}

impl LockedWindows<'_> {
    /// Records the counter of an authenticated message. Returns `false` if it was received before
    /// or is below the window.
    pub(crate) fn accept(&mut self, counter: u64) -> bool {
        match self {
            Self::One(window) => window.accept(counter),
            Self::Striped {
                lanes,
                windows,
                locked,
            } => {
                let (lane, position) = position(*lanes, counter);
                if let Some((of, window)) = locked
                    && *of == lane
                {
                    return window.accept(position);
                }
                // This window is unlocked before the next one is locked. Otherwise two batches
                // could wait for each other.
                *locked = None;
                let Some(LaneWindow(window)) = windows.get(lane.number()) else {
                    return false;
                };
                let (_, window) = locked.insert((lane, lock(window)));
                window.accept(position)
            }
        }
    }
}
