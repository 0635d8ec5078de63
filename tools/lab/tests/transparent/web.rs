//! `taupe web`: the page, who gets it, and the process that serves it.

pub(crate) mod browser;
pub(crate) mod driver;

use crate::top::Screen;
use crate::world::{Application, BEYOND, PORT, TUNNEL, UPLINK, World, expect, private_key};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::ExitStatusExt as _;
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
        let command = [
            "env",
            "TAUPE_CONFINE=kill",
            "LOG_LEVEL=debug",
            &program,
            "web",
        ];
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
        address_in(&self.process.output())
    }

    /// Returns the address of the page without the token.
    fn base(&self) -> Result<String> {
        Ok(without_token(&self.address()?))
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

/// Returns the last address with a token in an output.
fn address_in(output: &str) -> Result<String> {
    let mut words = output.split_whitespace();
    let address = words.rfind(|word| word.starts_with(SITE) && word.contains("/?token="));
    address
        .map(str::to_owned)
        .ok_or_else(|| Error::unmet(format!("no address: {output}")))
}

fn without_token(address: &str) -> String {
    address.split('?').next().unwrap_or_default().to_owned()
}

/// Requests of curl on `near`.
struct Client<'a> {
    world: &'a World,
    base: String,
    cookies: String,
    /// Words before the command.
    prefix: &'a [&'a str],
}

impl<'a> Client<'a> {
    fn new(world: &'a World, server: &Server, name: &str) -> Result<Self> {
        Ok(Self::at(world, server.base()?, name))
    }

    fn at(world: &'a World, base: String, name: &str) -> Self {
        Self {
            world,
            base,
            cookies: scratch(name).display().to_string(),
            prefix: &[],
        }
    }

    /// Returns the answer to a request, with its headers and its status at the end.
    fn ask(&self, options: &[&str], target: &str) -> Result<String> {
        let url = match target.starts_with("http") {
            true => target.to_owned(),
            false => format!("{}{target}", self.base),
        };
        #[rustfmt::skip]
        let first = [
            "curl", "--silent", "--include", "--max-time", "20", "--write-out", "\n%{http_code}",
            "--cookie", &self.cookies, "--cookie-jar", &self.cookies,
        ];
        let command = [self.prefix, &first, options, &[&url]].concat();
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
    let base = server.base()?;
    let path = base.strip_prefix(SITE).unwrap_or_default().to_owned();
    ensure!(path.len() == 34, "{path}");
    let outside = format!("{SITE}/");

    step("a browser without the token");
    let stranger = Client::new(&world, &server, "stranger")?;
    for target in ["", "events", "script.js", "?token=0", &outside] {
        let answer = stranger.expect(&[], target, "403")?;
        ensure!(!answer.contains("home"), "{answer}");
    }
    step("another user");
    #[rustfmt::skip]
    let nobody = Client {
        prefix: &["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"],
        cookies: "/dev/null".to_owned(),
        ..Client::new(&world, &server, "")?
    };
    let answer = nobody.expect(&[], "", "403")?;
    ensure!(!answer.contains("home"), "{answer}");
    let by_socket = ["--unix-socket", &*socket];
    nobody.expect(&by_socket, "", "000")?;
    step("the browser with the token");
    let browser = Client::new(&world, &server, "browser")?;
    let admitted = browser.expect(&[], &address, "303")?;
    let location = format!("location: {path}\r\n");
    ensure!(admitted.contains(&location), "{admitted}");
    let attributes = format!("; HttpOnly; SameSite=Strict; Path={path}");
    ensure!(admitted.contains(&attributes), "{admitted}");
    let reported = || {
        server
            .process
            .output()
            .matches("has opened the address")
            .count()
    };
    wait_until("the report", SOON, || Ok(reported() == 1))?;
    step("the token again");
    stranger.expect(&[], &address, "403")?;
    stranger.expect(&[], "", "403")?;
    ensure!(reported() == 1, "{} reports", reported());
    step("the page");
    let page = browser.expect(&[], "", "200")?;
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
    browser.expect(&["--header", "Host: evil.example"], "", "421")?;
    browser.expect(&["--header", "Sec-Fetch-Site: cross-site"], "", "403")?;
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        browser.expect(&["--request", method], "", "405")?;
    }
    let large = format!("X: {}", "x".repeat(20_000));
    browser.expect(&["--header", &large], "", "431")?;
    step("events");
    let events = browser.ask(&["--no-buffer", "--max-time", "5"], "events")?;
    let count = events.matches("event: state\ndata: ").count();
    ensure!((2..=6).contains(&count), "{count} events: {events}");
    step("the socket");
    stranger.expect(&by_socket, "", "403")?;
    browser.expect(&by_socket, "", "200")?;
    let mode = world.near.run(&["stat", "-c", "%a", &socket])?.stdout;
    ensure!(mode == "660\n", "{mode}");

