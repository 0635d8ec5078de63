//! Debian's systemd-resolved on a message bus.

use crate::system::{
    Bus, INTERFACE, ResolvedDaemon, SERVER, Tunnel, deviation, found_and_restored, resolv_conf,
    resolvectl, serve_names, settings, systemd_resolvconf, unmet,
};
use rustix::process::Signal;
use std::time::{Duration, Instant};
use taupe_adapter::dns::{self, Dns, Paths};
use taupe_lab::host::Host;
use taupe_lab::process::wait_until;
use taupe_lab::{Error, Result, ensure};

/// A machine with all services running.
struct System {
    tunnel: Tunnel,
    paths: Paths,
    bus: Bus,
    resolved: ResolvedDaemon,
}

impl System {
    fn new() -> Result<Self> {
        ResolvedDaemon::prepare()?;
        let tunnel = Tunnel::new()?;
        let bus = Bus::start(&tunnel.near, false)?;
        let resolved = ResolvedDaemon::start(&tunnel.near)?;
        Ok(Self {
            tunnel,
            paths: Paths::system(),
            bus,
            resolved,
        })
    }

    fn choose(&self, servers: &[&str], search: &[&str]) -> Result<Dns> {
        self.tunnel.choose(&self.paths, servers, search)
    }
}

/// Taupe's state equals that of systemd's `resolvconf` with wg-quick's input, in everything that
/// `resolvectl` shows.
pub(crate) fn as_resolvectl_does() -> Result<()> {
    let system = System::new()?;
    let near = &system.tunnel.near;
    let (before, file) = (settings(near)?, resolv_conf()?);
    let cases: [(&[&str], &[&str]); 4] = [
        (&[SERVER], &[]),
        (&["fd77::2"], &[]),
        (
            &[SERVER, "fd77::2", "192.0.2.53"],
            &["a.example", "b.example"],
        ),
        (&[SERVER], &["~corp.example", "a.example"]),
    ];
    for (servers, search) in cases {
        let mut input = String::new();
        for server in servers {
            input.push_str(&format!("nameserver {server}\n"));
        }
        if !search.is_empty() {
            input.push_str(&format!("search {}\n", search.join(" ")));
        }
        systemd_resolvconf(near, &["-a", INTERFACE, "-m", "0", "-x"], &input)?;
        let expected = settings(near)?;
        ensure!(expected != before, "resolvconf did nothing");
        systemd_resolvconf(near, &["-d", INTERFACE, "-f"], "")?;
        ensure!(settings(near)? == before, "resolvconf -d left something");

        let dns = system.choose(servers, search)?;
        let line = format!("resolvectl dns {INTERFACE} {}; ", servers.join(" "));
        ensure!(dns.to_string().starts_with(&line), "{dns}");
        ensure!(settings(near)? == before, "choosing has changed something");
        system.tunnel.apply(&dns, &system.paths)?;
        let seen = settings(near)?;
        ensure!(seen == expected, "{seen}instead of\n{expected}");

        let blocked = near.enter(|| dns::current(&system.paths, INTERFACE).map_err(unmet))?;
        let blocked = blocked.ok_or_else(|| Error::unmet("nothing is known of the interface"))?;
        let words: Vec<String> = blocked.servers.iter().map(ToString::to_string).collect();
        ensure!(words == servers, "{blocked:?}");
        ensure!(blocked.search == search, "{blocked:?}");

        for _ in 0..2 {
            system.tunnel.undo(&dns, &system.paths)?;
            let after = settings(near)?;
            ensure!(after == before, "{after}instead of\n{before}");
        }
        let blocked = near.enter(|| dns::current(&system.paths, INTERFACE).map_err(unmet))?;
        ensure!(blocked.is_none(), "{blocked:?}");
    }
    ensure!(
        resolv_conf()? == file,
        "/etc/resolv.conf: {:?}",
        resolv_conf()?
    );
    Ok(())
}

/// Every change of the tunnel's servers by another program is detected.
pub(crate) fn is_verified() -> Result<()> {
    let system = System::new()?;
    let (tunnel, paths) = (&system.tunnel, &system.paths);
    // The file may name a server twice.
    let dns = system.choose(&[SERVER, "fd77::2", SERVER], &["a.example"])?;
    tunnel.apply(&dns, paths)?;
    let found = deviation(tunnel, &dns, paths)?;
    ensure!(found.is_none(), "untouched: {found:?}");
    for (command, words) in [
        (
            &["dns", INTERFACE, "192.0.2.53"][..],
            "names are asked of 192.0.2.53",
        ),
        (&["domain", INTERFACE, "corp"], "for some names only"),
        (&["default-route", INTERFACE, "no"], "for some names only"),
        (&["revert", INTERFACE], "no name server is left"),
    ] {
        resolvectl(&tunnel.near, command)?;
        found_and_restored(tunnel, &dns, paths, words)?;
    }
    system.tunnel.undo(&dns, paths)
}

