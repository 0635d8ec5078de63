//! `taupe run`: runs the tunnel of a file in this process until Ctrl-C.

use super::Driver;
use super::arguments::RunOrder;
use super::frame_tunnel::TunnelEvent;
use super::tunnel::{PreparedTunnel, WindowsTunnelError};
use crate::console::say;
use crate::logging;
use crate::progress_line::LongCommand;
use crate::system;
use std::process::ExitCode;
use std::sync::mpsc::channel;

pub(crate) fn main<D: Driver>(order: &RunOrder) -> ExitCode {
    logging::begin(order.level);
    match run::<D>(order) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.complain(),
    }
}

fn run<D: Driver>(order: &RunOrder) -> Result<(), WindowsTunnelError> {
    let long = LongCommand::begin("bringing the tunnel up");
    let tunnel = PreparedTunnel::read(&order.file, order.mode, &|line| say(line))?;
    let name = tunnel.conf.interface.clone();
    let (sender, events) = channel();
    let end = sender.clone();
    let on_end = move || {
        let _ = end.send(TunnelEvent::End);
    };
    system::on_signal(on_end, || {}).map_err(WindowsTunnelError::Interrupt)?;
    let tunnel = tunnel.open::<D>((sender, events))?;
    drop(long);
    say(&format_args!(
        "[#] {name} is up; `taupe show {name}` prints its state, Ctrl-C takes it down"
    ));
    tunnel.run()
}
