//! Processes that may open no more file descriptors.

use crate::world::{INTERFACE, Kind, SOON, World};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use taupe_lab::process::{Attempt, wait_until};
use taupe_lab::sandbox::{figure, step};
use taupe_lab::{Error, Result, ensure, uapi};

/// The system's words for `EMFILE`.
const WORDS: &str = "Too many open files";

/// The fewest descriptors with which the program itself can be loaded.
const FEWEST: u32 = 4;

/// More descriptors than any tunnel needs on a machine with few processors.
const MOST: u32 = 250;

/// A low limit, but enough to wait for as many descriptors at once as threads of the device do; the
/// kernel compares their number with the limit (poll(2)).
const LOW: u32 = 16;

/// Fails if a message blames the kernel or the user.
fn must_name_descriptors(attempt: &Attempt, when: &str) -> Result<()> {
    let text = &attempt.stderr;
    ensure!(text.contains(WORDS), "{when}: {attempt:?}");
    for wrong in [
        "newer kernel",
        "or newer",
        "CONFIG_",
        "panicked",
        "as root",
        "it takes root",
        "another program",
        "/sys/kernel/btf",
    ] {
        ensure!(!text.contains(wrong), "{when}: it says {wrong}: {text}");
    }
    Ok(())
}

/// With each limit the tunnel comes up with everything that it has without one, or nothing is left
/// of it.
pub(crate) fn start(kind: Kind) -> Result<()> {
    /// Difference of limits far from the one that suffices.
    const STRIDE: u32 = 9;
    let world = World::new(kind)?;
    let before = world.state()?;
    let usual = world.up()?;
    world.must_carry("without a limit")?;
    let links = world.links()?;
    ensure!(links.is_empty() != (kind == Kind::Transparent), "{links:?}");
    world.down()?;
    world.is_as_before(&before, "down")?;
    let succeeds = |count: u32| -> Result<bool> {
        let when = format!("{count} descriptors");
        step(&when);
        let limit = format!("--nofile={count}:{count}");
        let attempt = world.start(&["prlimit", &limit])?;
        let is_up = attempt.status == Some(0);
        if is_up {
            world.must_carry(&when)?;
            ensure!(
                attempt.stderr == usual.stderr,
                "{when}: {} instead of {}",
                attempt.stderr,
                usual.stderr
            );
            ensure!(world.links()? == links, "{when}: {:?}", world.links()?);
            world.down()?;
        } else {
            ensure!(attempt.status == Some(1), "{when}: {attempt:?}");
            must_name_descriptors(&attempt, &when)?;
            world.await_end()?;
        }
        world.is_as_before(&before, &when)?;
        Ok(is_up)
    };
    for enough in (FEWEST..MOST).step_by(STRIDE as usize) {
        if !succeeds(enough)? {
            continue;
        }
        let mut least = enough;
        for count in (enough + 1 - STRIDE..enough).rev() {
            if succeeds(count)? {
                least = least.min(count);
            }
        }
        figure("descriptors", least);
        return Ok(());
    }
    Err(Error::unmet(format!("{MOST} descriptors do not suffice")))
}

/// A connection to the device from before the limit is lowered.
struct Client(UnixStream);

impl Client {
    fn new() -> Result<Self> {
        let stream = UnixStream::connect(uapi::socket(INTERFACE));
        let stream = stream.map_err(Error::io("configuration socket"))?;
        let limit = stream.set_read_timeout(Some(SOON));
        limit.map_err(Error::io("configuration socket"))?;
        let mut client = Self(stream);
        // The first answer tells that the device serves it.
        client.exchange("get=1\n\n")?;
        Ok(client)
    }

