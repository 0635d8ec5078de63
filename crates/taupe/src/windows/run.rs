//! `taupe run`: runs the tunnel of a file in this process until Ctrl-C.

use super::Driver;
use super::arguments::RunOrder;
use super::carrier::Asked;
use super::tunnel::{Failure, Wanted};
use crate::console::{Interrupt, say};
use crate::logging::{Destination, Logging};
use std::process::ExitCode;
use std::sync::mpsc::channel;

pub(crate) fn main<D: Driver>(order: &RunOrder) -> ExitCode {
    let logging = Logging {
        level: order.level,
        background: Destination::Nowhere,
    };
    logging.begin();
    match run::<D>(order) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.complain(),
    }
}

fn run<D: Driver>(order: &RunOrder) -> Result<(), Failure> {
    let wanted = Wanted::read(&order.file, order.mode, &|line| say(line))?;
    let name = wanted.conf.interface.clone();
    let (ask, asked) = channel();
    let end = ask.clone();
    let interrupt = Interrupt::catching(move |_| {
        let _ = end.send(Asked::End);
    });
    let _interrupt = interrupt.map_err(Failure::Interrupt)?;
    let tunnel = wanted.open::<D>((ask, asked))?;
    say(&format_args!(
        "[#] {name} is up; `taupe show {name}` tells how it is, Ctrl-C takes it down"
    ));
    tunnel.run()
}
