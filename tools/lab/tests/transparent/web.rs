//! `taupe web`: the page, who gets it, and the process that serves it.

pub(crate) mod browser;

use crate::world::{Application, BEYOND, PORT, World};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::time::Duration;
use taupe_lab::peers::Implementation;
use taupe_lab::process::{Process, wait_until};
use taupe_lab::sandbox::{scratch, step};
use taupe_lab::{Error, Result, ensure};

const SOON: Duration = Duration::from_secs(30);

/// Address of the page.
const SITE: &str = "http://127.0.0.1:9587";

/// `taupe web` on `near`.
pub(crate) struct Server {
    process: Process,
}

impl Server {
    /// Starts it. A call that its list lacks ends its process.
    pub(crate) fn start(world: &World, options: &[&str]) -> Result<Self> {
        let program = Implementation::Taupe.program()?.display().to_string();
        let command = ["env", "TAUPE_CONFINE=kill", &program, "web"];
        let process = world.near.spawn(&[&command, options].concat())?;
        let mut server = Self { process };
        wait_until("an address", SOON, || {
            ensure!(server.process.runs()?, "{}", server.process.output());
            Ok(server.process.output().contains("token="))
        })?;
        Ok(server)
    }

    /// Returns the address with the token.
    pub(crate) fn address(&self) -> Result<String> {
        let output = self.process.output();
        let mut words = output.split_whitespace();
        let address = words.find(|word| word.contains("/?token="));
        address
            .map(str::to_owned)
            .ok_or_else(|| Error::unmet(format!("no address: {output}")))
    }

    /// Returns the id of the process that serves the page.
    fn child(&self) -> Result<u32> {
        let id = self.process.id();
        let path = format!("/proc/{id}/task/{id}/children");
        let children = fs::read_to_string(&path).map_err(Error::io(path))?;
        let children: Vec<_> = children.split_whitespace().collect();
        let [child] = children[..] else {
            return Err(Error::unmet(format!("children: {children:?}")));
        };
        child.parse().map_err(|_| Error::unmet(child.to_owned()))
    }
}

/// Requests of curl on `near`.
struct Client<'a> {
    world: &'a World,
    cookies: String,
}

impl<'a> Client<'a> {
    fn new(world: &'a World, name: &str) -> Self {
        Self {
            world,
            cookies: scratch(name).display().to_string(),
        }
    }

    /// Returns the answer to a request, with its headers and its status at the end.
    fn ask(&self, options: &[&str], target: &str) -> Result<String> {
        let url = match target.starts_with("http") {
            true => target.to_owned(),
            false => format!("{SITE}{target}"),
        };
        #[rustfmt::skip]
        let first = [
            "curl", "--silent", "--include", "--max-time", "20", "--write-out", "\n%{http_code}",
            "--cookie", &self.cookies, "--cookie-jar", &self.cookies,
        ];
        let command = [&first[..], options, &[&url]].concat();
        Ok(self.world.near.attempt(&command)?.stdout)
    }

    fn expect(&self, options: &[&str], target: &str, status: &str) -> Result<String> {
        let answer = self.ask(options, target)?;
        ensure!(answer.ends_with(status), "{options:?} {target}: {answer}");
        Ok(answer)
    }
}

