//! Endpoints with names: the device finds a peer that has moved without any action of the user.
//!
//! Each machine has the sandbox's own /etc/hosts and /etc/resolv.conf.

mod server;

use base64ct::{Base64, Encoding};
use rustix::mount::mount_bind;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;
use taupe_lab::host::{Host, add_address, link};
use taupe_lab::peers::{Implementation, Keys, PeerSettings, Settings, Tunnel};
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{Suite, SystemTest, figure, scratch_file, step};
use taupe_lab::traffic::{first_answer, ping};
use taupe_lab::{Error, Result, ensure, uapi};

/// The device notices a silent peer after 15 s, looks its name up after 15 s more of unanswered
/// initiations, and tries the new address 5 s later; with jitter, and a margin for a shared
/// machine.
const FOUND: Duration = Duration::from_secs(3 * 37);

/// Before the first handshake, the second initiation, after 5 s, triggers a look-up, and the next
/// address is tried a second later; with jitter, and a margin for a shared machine.
const NEXT_ADDRESS: Duration = Duration::from_secs(3 * 7);

fn main() {
    let limit = FOUND + Duration::from_secs(60);
    let test = |name: &str, body: fn() -> Result<()>| SystemTest::new(name, body).limit(limit);
    Suite::new(vec![
        test("peer_that_moves", peer_that_moves),
        test("peer_that_moves_in_a_full_tunnel", full_tunnel),
        test("next_address", next_address),
        test("next_family", next_family),
        test("name_that_goes_away", name_that_goes_away),
        test("endpoint_forgets_the_name", endpoint_forgets_the_name),
    ])
    .prepare(|| Implementation::Taupe.install().map(drop))
    .main()
}

const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));
const NAME: &str = "far.example.org";
const PORT: u16 = 51821;

/// Two Taupes on one cable. The far one is at 192.0.2.2, and learns the near one's endpoint from
/// its messages.
struct Pair {
    near: Host,
    far: Host,
    tunnels: [Tunnel; 2],
    keys: [Keys; 2],
}

impl Pair {
    fn new(allowed_ips: &str) -> Result<Self> {
        let (near, far) = (Host::new("near")?, Host::new("far")?);
        link(
            near.port("eth0", &["192.0.2.1/24"]),
            far.port("eth0", &["192.0.2.2/24"]),
            1500,
        )?;
        let keys = [Keys::new(&near)?, Keys::new(&far)?];
        let tunnels = [
            Implementation::Taupe.start(&near, "wgnear")?,
            Implementation::Taupe.start(&far, "wgfar")?,
        ];
        let pair = Self {
            near,
            far,
            tunnels,
            keys,
        };
        pair.tunnels[0].configure(&Settings {
            private_key: &pair.keys[0].private,
            listen_port: Some(51820),
            addresses: &["10.77.0.1/24"],
            peers: &[PeerSettings {
                public_key: &pair.keys[1].public,
                preshared_key: None,
                endpoint: None,
                allowed_ips,
            }],
        })?;
        pair.tunnels[1].configure(&Settings {
            private_key: &pair.keys[1].private,
            listen_port: Some(PORT),
            addresses: &["10.77.0.2/24"],
            peers: &[pair.near_as_peer()],
        })?;
        Ok(pair)
    }