    step("keys");
    let work = world.with_another("work", 3)?;
    // 32 bytes 0xab.
    let preshared = format!("{}q6s=", "q6ur".repeat(10));
    let with_keys = work.file_with_sections(
        "Address = 10.77.0.3/32",
        &format!("PresharedKey = {preshared}\nEndpoint = 192.168.1.2:9\nAllowedIPs = 10.0.0.0/8\nAllowedApps = badger"),
    )?;
    work.up(&with_keys)?;
    let mut secrets = vec![preshared, "ab".repeat(32)];
    for file in [&file, &with_keys] {
        let text = fs::read_to_string(file).map_err(Error::io("the file"))?;
        secrets.push(private_key(&text)?.1.to_owned());
    }
    wait_until("the other tunnel", SOON, || {
        Ok(browser
            .expect(&[], "", "200")?
            .contains("id=\"tunnel-work\""))
    })?;
    let page = browser.expect(&[], "", "200")?;
    let events = browser.ask(&["--no-buffer", "--max-time", "5"], "events")?;
    ensure!(events.contains("id=\"tunnel-work\""), "{events}");
    for secret in &secrets {
        let is_shown = page.contains(secret) || events.contains(secret);
        ensure!(!is_shown, "the page contains a key");
    }
    work.down(&with_keys)?;

    step("its process");
    let child = server.child()?;
    let path = format!("/proc/{child}/status");
    let status = fs::read_to_string(&path).map_err(Error::io(&*path))?;
    let id = 1_879_048_192 + child;
    for right in [
        "CapPrm:\t0000000000000000",
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
        "Groups:\t ",
        &format!("Uid:\t{id}\t{id}\t{id}\t{id}"),
        &format!("Gid:\t{id}\t{id}\t{id}\t{id}"),
    ] {
        let is_there = status.lines().any(|line| line == right);
        ensure!(is_there, "no {right:?}: {status}");
    }
    // Files of a process that is not dumpable belong to root (proc(5)).
    let owner = fs::metadata(&path).map_err(Error::io(&*path))?.uid();
    ensure!(owner == 0, "it is dumpable: its files belong to {owner}");
    let root = fs::read_dir(format!("/proc/{child}/root"));
    let files = root.map_err(Error::io("its root directory"))?.count();
    ensure!(files == 0, "{files} files in its root directory");
    // No file in /proc shows Landlock.
    let output = server.process.output();
    let holds = [
        "Landlock",
        "seccomp",
        "empty root directory",
        "user of its own",
    ];
    for layer in holds {
        let is_reported = output.contains(&format!("taupe-web is confined: {layer}"));
        ensure!(is_reported, "no {layer}: {output}");
    }

