//! The page in Chromium, which chromedriver controls (W3C WebDriver over HTTP).

use super::{Server, connected};
use crate::world::{Application, World};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;
use taupe_lab::process::{Process, wait_until};
use taupe_lab::sandbox::{scratch, scratch_file, step};
use taupe_lab::{Error, Result, ensure};

const DRIVER: &str = "http://127.0.0.1:9515";

const SOON: Duration = Duration::from_secs(60);

/// Path of axe-core's file, which `scripts/axe` prints, and a folder for pictures of the page.
pub(crate) const AXE: &str = "AXE";
const PICTURES: &str = "PICTURES";

/// The page has no obstacle that axe-core finds, fits wide and narrow windows, can be used by keys and
/// changes while it is open.
pub(crate) fn page() -> Result<()> {
    let axe = std::env::var_os(AXE).map(PathBuf::from);
    let axe = axe.ok_or_else(|| Error::unmet("AXE is not set; `scripts/axe` prints its value"))?;
    let axe = fs::read_to_string(&axe).map_err(Error::io("axe-core"))?;
    let world = World::new()?;
    let mole = Application::new("mole")?;
    let file = world.file("# Name = server in the cellar\nAllowedApps = mole, firefox-esr, /usr/bin/curl\nPersistentKeepalive = 1")?;
    world.up(&file)?;
    let _connection = connected(&world, &mole)?;
    // Nobody answers at this port.
    let work = world.with_another("work", 3)?;
    let silent = work.file_with_sections(
        "Address = 10.77.0.3/32",
        "Endpoint = 192.168.1.2:9\nAllowedIPs = 10.0.0.0/8\nAllowedApps = spade\nPersistentKeepalive = 1",
    )?;
    work.up(&silent)?;
    let server = Server::start(&world, &["--switches"])?;
    let browser = Browser::start(&world)?;
    browser.open(&server.address()?)?;
    wait_until("live state", SOON, || {
        Ok(browser.read("return document.querySelector('#live').className")? == "live on")
    })?;
    let address = browser.text("return location.href")?;
    ensure!(address == server.base()?, "{address}");
    step("a degraded tunnel appears by itself");
    wait_until("its reason", SOON, || {
        let reasons =
            browser.read("return document.querySelector('.reasons')?.textContent ?? ''")?;
        Ok(reasons
            .as_str()
            .is_some_and(|it| it.contains("work") && it.contains("no-handshake")))
    })?;
    let title = browser.read("return document.title")?;
    ensure!(title == "work is degraded, home is up – Taupe", "{title}");
    step("opened details and the focus stay");
    browser.read("const it = document.querySelector('#settings-home'); it.open = true; it.querySelector('summary').focus(); window.seen = document.querySelector('#tunnel-home svg path.line')?.getAttribute('d')")?;
    wait_until("a newer plot", SOON, || {
        browser.is("return document.querySelector('#tunnel-home svg path.line')?.getAttribute('d') !== window.seen")
    })?;
    ensure!(browser.is("return document.querySelector('#settings-home').open && document.activeElement.parentNode.id === 'settings-home'")?, "they are gone");
    step("rates of two minutes' begin");
    wait_until("ten readings", SOON, || {
        browser.is("return (document.querySelector('#tunnel-home svg path.line')?.getAttribute('d') ?? '').split('L').length > 10")
    })?;
    let mut found = Vec::new();
    for scheme in ["light", "dark"] {
        for width in [1280, 400] {
            step(&format!("{scheme}, {width} pixels"));
            browser.show(width, scheme)?;
            let wide = "return document.documentElement.scrollWidth <= window.innerWidth";
            ensure!(browser.is(wide)?, "{width} pixels: the page is wider");
            if let Some(folder) = std::env::var_os(PICTURES) {
                let picture = PathBuf::from(folder).join(format!("web-{width}-{scheme}.png"));
                browser.picture(&picture.display().to_string())?;
            }
            found.extend(browser.examine(&axe)?);
        }
    }
    ensure!(found.is_empty(), "axe-core: {found:#?}");
    step("keys");
    browser.read("document.querySelector('.skip').focus()")?;
    let mut order = vec![browser.text("return document.activeElement.textContent")?];
    for _ in 0..40 {
        browser.press("\u{e004}")?;
        let focused = browser.text("return document.activeElement.textContent")?;
        let is_last = focused == "Settings and counters of work";
        order.push(focused);
        if is_last {
            break;
        }
    }
    let expected = [
        "Skip to the state",
        "Pause",
        "home is up",
        "work is degraded",
        "work",
        // Switches of the application with connections, and of the files' entries.
        "Out of home",
        "Remove",
        "Remove",
        "Remove",
        "Into home",
        "2 limits of home on this system",
        "Settings and counters of home",
        "Remove",
        "Into work",
        "2 limits of work on this system",
        "Settings and counters of work",
    ];
    // A kernel that keeps all promises has no limits; other programs may have connections.
    order.retain(|it| expected.contains(&&**it));
    ensure!(order == expected, "the focus goes to {order:?}");
    step("an application is added by keys");
    browser.read("const it = document.querySelector('form.add input[name=application]'); it.value = 'ferret'; it.focus(); window.seen = document.querySelector('#tunnel-home svg path.line')?.getAttribute('d')")?;
    wait_until("a newer plot", SOON, || {
        browser.is("return document.querySelector('#tunnel-home svg path.line')?.getAttribute('d') !== window.seen")
    })?;
    ensure!(
        browser.is("return document.activeElement.value === 'ferret'")?,
        "the text or the focus is gone"
    );
    browser.press("\u{e007}")?;
    wait_until("the result", SOON, || {
        browser.is("return document.querySelector('#notice-title')?.textContent === 'Changed: ferret and home'")
    })?;
    found.extend(browser.examine(&axe)?);
    ensure!(found.is_empty(), "axe-core: {found:#?}");
    wait_until("live state", SOON, || {
        browser.is("return document.querySelector('#live').className === 'live on'")
    })?;
    step("pause by a key");
    browser.read("document.querySelector('#live button').focus()")?;
    browser.press("\u{e007}")?;
    ensure!(
        browser.is("return document.querySelector('#live span').textContent === 'paused'")?,
        "it is not paused"
    );
    browser.press("\u{e007}")?;
    wait_until("live state", SOON, || {
        browser.is("return document.querySelector('#live').className === 'live on'")
    })?;
    step("a hidden window reads nothing");
    let set_hidden = |is_hidden: bool| {
        let script = format!(
            "Object.defineProperty(document, 'hidden', {{value: {is_hidden}, configurable: true}}); \
             document.dispatchEvent(new Event('visibilitychange'))"
        );
        browser.read(&script)
    };
    set_hidden(true)?;
    ensure!(
        browser.is("return document.querySelector('#live span').textContent === 'hidden'")?,
        "it is not hidden"
    );
    set_hidden(false)?;
    wait_until("live state", SOON, || {
        browser.is("return document.querySelector('#live').className === 'live on'")
    })?;
    step("nothing is loaded from elsewhere, and nothing is refused");
    let log = browser.call("POST", "/se/log", &json!({"type": "browser"}))?;
    ensure!(log.as_array().is_some_and(Vec::is_empty), "{log}");
    step("a server that ends");
    drop(server);
    wait_until("the word", SOON, || {
        browser.is("return document.querySelector('#live').className === 'live bad'")
    })?;
    step("another program at its address");
    impostor(&world)?;
    wait_until("the warning", SOON, || {
        browser.is(
            "return document.querySelector('#live span').textContent.startsWith('another program')",
        )
    })?;
    let text = browser.text("return document.querySelector('main').textContent")?;
    ensure!(!text.contains("all is well"), "{text}");
    drop(browser);
    work.down(&silent)?;
    world.down(&file)
}