/// A program asks the C library, which asks systemd-resolved's stub, which asks the server in the
/// tunnel. Before and after the tunnel there is no server.
pub(crate) fn looks_up_names() -> Result<()> {
    let system = System::new()?;
    let near = &system.tunnel.near;
    let queries = serve_names(&system.tunnel.far, [198, 51, 100, 80])?;
    let look_up = || near.attempt(&["getent", "ahostsv4", "www.example.com"]);
    let failed = look_up()?;
    ensure!(failed.status != Some(0), "{failed:?}");

    let dns = system.choose(&[SERVER], &[])?;
    system.tunnel.apply(&dns, &system.paths)?;
    // systemd-resolved uses the interface once it is notified of its carrier.
    wait_until("an address", Duration::from_secs(10), || {
        Ok(look_up()?.stdout.starts_with("198.51.100.80 "))
    })?;
    let names: Vec<String> = queries.try_iter().collect();
    ensure!(names.contains(&"www.example.com.".to_owned()), "{names:?}");

    system.tunnel.undo(&dns, &system.paths)?;
    let failed = near.attempt(&["getent", "ahostsv4", "other.example.com"])?;
    ensure!(failed.status != Some(0), "{failed:?}");
    Ok(())
}

/// The interface is renamed: its servers are still checked, set again and removed by its index.
pub(crate) fn renamed() -> Result<()> {
    let system = System::new()?;
    let System { tunnel, paths, .. } = &system;
    let dns = system.choose(&[SERVER], &[])?;
    tunnel.apply(&dns, paths)?;
    let words = ["link", "set", INTERFACE, "name", "renamed"];
    tunnel.near.ip(&words)?;
    let dns = dns.renamed("renamed");
    let found = deviation(tunnel, &dns, paths)?;
    ensure!(found.is_none(), "{found:?}");
    resolvectl(&tunnel.near, &["revert", "renamed"])?;
    let found = deviation(tunnel, &dns, paths)?;
    ensure!(found.is_some(), "the change is not found");
    tunnel.near.enter(|| dns.restore(paths).map_err(unmet))?;
    let found = deviation(tunnel, &dns, paths)?;
    ensure!(found.is_none(), "{found:?}");
    tunnel.undo(&dns, paths)?;
    let shown = resolvectl(&tunnel.near, &["dns", "renamed"])?;
    ensure!(!shown.contains(SERVER), "{shown}");
    Ok(())
}

/// The bus starts the service when it gets a request.
pub(crate) fn is_started() -> Result<()> {
    ResolvedDaemon::prepare()?;
    let tunnel = Tunnel::new()?;
    let _bus = Bus::start(&tunnel.near, true)?;
    let paths = Paths::system();
    let dns = tunnel.choose(&paths, &[SERVER], &[])?;
    ensure!(dns.to_string().starts_with("resolvectl "), "{dns}");
    tunnel.apply(&dns, &paths)?;
    let shown = resolvectl(&tunnel.near, &["dns", INTERFACE])?;
    ensure!(shown.contains(SERVER), "{shown}");
    tunnel.undo(&dns, &paths)
}

/// A service in another network namespace would apply the interface's index to another interface.
pub(crate) fn of_another_network() -> Result<()> {
    let system = System::new()?;
    let before = settings(&system.tunnel.near)?;
    let servers = [[10, 77, 0, 1].into()];
    let dns = system.tunnel.far.enter(|| {
        let chosen = dns::choose(&system.paths, "eth0", &servers, &[]).map_err(unmet)?;
        chosen.ok_or_else(|| Error::unmet("nothing was chosen"))
    })?;
    ensure!(!dns.to_string().starts_with("resolvectl "), "{dns}");
    let reason = format!("{dns:?}");
    ensure!(
        reason.contains("runs in another network namespace"),
        "{reason}"
    );
    ensure!(
        settings(&system.tunnel.near)? == before,
        "something has changed"
    );
    Ok(())
}

