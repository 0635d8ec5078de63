//! The page in browsers.

use super::driver::{Browser, Engine};
use super::{Server, connected};
use crate::world::{Application, World};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::step;
use taupe_lab::{Error, Result, ensure};

pub(super) const SOON: Duration = Duration::from_secs(60);

/// Path of axe-core's file, which `scripts/axe` prints, and a folder for pictures of the page.
pub(crate) const AXE: &str = "AXE";
const PICTURES: &str = "PICTURES";

pub(crate) fn in_chromium() -> Result<()> {
    page(Engine::Chromium)
}

pub(crate) fn in_firefox() -> Result<()> {
    page(Engine::Firefox)
}

/// The page has no obstacle that axe-core finds, fits wide and narrow windows, can be used by keys and
/// changes while it is open.
fn page(engine: Engine) -> Result<()> {
    let axe = std::env::var_os(AXE).map(PathBuf::from);
    let axe = axe.ok_or_else(|| Error::unmet("AXE is not set; `scripts/axe` prints its value"))?;
    let axe = fs::read_to_string(&axe).map_err(Error::io("axe-core"))?;
    let world = World::new()?;
    let mole = Application::new("mole")?;
    let file = world.file("# Name = server in the cellar\nAllowedApps = mole, otter, /usr/bin/vole\nPersistentKeepalive = 1")?;
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
    let browser = Browser::start(&world, engine)?;
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
                let picture =
                    PathBuf::from(folder).join(format!("{engine:?}-{width}-{scheme}.png"));
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
    let complaints = browser.complaints()?;
    ensure!(complaints.is_empty(), "{complaints:?}");
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