/// Answers all requests at the server's address with a state that is not true.
fn impostor(world: &World) -> Result<()> {
    let at = "127.0.0.1:9587";
    let listener = world
        .near
        .enter(|| TcpListener::bind(at).map_err(Error::io(at)))?;
    // Until the sandbox ends.
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || answer_falsely(stream));
        }
    });
    Ok(())
}

fn answer_falsely(mut stream: TcpStream) {
    let _ = stream.read(&mut [0; 4096]);
    let event = "event: state\ndata: 00\ndata: <h1>all is well</h1>\n\n";
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
    let _ = stream.write_all(format!("{head}{event}").as_bytes());
    // The browser closes it.
    let _ = stream.read(&mut [0; 4096]);
}

/// Chromium on `near`.
struct Browser<'a> {
    world: &'a World,
    session: String,
    _driver: Process,
}

impl<'a> Browser<'a> {
    fn start(world: &'a World) -> Result<Self> {
        let home = scratch("home");
        fs::create_dir_all(&home).map_err(Error::io("home"))?;
        let mut command = world.near.command(&["chromedriver", "--port=9515"]);
        command
            .env("HOME", &home)
            .env("XDG_RUNTIME_DIR", &home)
            .env_remove("DISPLAY");
        let driver = Process::start("near", command)?;
        let mut browser = Self {
            world,
            session: String::new(),
            _driver: driver,
        };
        wait_until("the driver", SOON, || {
            let status = browser.call("GET", "/status", &Value::Null);
            Ok(status.is_ok_and(|status| status["ready"] == true))
        })?;
        let profile = format!("--user-data-dir={}", scratch("profile").display());
        #[rustfmt::skip]
        let arguments = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--disable-background-networking", "--no-proxy-server", "--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--disable-component-update", "--disable-sync", &profile,
        ];
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let session = browser.call("POST", "/session", &wanted)?;
        let id = session["sessionId"].as_str().unwrap_or_default();
        browser.session = format!("/session/{id}");
        Ok(browser)
    }

    /// Executes a command of the protocol and returns its value.
    fn call(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let url = format!("{DRIVER}{}{path}", self.session);
        let mut command = vec![
            "curl",
            "--silent",
            "--max-time",
            "90",
            "--request",
            method,
            &url,
        ];
        let text = scratch_file("request.json", &body.to_string())?;
        let data = format!("@{text}");
        if method == "POST" {
            command.extend([
                "--header",
                "Content-Type: application/json",
                "--data-binary",
                &data,
            ]);
        }
        let answer = self.world.near.attempt(&command)?.stdout;
        let answer: Value = serde_json::from_str(&answer)
            .map_err(|error| Error::unmet(format!("{path}: {error}: {answer}")))?;
        let value = &answer["value"];
        ensure!(value["error"].is_null(), "{path}: {value}");
        Ok(value.clone())
    }

    fn open(&self, url: &str) -> Result<()> {
        self.call("POST", "/url", &json!({"url": url})).map(drop)
    }

    /// Executes a script and returns its result.
    fn read(&self, script: &str) -> Result<Value> {
        let body = json!({"script": script, "args": []});
        self.call("POST", "/execute/sync", &body)
    }

    fn text(&self, script: &str) -> Result<String> {
        let text = self.read(script)?;
        Ok(text.as_str().unwrap_or_default().to_owned())
    }

    fn is(&self, script: &str) -> Result<bool> {
        Ok(self.read(script)? == true)
    }

    /// Presses a key, by its code in the protocol.
    fn press(&self, key: &str) -> Result<()> {
        let actions = ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key}));
        let keys = json!({"actions": [{"type": "key", "id": "keys", "actions": actions}]});
        self.call("POST", "/actions", &keys).map(drop)
    }

    fn command(&self, name: &str, parameters: &Value) -> Result<Value> {
        let body = json!({"cmd": name, "params": parameters});
        self.call("POST", "/goog/cdp/execute", &body)
    }

    /// Sets the width of the window and the colour scheme.
    fn show(&self, width: u32, scheme: &str) -> Result<()> {
        let metrics =
            json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.command("Emulation.setDeviceMetricsOverride", &metrics)?;
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.command("Emulation.setEmulatedMedia", &features)?;
        Ok(())
    }

    /// Writes a picture of the whole page.
    fn picture(&self, path: &str) -> Result<()> {
        let options = json!({"captureBeyondViewport": true});
        let picture = self.command("Page.captureScreenshot", &options)?;
        let data = picture["data"].as_str().unwrap_or_default();
        let script = "base64 -d >\"$1\"";
        let write = ["sh", "-c", script, "sh", path];
        self.world.near.run_with_input(&write, data).map(drop)
    }

    /// Returns the obstacles that axe-core finds.
    fn examine(&self, axe: &str) -> Result<Vec<String>> {
        let script = format!(
            "{axe};\nconst done = arguments[arguments.length - 1];\n\
             axe.run(document).then(it => done(it.violations.map(one => one.id + ': ' + one.help + ' ' + \
             one.nodes.map(node => node.html.slice(0, 200) + ' ' + node.failureSummary).join('; '))), \
             error => done([String(error)]));"
        );
        let body = json!({"script": script, "args": []});
        let found = self.call("POST", "/execute/async", &body)?;
        let found = found
            .as_array()
            .ok_or_else(|| Error::unmet(format!("{found}")))?;
        Ok(found.iter().map(ToString::to_string).collect())
    }
}

impl Drop for Browser<'_> {
    fn drop(&mut self) {
        let _ = self.call("DELETE", "", &Value::Null);
    }
}