/// The page shows tunnels, peers and applications to one browser, and its process has no rights.
pub(crate) fn served() -> Result<()> {
    let world = World::new()?;
    let mole = Application::new("mole")?;
    let file = world.file("# Name = the <server>\nAllowedApps = mole, spade")?;
    world.up(&file)?;
    let mut connection = connected(&world, &mole)?;
    let socket = scratch("web.sock").display().to_string();
    let server = Server::start(&world, &["--listen", "127.0.0.1:9587", "--unix", &socket])?;
    let address = server.address()?;
    ensure!(address.starts_with(SITE), "{address}");

    step("a browser without the token");
    let stranger = Client::new(&world, "stranger");
    for target in ["/", "/events", "/script.js", "/?token=0"] {
        let answer = stranger.expect(&[], target, "403")?;
        ensure!(!answer.contains("home"), "{answer}");
    }
    step("the browser with the token");
    let browser = Client::new(&world, "browser");
    let admitted = browser.expect(&[], &address, "303")?;
    ensure!(admitted.contains("location: /\r\n"), "{admitted}");
    let attributes = "; HttpOnly; SameSite=Strict; Path=/";
    ensure!(admitted.contains(attributes), "{admitted}");
    step("the token again");
    stranger.expect(&[], &address, "403")?;
    stranger.expect(&[], "/", "403")?;
    step("the page");
    let page = browser.expect(&[], "/", "200")?;
    let key = world.server_key().to_owned();
    for words in [
        "home is up</h1>",
        "the &lt;server&gt;",
        "192.168.1.2:51821",
        "<span class=\"name\">mole</span>",
        "through home",
        "<span class=\"name\">spade</span><span class=\"small\">not running</span>",
        "198.51.100.1:8080",
    ] {
        ensure!(page.contains(words), "no {words}: {page}");
    }
    ensure!(!page.contains(&key), "a named peer has a key: {page}");
    let policy = "content-security-policy: default-src 'none'";
    ensure!(page.contains(policy), "{page}");
    step("requests that are refused");
    browser.expect(&["--header", "Host: evil.example"], "/", "421")?;
    browser.expect(&["--header", "Sec-Fetch-Site: cross-site"], "/", "403")?;
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        browser.expect(&["--request", method], "/", "405")?;
    }
    let large = format!("X: {}", "x".repeat(20_000));
    browser.expect(&["--header", &large], "/", "431")?;
    step("events");
    let events = browser.ask(&["--no-buffer", "--max-time", "5"], "/events")?;
    let count = events.matches("event: state\ndata: <section").count();
    ensure!((2..=6).contains(&count), "{count} events: {events}");
    step("the socket");
    let by_socket = ["--unix-socket", &*socket];
    stranger.expect(&by_socket, "http://localhost/", "403")?;
    browser.expect(&by_socket, "http://127.0.0.1/", "200")?;
    let mode = world.near.run(&["stat", "-c", "%a", &socket])?.stdout;
    ensure!(mode == "660\n", "{mode}");

    step("its process");
    let child = server.child()?;
    let path = format!("/proc/{child}/status");
    let status = fs::read_to_string(&path).map_err(Error::io(path))?;
    for right in [
        "CapPrm:\t0000000000000000",
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
    ] {
        let is_there = status.lines().any(|line| line == right);
        ensure!(is_there, "no {right}: {status}");
    }
    let root = fs::read_dir(format!("/proc/{child}/root"));
    let files = root.map_err(Error::io("its root directory"))?.count();
    ensure!(files == 0, "{files} files in its root directory");

    step("a blocked application");
    world.kill_device()?;
    wait_until("the reason", SOON, || {
        let page = browser.expect(&[], "/", "200")?;
        Ok(
            page.contains("<strong>mole</strong>: 1 connection is blocked")
                && page.contains("process-ended"),
        )
    })?;
    connection.signal(Signal::KILL)?;
    connection.wait(SOON)?;
    world.down(&file)?;
    wait_until("the page without a tunnel", SOON, || {
        let page = browser.expect(&[], "/", "200")?;
        Ok(page.contains("No tunnel is up"))
    })?;

    step("a killed parent");
    let Server { mut process } = server;
    process.signal(Signal::KILL)?;
    process.wait(SOON)?;
    wait_until("the end of its child", SOON, || Ok(is_gone(child)))?;
    step("a killed child");
    let mut server = Server::start(&world, &["--unix", &socket])?;
    let child = i32::try_from(server.child()?).ok().and_then(Pid::from_raw);
    let child = child.ok_or_else(|| Error::unmet("a process"))?;
    kill_process(child, Signal::KILL).map_err(Error::io("a signal"))?;
    let ended = server.process.wait(SOON)?;
    let output = server.process.output();
    let says_why = output.contains("taupe-web, which serves the page, has ended");
    ensure!(ended.code() == Some(1) && says_why, "{ended}: {output}");
    step("other addresses");
    for address in ["0.0.0.0:9587", "192.168.1.1:9587", "[::]:9587"] {
        let refused = world.taupe(&["web", "--listen", address])?;
        let says_why = refused.stderr.contains("no loopback address");
        ensure!(refused.status == Some(2) && says_why, "{refused:?}");
    }
    Ok(())
}

/// Lets an application open a connection beyond, which stays.
fn connected(world: &World, application: &Application) -> Result<Process> {
    let Application(path) = application;
    let script = format!(
        "exec 3<>/dev/tcp/{}/{PORT} && read -r -u 3 line && echo $line && kill -STOP $$",
        BEYOND[0]
    );
    let process = world.near.spawn(&[path, "-c", &script])?;
    wait_until("a connection", SOON, || {
        Ok(process.output().contains("10.77.0.1"))
    })?;
    Ok(process)
}

/// Returns true if a process does not exist, or has ended and is not yet removed.
fn is_gone(process: u32) -> bool {
    let state = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    state
        .rsplit_once(')')
        .is_none_or(|(_, rest)| rest.starts_with(" Z"))
}