    fn near_as_peer(&self) -> PeerSettings<'_> {
        PeerSettings {
            public_key: &self.keys[0].public,
            preshared_key: None,
            endpoint: None,
            allowed_ips: "10.77.0.1/32",
        }
    }

    /// Gives the far end an endpoint with a name, on the near one.
    fn name_far(&self, address: &str) -> Result<()> {
        let key = hex(&self.keys[1].public)?;
        let lines =
            format!("public_key={key}\nendpoint={address}:{PORT}\nendpoint_name={NAME}:{PORT}\n");
        uapi::set("wgnear", &lines)
    }

    /// Moves the far end to another address. It forgets the near one's endpoint, so that it cannot
    /// send first.
    fn move_far(&self, from: &str, to: &str) -> Result<()> {
        self.far
            .ip(&["address", "delete", &format!("{from}/24"), "dev", "eth0"])?;
        self.tunnels[1].replace_peer(&self.near_as_peer())?;
        add_address(&self.far, "eth0", &format!("{to}/24"))
    }

    /// Checks the far end's endpoint and name as reported by the near end.
    fn ensure_endpoint(&self, address: &str, name: Option<&str>) -> Result<()> {
        let shown = self.tunnels[0].field("endpoints", &self.keys[1].public)?;
        let expected = format!("{address}:{PORT}");
        ensure!(shown == expected, "endpoint {shown}, expected {expected}");
        let reported = uapi::exchange("wgnear", "get=1\n\n")?;
        let mut lines = reported.lines();
        let found = lines.find_map(|line| line.strip_prefix("endpoint_name="));
        let expected = name.map(|name| format!("{name}:{PORT}"));
        ensure!(found == expected.as_deref(), "{reported}");
        Ok(())
    }

    /// Waits until the near end's program has printed a word.
    fn await_word(&mut self, word: &str, limit: Duration) -> Result<()> {
        let process = self.tunnels[0].process();
        let process = process.ok_or_else(|| Error::unmet("not a program of this machine"))?;
        wait_until(word, limit, || Ok(process.output().contains(word)))
    }
}

fn peer_that_moves() -> Result<()> {
    let hosts = SystemFile::replace("/etc/hosts", &format!("192.0.2.2 {NAME}\n"))?;
    let pair = Pair::new("10.77.0.2/32")?;
    pair.name_far("192.0.2.2")?;
    ping(&pair.near, FAR, 10)?;

    step("it moves");
    pair.move_far("192.0.2.2", "192.0.2.3")?;
    hosts.write(&format!("192.0.2.3 {NAME}\n"))?;
    let took = first_answer(&pair.near, FAR, FOUND)?;
    figure("traffic after a move", took);
    pair.ensure_endpoint("192.0.2.3", Some(NAME))
}

/// All traffic goes through the tunnel except packets with its mark; this includes the C library's
/// questions to name servers.
fn full_tunnel() -> Result<()> {
    let _hosts = SystemFile::replace("/etc/hosts", "127.0.0.1 localhost\n")?;
    let servers = SystemFile::replace("/etc/resolv.conf", "nameserver 192.0.2.53\n")?;
    let pair = Pair::new("0.0.0.0/0")?;
    // In a subnet of its own, so that it stays when the other address is removed.
    add_address(&pair.far, "eth0", "192.0.2.53/32")?;
    let queries = server::start(&pair.far, NAME, Ipv4Addr::new(192, 0, 2, 3))?;
    pair.tunnels[0].set(&["fwmark", "51820"])?;
    pair.name_far("192.0.2.2")?;
    let near = &pair.near;
    near.ip(&["route", "add", "default", "dev", "wgnear", "table", "51820"])?;
    near.ip(&["rule", "add", "not", "fwmark", "51820", "table", "51820"])?;
    servers.write("nameserver 10.77.0.2\noptions timeout:1 attempts:1\n")?;
    ping(near, FAR, 10)?;
    ensure!(queries.count() == 0, "nobody had a reason to ask");

    step("it moves");
    pair.move_far("192.0.2.2", "192.0.2.3")?;
    let took = first_answer(near, FAR, FOUND)?;
    figure("traffic after a move in a full tunnel", took);
    ensure!(queries.count() > 0, "found without the name server");
    pair.ensure_endpoint("192.0.2.3", Some(NAME))
}

/// A name with two addresses, the first of which is unused.
fn next_address() -> Result<()> {
    second_address("192.0.2.9", "192.0.2.9")
}

/// A name with two addresses, the first of which is of the other family and gives no answer.
fn next_family() -> Result<()> {
    second_address("2001:db8::9", "[2001:db8::9]")
}

