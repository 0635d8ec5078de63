//! Real browsers, with many processes each: one in the tunnel and one outside, and the reverse.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::mount::mount_bind;
use taupe_lab::capture::Capture;
use taupe_lab::host::{Host, Transport};
use taupe_lab::process::{Process, attempt, wait_until};
use taupe_lab::sandbox::{scratch, scratch_file, step};
use taupe_lab::{Error, Result, ensure};

use crate::world::{BEYOND, TUNNEL, UPLINK, World};

/// Each opens a page from the web server of either family, which records its clients.
pub(crate) fn one_in_and_one_out() -> Result<()> {
    let world = World::new()?;
    // Avoids waiting for name servers that do not exist.
    let servers = scratch_file("resolv.conf", "nameserver 198.51.100.1\n")?;
    mount_bind(&*servers, "/etc/resolv.conf").map_err(Error::io("/etc/resolv.conf"))?;
    let queries = serve(&world.far)?;
    let [chromium, firefox] = [Browser::Chromium, Browser::Firefox];
    for (selected, other) in [(chromium, firefox), (firefox, chromium)] {
        step(&format!("{} is selected", selected.name()));
        let file = world.file(&format!("AllowedApps = {}", selected.name()))?;
        world.up(&file)?;
        for family in [0, 1] {
            // A browser's other traffic also belongs to the tunnel.
            let capture = Capture::start(&world.far, "eth0", CLEAR)?;
            let found = selected.opens(&world, family, &queries)?;
            ensure!(
                found == [TUNNEL[family]],
                "{} is {found:?}",
                selected.name()
            );
            let packets = capture.stop()?;
            ensure!(
                packets.is_empty(),
                "{} packets of {}",
                packets.len(),
                selected.name()
            );
            let capture = Capture::start(&world.far, "eth0", CLEAR)?;
            let found = other.opens(&world, family, &queries)?;
            ensure!(found == [UPLINK[family]], "{} is {found:?}", other.name());
            let seen = capture.stop_once("the other browser", |packets| packets.len() >= 4);
            seen.map(drop)?;
        }
        step(&format!("{} is cut off", selected.name()));
        world.kill_device()?;
        let capture = Capture::start(&world.far, "eth0", CLEAR)?;
        let found = selected.tries(&world, 0, &queries, "15")?;
        ensure!(found.is_empty(), "{} is {found:?}", selected.name());
        let packets = capture.stop()?;
        ensure!(
            packets.is_empty(),
            "{} packets of {}",
            packets.len(),
            selected.name()
        );
        world.down(&file)?;
    }
    Ok(())
}

/// All traffic except the tunnel itself and the link's own packets.
const CLEAR: &str = "(tcp or udp) and not udp port 51821";

#[derive(Clone, Copy, Debug)]
enum Browser {
    Chromium,
    Firefox,
}

