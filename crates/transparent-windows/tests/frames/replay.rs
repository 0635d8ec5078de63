//! A tap that replays frames and records the results.

use std::{collections::VecDeque, time::Duration};

use taupe_transparent_windows::{
    Adapter, Adapters, Event, Frame, Injection, PacketTap, TapError, Towards, Verdict,
};

/// A frame that was sent on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Arrived {
    pub(crate) adapter: u32,
    pub(crate) frame: Vec<u8>,
    /// True if the pipeline made it; false if it passed.
    pub(crate) made: bool,
}

#[derive(Default)]
pub(crate) struct Replay {
    pub(crate) adapters: Vec<Adapter>,
    pub(crate) changed: bool,
    pub(crate) fails: bool,
    pub(crate) decrement: u16,
    pub(crate) to_come: VecDeque<(u32, Towards, Vec<u8>)>,
    /// Frames that have left by a card, and frames that have reached the system.
    pub(crate) wire: Vec<Arrived>,
    pub(crate) stack: Vec<Arrived>,
    /// Frames that did not pass.
    pub(crate) taken: Vec<Vec<u8>>,
}

impl Replay {
    fn arrive(&mut self, towards: Towards, arrived: Arrived) {
        match towards {
            Towards::Card => self.wire.push(arrived),
            Towards::System => self.stack.push(arrived),
        }
    }
}

impl PacketTap for Replay {
    fn adapters(&mut self) -> Result<Adapters, TapError> {
        if self.fails {
            return Err(TapError("no list".into()));
        }
        self.changed = false;
        Ok(Adapters {
            taken: self.adapters.clone(),
            missed: Vec::new(),
        })
    }

    fn read(
        &mut self,
        _wait: Duration,
        judge: &mut dyn FnMut(Frame<'_>) -> Verdict,
    ) -> Result<Event, TapError> {
        while let Some((adapter, towards, frame)) = self.to_come.pop_front() {
            let judged = judge(Frame {
                adapter,
                towards,
                bytes: &frame,
            });
            match judged {
                Verdict::Pass => self.arrive(
                    towards,
                    Arrived {
                        adapter,
                        frame,
                        made: false,
                    },
                ),
                Verdict::Taken => self.taken.push(frame),
            }
        }
        Ok(if self.changed {
            Event::Adapters
        } else {
            Event::Read
        })
    }

    fn inject(&mut self, frames: &[Injection]) -> Result<(), TapError> {
        for injection in frames {
            let arrived = Arrived {
                adapter: injection.adapter,
                frame: injection.bytes().to_vec(),
                made: true,
            };
            self.arrive(injection.towards, arrived);
        }
        Ok(())
    }

    fn set_mtu_decrement(&mut self, bytes: u16) -> Result<(), TapError> {
        self.decrement = bytes;
        Ok(())
    }
}
