//! `make demo`: demonstrates transparent mode.
//!
//! The demo has a home with a local network, a web server on the internet, and a VPN provider with
//! its configuration file, which selects one application. Every printed line is a measurement: the
//! client address seen by the web server, a capture at the far end of the home's cable, or the
//! output of commands that show a system's configuration.

mod evidence;
mod observe;
mod world;

pub use evidence::Evidence;
pub use world::World;

use crate::error::Result;
use crate::peers::Implementation;
use crate::sandbox::scratch;
use observe::{CableCapture, Configuration, PacketCounts};
use std::fmt::{Display, Formatter};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use world::{FAMILIES, HOME, HOME_IN_LAN, INTERFACE, NAME, PRINTER, VPN, WEB};

/// Time limit for an application to notice that it is cut off. It takes milliseconds.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Runs the demo, and leaves the tunnel down.
///
/// # Errors
///
/// An error that keeps the demo from continuing; failed expectations are recorded in `evidence`.
pub fn run(world: &World, evidence: &mut Evidence) -> Result<()> {
    print_file(world, evidence)?;
    let before = Configuration::of(&world.home)?;
    up(world, evidence)?;
    check_selected(world, evidence)?;
    check_unselected(world, evidence)?;
    let during = Configuration::of(&world.home)?;
    let changes = during.changes(&before);
    evidence.check(
        "configuration",
        changes.is_empty(),
        Changes(&changes, &before),
    );
    let links = during.changed_links(&before);
    let one_more = format!(": {INTERFACE}: ");
    let holds = matches!(&*links, [link] if link.starts_with('+') && link.contains(&one_more));
    let links = match holds {
        true => format!("one more: {INTERFACE}"),
        false => format!("{links:?}"),
    };
    evidence.check("links", holds, links);

    check_killed(world, evidence)?;
    up(world, evidence)?;
    check_client_address(world, evidence, "A", &world.a, 0, VPN)?;
    measure_speed(world, evidence)?;

    world.taupe("down")?;
    let after = Configuration::of(&world.home)?;
    let mut changes = after.changes(&before);
    changes.extend(after.changed_links(&before));
    evidence.check("taupe down", changes.is_empty(), Changes(&changes, &before));
    check_client_address(world, evidence, "A", &world.a, 0, HOME)
}

fn print_file(world: &World, evidence: &mut Evidence) -> Result<()> {
    evidence
        .print("demo/home.conf, as a VPN provider hands it out, with these lines for this demo:\n");
    for line in World::lines(&["Endpoint", "AllowedApps", "DisallowedIPs"]) {
        evidence.print(format_args!("    {line}"));
    }
    evidence.print(
        "\nA is curl, B a copy of it called kurl. A web server tells them where they come from.\n",
    );
    check_client_address(world, evidence, "before, A", &world.a, 0, HOME)
}

/// Describes how to enter a sandbox that stays, and how to remove it. Its first process is `first`.
///
/// # Errors
///
/// [`Error::Missing`](crate::Error::Missing) without the program `taupe`.
pub fn shell_instructions(first: u32) -> Result<String> {
    let taupe = Implementation::Taupe.program()?;
    let (taupe, kurl) = (taupe.display(), scratch("kurl"));
    let (kurl, web) = (kurl.display(), WEB[0]);
    let enter = format!("nsenter -t {first} -m -p ip netns exec");
    Ok(format!(
        "\n\
         The machines stay, with the tunnel up. As root:\n\
         {enter} home curl http://{NAME}\n\
         {enter} home {kurl} http://{NAME}\n\
         {enter} home {taupe} status home\n\
         {enter} home {taupe} explain curl {web}:80\n\
         {enter} home {taupe} app allow home kurl\n\
         {enter} router tcpdump -ni home\n\
         {enter} home bash\n\
         To remove them: kill -9 {first}\n"
    ))
}

/// Observes the packets of A, the selected application.
fn check_selected(world: &World, evidence: &mut Evidence) -> Result<()> {
    let questions = world.questions();
    let watch = CableCapture::start(world)?;
    for family in [0, 1] {
        check_client_address(world, evidence, "A", &world.a, family, VPN)?;
    }
    let PacketCounts { clear, tunnel } = watch.stop()?;
    check_name_servers(world, evidence, "A's names", questions, 0);
    let text = format!("{clear} packets on home's cable, beside {tunnel} of the tunnel");
    evidence.check("A in clear", clear == 0 && tunnel > 0, text);
    let seen = world
        .request(&world.a, FAMILIES[0].0, &PRINTER.to_string())?
        .client;
    let text = format!("comes from {HOME_IN_LAN} to its printer: DisallowedIPs");
    evidence.check_equal("A in the LAN", &seen, &Some(HOME_IN_LAN), text);
    Ok(())
}

