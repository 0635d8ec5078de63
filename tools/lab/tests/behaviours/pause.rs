//! A program that is stopped for a while.

use crate::pair::{FAR, NEAR, Pair};
use rustix::process::Signal;
use std::time::Duration;
use taupe_lab::capture::{Capture, Message, messages};
use taupe_lab::process::wait_until;
use taupe_lab::traffic::{first_answer, ping};
use taupe_lab::{Error, Result, ensure};

/// While a program was stopped, its peer has tried several times. The peer accepts an answer only
/// to its last initiation, so the program must answer this one.
pub(crate) fn newest_initiation_first() -> Result<()> {
    let mut pair = Pair::new()?;
    ping(&pair.near.host, FAR, 5)?;
    let far = pair.far.host.clone();

    pair.far.link(&["down"])?;
    signal(&mut pair, Signal::STOP)?;
    pair.set_near(&["persistent-keepalive", "1"])?;
    let (_, before) = pair.far.transfer(&pair.near.keys)?;
    pair.far.link(&["up"])?;
    // An initiation has 148 bytes; the next one follows after 5 s.
    wait_until("three initiations", Duration::from_secs(60), || {
        let (_, sent) = pair.far.transfer(&pair.near.keys)?;
        Ok(sent >= before + 3 * 148)
    })?;

    let capture = Capture::start(&far, "eth0", "udp src port 51821")?;
    signal(&mut pair, Signal::CONT)?;
    first_answer(&far, NEAR, Duration::from_secs(20))?;
    let packets = capture.stop()?;
    let more = messages(&packets, Message::Initiation).count();
    ensure!(more == 0, "{more} more initiations until one was answered");
    Ok(())
}

fn signal(pair: &mut Pair, signal: Signal) -> Result<()> {
    let process = pair.near.tunnel.process();
    let process = process.ok_or_else(|| Error::unmet("not a program of this machine"))?;
    process.signal(signal)
}
