//! `taupe up` and `taupe down`, compared with Debian's `wg-quick`, on real systems.

mod bypass;
mod closed;
mod confirm;
mod drift;
mod faults;
mod files;
mod gateway;
mod hooks;
mod life;
mod local;
mod metrics;
mod narrow;
mod overtaken;
mod same;
mod save;
mod source;
mod state;
mod stopped;
mod tunnel;
mod wait;

use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;
use taupe_lab::host::{Host, neighbours};
use taupe_lab::peers::Implementation;
use taupe_lab::process::Attempt;
use taupe_lab::sandbox::{Suite, SystemTest, scratch, scratch_file};
use taupe_lab::server::Server;
use taupe_lab::{Error, Result, ensure};

fn main() {
    if faults::be_killed().is_some() {
        return;
    }
    let long = Duration::from_secs(180);
    Suite::new(vec![
        SystemTest::new("same_as_wg_quick", same::all).limit(long),
        SystemTest::new("wg_quick_undoes_taupe_and_reverse", same::crossed).limit(long),
        SystemTest::new("full_tunnel_ipv4", tunnel::ipv4),
        SystemTest::new("full_tunnel_ipv6", tunnel::ipv6),
        SystemTest::new("full_tunnel_dual", tunnel::dual),
        SystemTest::new("full_tunnel_by_halves", tunnel::halves),
        SystemTest::new("full_tunnel_with_exceptions", tunnel::disallowed),
        SystemTest::new("no_clear_text_of_ipv6", closed::ipv6_of_an_ipv4_tunnel),
        SystemTest::new("no_clear_text_after_a_kill", closed::killed_device),
        SystemTest::new(
            "no_clear_text_until_up_again",
            closed::killed_device_and_up_again,
        ),
        SystemTest::new("local_network_stays", local::network),
        SystemTest::new("existing_route_stays", local::route),
        SystemTest::new("name_server_of_the_local_network", local::name_server),
        SystemTest::new("endpoint_inside_the_tunnel", local::endpoint),
        SystemTest::new("narrow_path_keeps_ipv6", narrow::keeps_ipv6),
        SystemTest::new("confirmed_before_post_up", confirm::before_post_up),
        SystemTest::new("source_of_datagrams", source::never_the_tunnels_own),
        SystemTest::new("killed_at_every_step", faults::killed_at_every_step).limit(long),
        SystemTest::new("second_up", life::second_up),
        SystemTest::new("two_at_once", life::two_at_once),
        SystemTest::new("neighbours_at_once", life::neighbours_at_once),
        SystemTest::new(
            "journal_of_a_deleted_namespace",
            life::journal_of_a_deleted_namespace,
        ),
        SystemTest::new("taken_port", life::taken_port),
        SystemTest::new("read_only_variables", life::read_only_variables),
        SystemTest::new("killed_device_then_down", life::killed_device),
        SystemTest::new("killed_device_then_up", life::killed_then_up),
        SystemTest::new("killed_device_and_up_at_once", life::killed_and_up_at_once),
        SystemTest::new("stopped_process", stopped::process),
        SystemTest::new("deleted_interface_then_down", life::deleted_interface),
        SystemTest::new("foreign_interface", life::foreign_interface),
        SystemTest::new("foreground_and_its_signals", life::foreground),
        SystemTest::new("two_processes_stay", life::two_processes),
        SystemTest::new("no_core_file", life::no_core_file),
        SystemTest::new("reload_keeps_unchanged_settings", life::reload),
        SystemTest::new("changed_settings_are_reported_and_restored", drift::all).limit(long),
        SystemTest::new("changed_settings_are_logged", drift::noticed),
        SystemTest::new("settings_of_a_hook_stay", drift::by_a_hook),
        SystemTest::new("moved_and_renamed_interfaces", drift::moved),
        SystemTest::new("renamed_while_it_is_up", drift::renamed),
        SystemTest::new("routes_around_a_full_tunnel", bypass::all),
        SystemTest::new("routes_before_the_tunnels", overtaken::by_a_router),
        SystemTest::new("hooks_in_order", hooks::in_order),
        SystemTest::new("hook_language", hooks::language),
        SystemTest::new("hooks_after_a_kill", hooks::after_a_kill),
        SystemTest::new("failing_hooks_leave_nothing", hooks::failing).limit(long),
        SystemTest::new("unresolvable_endpoint", life::unresolvable),
        SystemTest::new("waits_until_peers_answer", wait::answered),
        SystemTest::new("waits_for_peers_that_do_not_answer", wait::unanswered),
        SystemTest::new("waiting_ends_with_the_tunnel", wait::taken_down),
        SystemTest::new("events_of_a_tunnel", wait::events),
        SystemTest::new("metrics_are_served", metrics::served),
        SystemTest::new("metrics_have_the_documented_names", metrics::names),
        SystemTest::new("malformed_files_change_nothing", files::malformed).limit(long),
        SystemTest::new("secret_keys_in_files", files::secrets),
        SystemTest::new("clients_of_a_gateway_leave", gateway::clients_leave).limit(long),
        SystemTest::new("save_keeps_peers_and_comments", save::round_trip),
        SystemTest::new("save_on_a_full_disk", save::full_disk),
    ])
    .prepare(|| Implementation::Taupe.install().map(drop))
    .main()
}