    step("a blocked application");
    world.kill_device()?;
    wait_until("the reason", SOON, || {
        let page = browser.expect(&[], "", "200")?;
        Ok(
            page.contains("<strong>mole</strong>: 1 connection is blocked")
                && page.contains("process-ended"),
        )
    })?;
    connection.signal(Signal::KILL)?;
    connection.wait(SOON)?;
    world.down(&file)?;
    wait_until("the page without a tunnel", SOON, || {
        let page = browser.expect(&[], "", "200")?;
        Ok(page.contains("Taupe has no tunnel up here"))
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
    let has_file =
        || Ok::<_, Error>(world.near.attempt(&["test", "-e", &socket])?.status == Some(0));
    ensure!(!has_file()?, "the file of the socket is left");
    step("a signal");
    let mut server = Server::start(&world, &["--unix", &socket])?;
    ensure!(has_file()?, "no file of the socket");
    server.process.signal(Signal::TERM)?;
    let ended = server.process.wait(SOON)?;
    ensure!(ended.signal() == Some(Signal::TERM.as_raw()), "{ended}");
    ensure!(!has_file()?, "the file of the socket is left");
    step("other addresses");
    for address in ["0.0.0.0:9587", "192.168.1.1:9587", "[::]:9587"] {
        let refused = world.taupe(&["web", "--listen", address])?;
        let says_why = refused.stderr.contains("no loopback address");
        ensure!(refused.status == Some(2) && says_why, "{refused:?}");
    }
    Ok(())
}

/// A form of the page moves a program into a tunnel, and another one moves it out.
pub(crate) fn switches() -> Result<()> {
    let world = World::new()?;
    let mole = Application::new("mole")?;
    let file = world.file("# a comment\nAllowedApps = spade")?;
    world.up(&file)?;
    expect(&world, &mole, 0, Some(UPLINK[0]))?;
    let server = Server::start(&world, &["--switches"])?;
    let browser = Client::new(&world, &server, "browser")?;
    browser.expect(&[], &server.address()?, "303")?;
    let page = browser.expect(&[], "", "200")?;
    let value = page
        .split_once("name=\"form\" value=\"")
        .and_then(|(_, rest)| rest.split('"').next())
        .ok_or_else(|| Error::unmet(format!("no form: {page}")))?;
    let value = format!("form={value}");
    let text = || fs::read_to_string(&file).map_err(Error::io("the file"));
    let send = |origin: &str, fields: &[&str], status: &str| {
        let origin = format!("Origin: {origin}");
        let mut options = vec!["--header", &origin];
        for field in fields {
            options.extend(["--data-urlencode", field]);
        }
        browser.expect(&options, "switch", status).map(drop)
    };
    let Application(path) = &mole;
    let application = format!("application={path}");
    let into = [&*value, "tunnel=home", &application, "place=allowed"];
    step("forms that are refused");
    let before = text()?;
    let wrong = format!("form={}", "0".repeat(32));
    send(SITE, &[&wrong, into[1], into[2], into[3]], "403")?;
    send("http://127.0.0.1:9588", &into, "403")?;
    let query = format!("switch?{value}&tunnel=home&{application}&place=allowed");
    browser.expect(&[], &query, "405")?;
    send(SITE, &[&value, "tunnel=work", into[2], into[3]], "303")?;
    let page = browser.expect(&[], "", "200")?;
    ensure!(page.contains("the page shows no such tunnel"), "{page}");
    send(
        SITE,
        &[&value, into[1], "application=a, <b>", into[3]],
        "303",
    )?;
    let page = browser.expect(&[], "", "200")?;
    ensure!(
        page.contains("Not changed: a, &lt;b&gt; and home"),
        "{page}"
    );
    ensure!(text()? == before, "the file is changed: {}", text()?);
    expect(&world, &mole, 0, Some(UPLINK[0]))?;
    step("into the tunnel");
    send(SITE, &into, "303")?;
    let page = browser.expect(&[], "", "200")?;
    ensure!(page.contains("may use the tunnel"), "{page}");
    let shown = server.process.output();
    let line = format!("the page: {file}: {path} may use the tunnel");
    ensure!(shown.contains(&line), "{shown}");
    expect(&world, &mole, 0, Some(TUNNEL[0]))?;
    let after = text()?;
    ensure!(
        after.contains(path) && after.contains("# a comment"),
        "{after}"
    );
    step("out of the tunnel");
    send(SITE, &[&value, into[1], into[2], "place=nowhere"], "303")?;
    expect(&world, &mole, 0, Some(UPLINK[0]))?;
    ensure!(text()? == before, "the file: {}", text()?);
    drop(server);
    world.down(&file)
}

/// On a terminal, Enter prints another address and ends the session of the browser.
pub(crate) fn in_a_terminal() -> Result<()> {
    let world = World::new()?;
    let program = Implementation::Taupe.program()?.display().to_string();
    let terminal = Screen::new(&world.near)?;
    terminal.resize(200, 40)?;
    terminal.write(&format!("TAUPE_CONFINE=kill {program} web"))?;
    let screen = terminal.shows("an address", |it| it.contains("Ctrl-C ends the page"))?;
    let address = address_in(&screen)?;
    let first = Client::at(&world, without_token(&address), "first");
    first.expect(&[], &address, "303")?;
    let report = "a browser has opened the address";
    terminal.shows("the report", |it| it.contains(report))?;
    first.expect(&[], "", "200")?;
    step("Enter");
    terminal.press(&["Enter"])?;
    let screen = terminal.shows("another address", |it| it.matches("/?token=").count() == 2)?;
    let another = address_in(&screen)?;
    wait_until("the end of the session", SOON, || {
        Ok(first.ask(&[], "")?.ends_with("403"))
    })?;
    first.expect(&[], &address, "403")?;
    let second = Client::at(&world, without_token(&another), "second");
    second.expect(&[], &another, "303")?;
    second.expect(&[], "", "200")?;
    first.expect(&[], "", "403")?;
    terminal.shows("the second report", |it| it.matches(report).count() == 2)?;
    step("Ctrl-C");
    terminal.press(&["C-c"])?;
    wait_until("the end", SOON, || {
        Ok(second.ask(&[], "")?.ends_with("000"))
    })
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