impl Browser {
    /// Returns the name of its executable.
    const fn name(self) -> &'static str {
        match self {
            Self::Chromium => "chromium",
            Self::Firefox => "firefox-esr",
        }
    }

    /// Returns the part of its user agent that identifies it.
    const fn agent(self) -> &'static str {
        match self {
            Self::Chromium => "Chrome/",
            Self::Firefox => "Firefox/",
        }
    }

    /// Opens a page with a picture; returns the client addresses seen by the server.
    fn opens(self, world: &World, family: usize, queries: &QueryCount) -> Result<Vec<String>> {
        self.tries(world, family, queries, PATIENCE)
    }

    /// The same with another time limit in seconds.
    fn tries(
        self,
        world: &World,
        family: usize,
        queries: &QueryCount,
        patience: &str,
    ) -> Result<Vec<String>> {
        queries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        let profile = scratch(&format!("{}-profile", self.name()));
        let _ = fs::remove_dir_all(&profile);
        fs::create_dir_all(&profile).map_err(Error::io("profile"))?;
        let page = format!("http://{}/page", SocketAddr::new(BEYOND[family], PORT));
        let picture = scratch("page.png").display().to_string();
        let words = match self {
            Self::Chromium => {
                let mut words = chromium(&profile, patience);
                words.extend([format!("--screenshot={picture}"), page]);
                words
            }
            Self::Firefox => {
                fs::write(profile.join("user.js"), SETTINGS).map_err(Error::io("settings"))?;
                let profile = profile.display().to_string();
                [
                    "timeout",
                    patience,
                    "firefox-esr",
                    "--headless",
                    "--no-remote",
                    "--profile",
                    &profile,
                    "--screenshot",
                    &picture,
                    &page,
                ]
                .map(str::to_owned)
                .into()
            }
        };
        // It may exit with an error if it gets no page.
        attempt("near", at_home(world, &words), None)?;
        let mut queries = queries.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = Vec::new();
        for Question { agent, who, path } in queries.drain(..) {
            ensure!(agent.contains(self.agent()), "{agent} has asked for {path}");
            found.push(who.to_string());
        }
        found.sort();
        found.dedup();
        Ok(found)
    }
}

/// Time limit of a page, in seconds.
const PATIENCE: &str = "60";

/// Settings that keep Firefox from contacting its vendor.
const SETTINGS: &str = r#"
user_pref("app.update.enabled", false);
user_pref("app.normandy.enabled", false);
user_pref("browser.safebrowsing.malware.enabled", false);
user_pref("browser.safebrowsing.phishing.enabled", false);
user_pref("browser.shell.checkDefaultBrowser", false);
user_pref("browser.startup.homepage_override.mstone", "ignore");
user_pref("datareporting.policy.dataSubmissionEnabled", false);
user_pref("extensions.update.enabled", false);
user_pref("network.captive-portal-service.enabled", false);
user_pref("network.connectivity-service.enabled", false);
user_pref("network.trr.mode", 5);
user_pref("services.settings.server", "");
user_pref("toolkit.telemetry.enabled", false);
"#;

/// Port of the web server.
const PORT: u16 = 80;

struct Question {
    who: IpAddr,
    agent: String,
    path: String,
}

type QueryCount = Arc<Mutex<Vec<Question>>>;

/// Runs a web server in both families that records its clients and their requests.
fn serve(far: &Host) -> Result<QueryCount> {
    let queries = QueryCount::default();
    for address in BEYOND {
        let at = SocketAddr::new(address, PORT);
        let listener = far.enter(|| TcpListener::bind(at).map_err(Error::io(at.to_string())))?;
        let queries = Arc::clone(&queries);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let queries = Arc::clone(&queries);
                thread::spawn(move || answer(&stream, &queries));
            }
        });
    }
    Ok(queries)
}