    /// Sends a request, and returns the answer.
    fn exchange(&mut self, request: &str) -> Result<String> {
        let sent = self.0.write_all(request.as_bytes());
        sent.map_err(Error::io("request"))?;
        let mut answer = Vec::new();
        let mut block = [0; 4096];
        while !answer.ends_with(b"\n\n") {
            let size = self.0.read(&mut block).map_err(Error::io("answer"))?;
            ensure!(size > 0, "the device ends the connection");
            answer.extend(block.iter().take(size));
        }
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

/// Connects clients until the process that serves them has used all descriptors below [`LOW`]. Returns
/// the limit with which each process can open nothing: the other process may have some left.
fn occupy(processes: &BTreeSet<i32>) -> Result<(Vec<Client>, BTreeMap<i32, u32>)> {
    let first_free = |process: &i32| -> Result<u32> {
        let folder = format!("/proc/{process}/fd");
        let entries = fs::read_dir(&folder).map_err(Error::io(&*folder))?;
        let names = entries.flatten().map(|entry| entry.file_name());
        let used: BTreeSet<u32> = names
            .filter_map(|name| name.to_str()?.parse().ok())
            .collect();
        Ok((0..LOW)
            .find(|number| !used.contains(number))
            .unwrap_or(LOW))
    };
    let mut clients = Vec::new();
    loop {
        let limits = processes.iter().map(|it| Ok((*it, first_free(it)?)));
        let limits = limits.collect::<Result<BTreeMap<_, _>>>()?;
        if clients.len() == LOW as usize || limits.values().all(|limit| *limit == LOW) {
            return Ok((clients, limits));
        }
        clients.push(Client::new()?);
    }
}

/// While the tunnel's processes can open nothing, the tunnel goes on; afterwards everything is as
/// usual.
pub(crate) fn run(kind: Kind) -> Result<()> {
    let world = World::new(kind)?;
    let before = world.state()?;
    let mut process = world.stay_up()?;
    let processes = world.processes()?;
    let mut client = Client::new()?;
    let (others, limits) = occupy(&processes)?;
    let limit = |process: i32, count: u32| {
        let (process, limit) = (process.to_string(), format!("--nofile={count}:"));
        world.near.run(&["prlimit", "--pid", &process, &limit])
    };
    for (process, count) in limits {
        limit(process, count)?;
    }
    world.must_carry("without descriptors")?;
    step("another client");
    let show = ["timeout", "1", "wg", "show", INTERFACE];
    world.near.attempt(&show)?;
    step("another port");
    let refused = client.exchange("set=1\nlisten_port=51999\n\n")?;
    ensure!(!refused.contains("errno=0"), "another port: {refused}");
    // The broker writes the log of the packet process, after the answer perhaps.
    wait_until("the cause in the log", SOON, || {
        Ok(process.output().contains(WORDS))
    })?;
    world.must_carry("after another port was requested")?;
    step("another handshake");
    let get = client.exchange("get=1\n\n")?;
    let peer = get.lines().find(|line| line.starts_with("public_key="));
    let peer = peer.ok_or_else(|| Error::unmet(get.clone()))?;
    let again = format!(
        "set=1\n{peer}\nremove=true\n{peer}\nendpoint=192.0.2.2:51821\nallowed_ip=0.0.0.0/0\n\
         allowed_ip=::/0\n\n"
    );
    let answer = client.exchange(&again)?;
    ensure!(answer == "errno=0\n\n", "{answer}");
    wait_until("another session", SOON, || world.carries())?;
    step("another link");
    #[rustfmt::skip]
    world.near.ip(&[
        "link", "add", "other", "type", "veth", "peer", "name", "other", "netns", "far",
    ])?;
    world.near.ip(&["link", "set", "other", "up"])?;
    world.must_carry("after a link has appeared")?;
    step("a link that was down");
    world.near.ip(&["link", "set", "other", "down"])?;
    world.must_carry("after a link has changed")?;
    world.near.ip(&["link", "set", "other", "up"])?;
    ensure!(process.runs()?, "it ended: {}", process.output());

    step("descriptors again");
    for process in &processes {
        limit(*process, 1024)?;
    }
    drop(others);
    wait_until("the device's answers", SOON, || {
        Ok(world.near.attempt(&["wg", "show", INTERFACE])?.status == Some(0))
    })?;
    let set = ["wg", "set", INTERFACE, "listen-port", "51998"];
    world.near.run(&set)?;
    let port = ["wg", "show", INTERFACE, "listen-port"];
    ensure!(world.near.run(&port)?.text() == "51998", "another port");
    wait_until("packets from the other port", SOON, || world.carries())?;
    if kind == Kind::Transparent {
        // Filters of both directions on both links.
        wait_until("filters on the new link", SOON, || {
            let links = world.links()?;
            let filters = ["-taupe_in", "-taupe_out"];
            let count = |filter| links.iter().filter(|link| *link == filter).count();
            Ok(filters.iter().all(|filter| count(filter) == 2))
        })?;
        world.must_carry("with filters on the new link")?;
        const UNCHECKED: &str = "eBPF programs cannot be checked";
        let log = process.output();
        ensure!(log.matches(UNCHECKED).count() == 1, "{log}");
    }
    let log = process.output();
    ensure!(!log.contains("panicked"), "{log}");
    for wrong in ["another program", "newer"] {
        ensure!(!log.contains(wrong), "{log}");
    }
    ensure!(process.runs()?, "it ended: {log}");
    world.down()?;
    world.near.ip(&["link", "delete", "other"])?;
    world.is_as_before(&before, "down")
}

/// `doctor` gives no other advice to a process that may open few files than to others, unless it
/// says that this is why.
pub(crate) fn doctor() -> Result<()> {
    let world = World::new(Kind::Transparent)?;
    let advice = |attempt: &Attempt| -> BTreeSet<String> {
        let text = format!("{}{}", attempt.stdout, attempt.stderr);
        let lines = text.lines().map(|line| line.trim().to_owned());
        let is_advice = |line: &String| line.contains("or newer") || line.contains("CONFIG_");
        lines.filter(is_advice).collect()
    };
    let usual = advice(&world.taupe(&["doctor"])?);
    for count in [FEWEST, 24, 40] {
        step(&format!("{count} descriptors"));
        let limit = format!("--nofile={count}:{count}");
        let found = world.taupe_under(&["prlimit", &limit], &["doctor"])?;
        ensure!(found.status.is_some(), "{found:?}");
        ensure!(!found.stderr.contains("panicked"), "{found:?}");
        let more: Vec<_> = advice(&found).difference(&usual).cloned().collect();
        ensure!(more.is_empty(), "{count}: {more:#?}: {}", found.stdout);
        ensure!(found.stdout.contains(WORDS), "{count}: {}", found.stdout);
    }
    Ok(())
}