fn second_address(dead: &str, endpoint: &str) -> Result<()> {
    let both = format!("{dead} {NAME}\n192.0.2.2 {NAME}\n");
    let _hosts = SystemFile::replace("/etc/hosts", &both)?;
    let pair = Pair::new("10.77.0.2/32")?;
    add_address(&pair.near, "eth0", "2001:db8::1/64")?;
    pair.name_far(endpoint)?;
    let took = first_answer(&pair.near, FAR, NEXT_ADDRESS)?;
    figure("traffic by the second address", took);
    pair.ensure_endpoint("192.0.2.2", Some(NAME))
}

fn name_that_goes_away() -> Result<()> {
    let hosts = SystemFile::replace("/etc/hosts", &format!("192.0.2.2 {NAME}\n"))?;
    // No machine has this address, and no route leads there.
    let _servers = SystemFile::replace("/etc/resolv.conf", "nameserver 203.0.113.53\n")?;
    let mut pair = Pair::new("10.77.0.2/32")?;
    pair.name_far("192.0.2.2")?;
    pair.far.ip(&["link", "set", "eth0", "down"])?;
    hosts.write("127.0.0.1 localhost\n")?;
    let limit = Duration::from_secs(3 * 16);
    let nobody = pair
        .near
        .attempt(&["ping", "-n", "-c", "1", "-W", "1", "10.77.0.2"])?;
    ensure!(nobody.status != Some(0), "an answer from nobody");
    pair.await_word("cannot be looked up", limit)?;
    pair.ensure_endpoint("192.0.2.2", Some(NAME))?;

    step("it comes back where it was");
    pair.far.ip(&["link", "set", "eth0", "up"])?;
    first_answer(&pair.near, FAR, Duration::from_secs(3 * 6))?;
    pair.ensure_endpoint("192.0.2.2", Some(NAME))
}

fn endpoint_forgets_the_name() -> Result<()> {
    let _hosts = SystemFile::replace("/etc/hosts", &format!("192.0.2.9 {NAME}\n"))?;
    let pair = Pair::new("10.77.0.2/32")?;
    pair.name_far("192.0.2.9")?;
    pair.ensure_endpoint("192.0.2.9", Some(NAME))?;
    // Debian's wg ignores unknown keys.
    for field in ["dump", "endpoints", "latest-handshakes"] {
        pair.tunnels[0].show(Some(field))?;
    }
    let config = pair.near.run(&["wg", "showconf", "wgnear"])?;
    ensure!(
        config.stdout.contains("Endpoint = 192.0.2.9:51821\n"),
        "{}",
        config.stdout
    );

    let far = &*pair.keys[1].public;
    pair.tunnels[0].set(&["peer", far, "persistent-keepalive", "25"])?;
    pair.ensure_endpoint("192.0.2.9", Some(NAME))?;
    pair.tunnels[0].set(&["peer", far, "endpoint", "192.0.2.2:51821"])?;
    pair.ensure_endpoint("192.0.2.2", None)?;
    first_answer(&pair.near, FAR, Duration::from_secs(3 * 6)).map(drop)
}

/// A system file, replaced in this sandbox.
struct SystemFile(String);

impl SystemFile {
    fn replace(path: &str, text: &str) -> Result<Self> {
        let file = Path::new(path);
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let replacement = scratch_file(&name, text)?;
        // The file may be a symbolic link, often into /run, whose target is missing here.
        if let Ok(target) = fs::read_link(file) {
            let target = file.parent().unwrap_or(file).join(target);
            if let (false, Some(folder)) = (target.exists(), target.parent()) {
                fs::create_dir_all(folder).map_err(Error::io(path))?;
                fs::write(&target, "").map_err(Error::io(path))?;
            }
        }
        mount_bind(&*replacement, path).map_err(Error::io(path))?;
        Ok(Self(replacement))
    }

    /// Writes it in place: other mount namespaces have the same file.
    fn write(&self, text: &str) -> Result<()> {
        fs::write(&self.0, text).map_err(Error::io(&*self.0))
    }
}

/// Returns a key in the UAPI's form.
fn hex(key: &str) -> Result<String> {
    let bytes = Base64::decode_vec(key).map_err(|error| Error::unmet(error.to_string()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Address of the name server.
const NAME_SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 53)), 53);