/// The service is stopped, then the bus too: no step waits for more than a few seconds.
pub(crate) fn that_hangs() -> Result<()> {
    let system = System::new()?;
    let dns = system.choose(&[SERVER], &[])?;
    ensure!(dns.to_string().starts_with("resolvectl "), "{dns}");
    let limit = Duration::from_secs(20);

    system.resolved.signal(Signal::STOP)?;
    let start = Instant::now();
    let error = system.tunnel.apply(&dns, &system.paths);
    let error = error
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    ensure!(
        error.contains("cannot set the name servers of wg0"),
        "{error}"
    );
    ensure!(error.contains("timed out"), "{error}");
    ensure!(start.elapsed() < limit, "after {:?}", start.elapsed());

    system.bus.signal(Signal::STOP)?;
    let start = Instant::now();
    let other = system.choose(&[SERVER], &[])?;
    ensure!(!other.to_string().starts_with("resolvectl "), "{other}");
    ensure!(start.elapsed() < limit, "after {:?}", start.elapsed());

    system.bus.signal(Signal::CONT)?;
    let other = system.choose(&[SERVER], &[])?;
    ensure!(!other.to_string().starts_with("resolvectl "), "{other}");
    system.resolved.signal(Signal::CONT)?;
    // The service has processed, or will process, the requests that it got while it was stopped.
    system.tunnel.undo(&dns, &system.paths)
}

/// The service learns of a new interface from the kernel, possibly after it gets the interface's
/// servers. Here the interface is another machine's, and one with the same index appears in the
/// service's namespace during the request.
pub(crate) fn before_it_knows_the_interface() -> Result<()> {
    let system = System::new()?;
    let Tunnel { near, far } = &system.tunnel;
    let dns = system.choose(&[SERVER], &[])?;
    let add = |host: &Host, name: &str| {
        #[rustfmt::skip]
        let command = [
            "link", "add", name, "index", "77", "type", "veth", "peer", "name", "other",
        ];
        host.ip(&command)
    };
    add(far, INTERFACE)?;
    let tell = || far.enter(|| dns.apply(&system.paths).map_err(unmet));
    let error = tell()
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    ensure!(error.contains("does not know the interface wg0"), "{error}");

    std::thread::scope(|scope| {
        let reported = scope.spawn(tell);
        std::thread::sleep(Duration::from_millis(300));
        add(near, "late")?;
        reported
            .join()
            .unwrap_or_else(|_| Err(Error::unmet("it panicked")))
    })?;
    let shown = resolvectl(near, &["dns", "late"])?;
    ensure!(shown.contains(SERVER), "{shown}");
    Ok(())
}

/// systemd-networkd declares the interface as managed, in the file that systemd-resolved reads.
pub(crate) fn managed_interface() -> Result<()> {
    let system = System::new()?;
    let near = &system.tunnel.near;
    let path = format!("/sys/class/net/{INTERFACE}/ifindex");
    let index = near.run(&["cat", &path])?.text().to_owned();
    let folder = "/run/systemd/netif/links";
    std::fs::create_dir_all(folder).map_err(Error::io(folder))?;
    let state = "ADMIN_STATE=configured\nOPER_STATE=routable\n";
    std::fs::write(format!("{folder}/{index}"), state).map_err(Error::io(folder))?;
    drop(system.resolved);
    let _resolved = ResolvedDaemon::start(near)?;

    let dns = system.tunnel.choose(&system.paths, &[SERVER], &[])?;
    let before = settings(near)?;
    let error = system.tunnel.apply(&dns, &system.paths);
    let error = error
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    ensure!(error.contains("systemd-networkd manages wg0"), "{error}");
    ensure!(error.contains("`[Link] Unmanaged=yes`"), "{error}");
    ensure!(settings(near)? == before, "something has changed");
    Ok(())
}

/// Undoing succeeds if the service or the interface is gone.
pub(crate) fn or_interface_gone() -> Result<()> {
    let System {
        tunnel,
        paths,
        bus,
        resolved,
    } = System::new()?;
    let dns = tunnel.choose(&paths, &[SERVER], &[])?;
    tunnel.apply(&dns, &paths)?;
    drop(resolved);
    tunnel.undo(&dns, &paths)?;

    tunnel.near.ip(&["link", "delete", INTERFACE])?;
    tunnel.undo(&dns, &paths)?;
    drop(bus);
    tunnel.undo(&dns, &paths)?;

    let error = tunnel.apply(&dns, &paths);
    let error = error
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    ensure!(error.contains("there is no interface wg0"), "{error}");
    Ok(())
}
