//! The outer peer does not answer.

use super::{ENDPOINT, INNER, Nested, WEB, WITHIN};
use crate::world::{Application, ENDPOINT_PORT, PORT};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::step;
use taupe_lab::{Result, ensure};

/// The silent peer is the outer one, not the inner one whose datagrams it carries; this network's
/// next hop has nothing to do with the inner one.
pub(crate) fn of_the_outer_peer() -> Result<()> {
    let nested = Nested::new()?;
    let world = &nested.world;
    let selected = Application::new("mole")?;
    let (inner, outer) = (nested.inner("AllowedApps = mole")?, nested.outer("")?);
    nested.up(&[&inner, "--via", &outer])?;
    nested.expect_within(&selected)?;
    one_way(&nested, &selected)?;
    let swallow = format!(
        "table inet swallow {{ chain input {{ type filter hook input priority 0; \
         udp dport {ENDPOINT_PORT} drop; }}; chain output {{ type filter hook output priority 0; \
         udp sport {ENDPOINT_PORT} drop; }}; }}"
    );
    world.far.run_with_input(&["nft", "-f", "-"], &swallow)?;
    let silent = SocketAddr::new(world.neighbour(), ENDPOINT_PORT).to_string();
    let (blamed, _) = ENDPOINT.split_once(':').unwrap_or_default();
    let mut found = String::new();
    // Longer than the time after which the network is named, from the second handshake on.
    let begin = Instant::now();
    let done = wait_until("what says who", Duration::from_secs(90), || {
        // Traffic for the tunnels.
        let ask = format!("exec 3<>/dev/tcp/{}/{PORT}", WEB[0]);
        world
            .near
            .attempt(&["timeout", "1", &selected.0, "-c", &ask])?;
        let result = world.taupe(&["status", INNER])?;
        found = result.stdout;
        let of_outer = "home, which it goes through:";
        let wrong = found.lines().filter(|line| line.contains("[!]"));
        let wrong: Vec<_> = wrong.collect();
        // The inner tunnel may be the first to report silence, but must not name the network.
        let blames = |line: &&str| line.contains(blamed) && line.contains("next hop");
        ensure!(!wrong.iter().any(blames), "{found}");
        let is_named = |line: &&str| line.contains(&silent) && line.contains(of_outer);
        Ok(result.status == Some(2)
            && begin.elapsed() > Duration::from_secs(40)
            && matches!(&*wrong, [line] if is_named(line)))
    });
    ensure!(done.is_ok(), "{}: {found}", done.unwrap_err());
    world
        .far
        .run(&["nft", "delete", "table", "inet", "swallow"])?;
    wait_until("the end of the silence", Duration::from_secs(60), || {
        let is_answered = world.asks(&selected, WEB[0])?.as_deref() == Some(WITHIN[0]);
        Ok(is_answered && world.taupe(&["status", INNER])?.status == Some(0))
    })?;
    world.down(&inner)
}

/// The outer device's packets are lost, while its peer keeps sending. The outer tunnel cannot
/// detect this; the message stands beside the inner peer's silence.
fn one_way(nested: &Nested, selected: &Application) -> Result<()> {
    let world = &nested.world;
    step("only one direction");
    world.calls(1)?;
    let deaf = format!(
        "table inet deaf {{ chain input {{ type filter hook input priority 0; \
         udp dport {ENDPOINT_PORT} drop; }}; }}"
    );
    world.far.run_with_input(&["nft", "-f", "-"], &deaf)?;
    let mut found = String::new();
    // Initiations that the inner peer repeats end a silence before it is reported. TCP repeats packets of
    // an old connection for one to two minutes, and the inner peer its initiations for 90 seconds more.
    let done = wait_until("what is not known", Duration::from_secs(300), || {
        let ask = format!("exec 3<>/dev/tcp/{}/{PORT}", WEB[0]);
        world
            .near
            .attempt(&["timeout", "1", &selected.0, "-c", &ask])?;
        let output = world.taupe(&["status", INNER])?;
        found = output.stdout;
        let wrong = found.lines().filter(|line| line.contains("[!]"));
        let of_outer = "home, which it goes through, receives packets from its peer; whether";
        let is_reported = found.lines().any(|line| line.contains(of_outer));
        Ok(output.status == Some(2) && wrong.count() == 1 && is_reported)
    });
    ensure!(done.is_ok(), "{}: {found}", done.unwrap_err());
    world.far.run(&["nft", "delete", "table", "inet", "deaf"])?;
    world.calls(0)?;
    nested.expect_within(selected)
}