fn answer(mut stream: &TcpStream, queries: &QueryCount) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let who = stream.peer_addr()?.ip();
    let (mut path, mut agent) = (None, String::new());
    for line in BufReader::new(stream).lines() {
        let line = line?;
        if line.is_empty() {
            break;
        }
        // The first line is GET PATH HTTP/1.1.
        path = path.or_else(|| line.split(' ').nth(1).map(str::to_owned));
        if let Some(("User-Agent", it)) = line.split_once(": ") {
            agent = it.to_owned();
        }
    }
    // A browser opens spare connections, and may send nothing.
    let Some(path) = path else { return Ok(()) };
    let (kind, body) = match &*path {
        "/page" => (
            "text/html",
            "<!DOCTYPE html><title>page</title><img src=\"/picture\">page",
        ),
        "/picture" => (
            "image/svg+xml",
            "<svg xmlns=\"http://www.w3.org/2000/svg\"/>",
        ),
        _ => ("text/plain", ""),
    };
    let question = Question { who, agent, path };
    queries
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(question);
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Opens a page by QUIC, from a server that supports HTTP/3 only.
pub(crate) fn by_quic() -> Result<()> {
    let world = World::new()?;
    let (fingerprint, _server) = serve_quic(&world.far)?;
    let page = format!("https://{SITE}/");
    let asks = || -> Result<String> {
        let profile = scratch("quic-profile");
        let _ = fs::remove_dir_all(&profile);
        let mut words = chromium(&profile, PATIENCE);
        words.push(format!("--origin-to-force-quic-on={SITE}:443"));
        words.push(format!("--host-resolver-rules=MAP {SITE} {}", BEYOND[0]));
        words.push(format!(
            "--ignore-certificate-errors-spki-list={fingerprint}"
        ));
        words.extend(["--dump-dom".to_owned(), page.clone()]);
        let output = attempt("near", at_home(&world, &words), None)?;
        Ok(output.stdout + &output.stderr)
    };
    let file = world.file("AllowedApps = chromium")?;
    world.up(&file)?;
    let capture = Capture::start(&world.far, "eth0", CLEAR)?;
    let page = asks()?;
    let expected = format!("{} by HTTP/3.0", TUNNEL[0]);
    ensure!(page.contains(&expected), "in the tunnel: {page}");
    let packets = capture.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    world.down(&file)?;
    let page = asks()?;
    let expected = format!("{} by HTTP/3.0", UPLINK[0]);
    ensure!(page.contains(&expected), "without it: {page}");
    Ok(())
}

/// Name of this server, which its certificate requires.
const SITE: &str = "web.example";

/// Runs a server that reports the client's address; returns the fingerprint of its key.
fn serve_quic(far: &Host) -> Result<(String, Process)> {
    let path = |name: &str| scratch(name).display().to_string();
    let [key, certificate] = [path("key.pem"), path("certificate.pem")];
    let address = BEYOND[0];
    #[rustfmt::skip]
    far.run(&[
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
        "-nodes", "-days", "2", "-subj", "/CN=web", "-addext",
        &format!("subjectAltName=DNS:{SITE}"), "-keyout", &key, "-out", &certificate,
    ])?;
    let fingerprint = format!(
        "openssl x509 -in {certificate} -pubkey -noout | openssl pkey -pubin -outform der | \
         openssl dgst -sha256 -binary | openssl enc -base64"
    );
    let fingerprint = far.run(&["sh", "-c", &fingerprint])?.text().to_owned();
    let settings = scratch_file(
        "Caddyfile",
        &format!(
            "{{\n admin off\n auto_https off\n servers {{\n  protocols h3\n }}\n}}\n\
             https://{SITE}:443 {{\n bind {address}\n tls {certificate} {key}\n \
             respond \"{{http.request.remote.host}} by {{http.request.proto}}\"\n}}\n"
        ),
    )?;
    let mut command = far.command(&[
        "caddy",
        "run",
        "--adapter",
        "caddyfile",
        "--config",
        &settings,
    ]);
    command
        .env("HOME", scratch(""))
        .env("XDG_DATA_HOME", scratch("caddy"));
    let server = Process::start(far.name(), command)?;
    wait_until("the web server", Duration::from_secs(30), || {
        far.listens(Transport::Udp, 443)
    })?;
    Ok((fingerprint, server))
}

/// Returns Chromium's command line without background services.
fn chromium(profile: &Path, patience: &str) -> Vec<String> {
    let mut words: Vec<String> = [
        "timeout",
        patience,
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-extensions",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-default-apps",
    ]
    .map(str::to_owned)
    .into();
    words.push(format!("--user-data-dir={}", profile.display()));
    words
}

/// Returns the command as it runs on `near`, without a desktop.
fn at_home(world: &World, words: &[String]) -> Command {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut command = world.near.command(&words);
    command
        .env("HOME", scratch(""))
        .env("XDG_RUNTIME_DIR", scratch(""))
        .env_remove("DISPLAY");
    command
}