/// Observes the packets of B, which is not selected.
fn check_unselected(world: &World, evidence: &mut Evidence) -> Result<()> {
    let questions = world.questions();
    let watch = CableCapture::start(world)?;
    for family in [0, 1] {
        check_client_address(world, evidence, "B", &world.b, family, HOME)?;
    }
    let PacketCounts { clear, .. } = watch.stop()?;
    check_name_servers(world, evidence, "B's names", questions, 1);
    let text = format!("{clear} packets on home's cable: the capture works");
    evidence.check("B in clear", clear > 0, text);
    Ok(())
}

/// Kills the tunnel's process while A downloads a file.
fn check_killed(world: &World, evidence: &mut Evidence) -> Result<()> {
    let watch = CableCapture::start(world)?;
    let download = world.begin_download()?;
    world.kill_device()?;
    let mut slowest = Duration::ZERO;
    let mut through = Vec::new();
    let [v4, v6] = WEB;
    for server in [NAME.to_owned(), format!("[{v6}]"), v4.to_string()] {
        let reply = world.request(&world.a, "--globoff", &server)?;
        slowest = slowest.max(reply.took);
        through.extend(reply.client);
    }
    let PacketCounts { clear, tunnel } = watch.stop()?;
    drop(download);
    let text = match &*through {
        [] => format!("A is refused after {slowest:.1?}, by name and by both addresses"),
        _ => format!("A comes from {through:?}"),
    };
    let holds = through.is_empty() && slowest < AT_ONCE;
    evidence.check("kill -9 of taupe", holds, text);
    let text = format!("{clear} packets, also of a download that was under way");
    evidence.check("A in clear", clear == 0 && tunnel > 0, text);
    check_client_address(world, evidence, "B", &world.b, 0, HOME)
}

fn up(world: &World, evidence: &mut Evidence) -> Result<()> {
    let began = Instant::now();
    world.taupe("up")?;
    let text = format!("demo/home.conf took {:.1?}", began.elapsed());
    evidence.check("taupe up", true, text);
    Ok(())
}

/// Measures round trips and throughput of A and B.
fn measure_speed(world: &World, evidence: &mut Evidence) -> Result<()> {
    let both = || Ok([world.round_trip(&world.ping)?, world.round_trip("ping")?]);
    let reported = |[(_, a), (_, b)]: [(Duration, u32); 2]| match (a, b) {
        (0, 0) => String::new(),
        _ => format!("; {a} and {b} of 50 were lost"),
    };
    let mut trips = both()?;
    let first = reported(trips);
    if !first.is_empty() {
        // A busy machine may drop packets of either application; a defect of the tunnel shows
        // again.
        trips = both()?;
    }
    let lost = reported(trips);
    let [(a, _), (b, _)] = trips;
    let before = match first.is_empty() {
        true => String::new(),
        false => format!(" (before{})", first.replace(';', ",")),
    };
    let text = format!("A {a:.2?}, B {b:.2?}, by ping{lost}{before}");
    evidence.check("round trip", lost.is_empty(), text);
    let [a, b] = [&world.a, &world.b].map(|program| world.download(program));
    let (a, b) = (a? / 1e9, b? / 1e9);
    evidence.figure("download", format_args!("A {a:.1} Gbit/s, B {b:.1} Gbit/s"));
    Ok(())
}

/// Lets a program ask the web server for its client address.
fn check_client_address(
    world: &World,
    evidence: &mut Evidence,
    what: &str,
    program: &str,
    family: usize,
    expected: [IpAddr; 2],
) -> Result<()> {
    let (option, version) = FAMILIES[family];
    let owner = if expected == VPN {
        "the VPN server's"
    } else {
        "home's own"
    };
    let expected = expected[family];
    let reply = world.request(program, option, NAME)?;
    if let Some(found) = reply.client {
        let text = format!("comes from {expected}, {owner} {version} address");
        evidence.check_equal(what, &found, &expected, text);
    } else {
        evidence.check(what, false, reply.error);
    }
    Ok(())
}

/// Checks that only one name server has been asked: the VPN's (0) or the router's (1).
fn check_name_servers(
    world: &World,
    evidence: &mut Evidence,
    what: &str,
    before: [usize; 2],
    which: usize,
) {
    let now = world.questions();
    let queries = [0, 1].map(|server| now[server] - before[server]);
    let [vpn, router] = queries;
    let text = format!("{vpn} queries to the VPN's name server, {router} to the router's");
    evidence.check(what, queries[which] > 0 && queries[1 - which] == 0, text);
}

/// Formats changes of a configuration for a line of evidence.
struct Changes<'a>(&'a [String], &'a Configuration);

impl Display for Changes<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Self(changes, before) = self;
        let settings = before.settings.len();
        match changes {
            [] => write!(
                f,
                "routes, rules, addresses, nft, resolv.conf, {settings} sysctls: as before"
            ),
            changes => write!(f, "{}", changes.join("; ")),
        }
    }
}