/// The interface that every test brings up on `near`.
const INTERFACE: &str = "wgnear";

/// Addresses behind the tunnel; without it, behind the default route.
const BEYOND: [IpAddr; 2] = [
    IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 1)),
    IpAddr::V6(std::net::Ipv6Addr::new(0x2001, 0xdb8, 5, 0, 0, 0, 0, 1)),
];

/// The other side's addresses in the local network.
const NEIGHBOUR: [IpAddr; 2] = [
    IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2)),
    IpAddr::V6(std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2)),
];

/// A machine with an uplink, and the other side, which is its neighbour, router and WireGuard
/// server in one.
struct World {
    near: Host,
    far: Host,
    server: Server,
}

impl World {
    fn new() -> Result<Self> {
        let (near, far) = neighbours()?;
        near.ip(&["route", "add", "default", "via", "192.0.2.2"])?;
        near.ip(&["-6", "route", "add", "default", "via", "2001:db8::2"])?;
        for address in BEYOND {
            far.ip(&["address", "add", &address.to_string(), "dev", "lo"])?;
        }
        let server = Server::start(&near, &far)?;
        Ok(Self { near, far, server })
    }

    /// Writes a file for `near`: `interface` and `peer` are lines added to the sections; the latter
    /// includes the allowed IPs.
    fn file(&self, interface: &str, peer: &str) -> Result<String> {
        scratch_file(
            &format!("{INTERFACE}.conf"),
            &self.server.file(interface, peer),
        )
    }

    /// Runs a command of `taupe`.
    fn taupe(&self, arguments: &[&str]) -> Result<Attempt> {
        let program = Implementation::Taupe.program()?.display().to_string();
        self.near.attempt(&[&[&*program], arguments].concat())
    }

    /// Brings a file's tunnel up with `taupe up --adapter`, which must succeed.
    fn up(&self, file: &str) -> Result<Attempt> {
        let attempt = self.taupe(&["up", "--adapter", file])?;
        ensure!(attempt.status == Some(0), "up: {attempt:?}");
        Ok(attempt)
    }

    fn down(&self, file: &str) -> Result<Attempt> {
        let attempt = self.taupe(&["down", file])?;
        ensure!(attempt.status == Some(0), "down: {attempt:?}");
        Ok(attempt)
    }

    /// Returns true if a single ping of `near` is answered.
    fn answers(&self, address: IpAddr) -> Result<bool> {
        let address = address.to_string();
        let ping = ["ping", "-n", "-c", "1", "-W", "2", &address];
        Ok(self.near.attempt(&ping)?.status == Some(0))
    }

    /// Returns the number of packets that the server has received from the tunnel.
    fn carried(&self) -> Result<u64> {
        let text = self
            .far
            .run(&["cat", "/sys/class/net/wgfar/statistics/rx_packets"])?;
        text.text()
            .parse()
            .map_err(|_| Error::unmet("packets of wgfar"))
    }

    /// Returns true if a ping to `address` is answered and goes through the tunnel.
    fn tunnelled(&self, address: IpAddr) -> Result<bool> {
        let before = self.carried()?;
        let answered = self.answers(address)?;
        Ok(answered && self.carried()? > before)
    }
}

/// Returns the id of the process of `near`'s device.
fn device_process(near: &Host) -> Result<u32> {
    let socket = format!("/var/run/wireguard/{INTERFACE}.sock");
    let listed = near.run(&["ss", "-xlpH", "src", &socket])?;
    let number = listed
        .stdout
        .split("pid=")
        .nth(1)
        .and_then(|rest| rest.split([',', ')']).next());
    number
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| Error::unmet(format!("nobody listens at {socket}: {}", listed.stdout)))
}

/// Returns the path of a link to Taupe by another name.
fn called(name: &str) -> Result<String> {
    let folder = scratch("names");
    std::fs::create_dir_all(&folder).map_err(Error::io("names"))?;
    let path = folder.join(name);
    if !path.exists() {
        let program = Implementation::Taupe.program()?;
        symlink(program, &path).map_err(Error::io("link"))?;
    }
    Ok(path.display().to_string())
}

fn read(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    std::fs::read_to_string(path).map_err(Error::io(path.display().to_string()))
}
