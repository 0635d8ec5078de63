//! The tunnel's process as a process of its own, which tests can kill.

use crate::application::Application;
use crate::client::WORD;
use crate::scene::{Scene, TUNNEL, everything_but, rules, set_up_all, unmet};
use std::fs;
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::process::Command;
use taupe_config::file::Forwarded;
use taupe_lab::{Error, Result};
use taupe_nat::flows;
use taupe_nat::translate::{Settings, Translator};
use taupe_transparent::capture::{self, CaptureSettings};
use taupe_transparent::error::TransparentError;
use taupe_transparent::state::{DnsHandling, Lock};
use taupe_transparent::uplinks::{LinkHeader, Uplink};

/// The first argument of this program when it acts as a daemon.
pub(crate) const DAEMON: &str = "--daemon";

/// The first argument of this program when it runs a capture that follows home's links.
pub(crate) const CAPTURE: &str = "--capture";

/// Starts another process as the daemon, until it is killed. The TUN stays in this process.
pub(crate) fn start_daemon(scene: &Scene, allowed: &str) -> Result<Application> {
    let words = daemon_words(scene, allowed)?;
    let [own, words @ ..] = &words[..] else {
        return Err(Error::unmet("no daemon"));
    };
    let mut command = Command::new(own);
    command.args(words);
    Application::start(command)
}

/// Returns the command of [`start_daemon`]. With a program and an address at its end, that program is its
/// packet process, and holds sockets to that address until the daemon is asked.
pub(crate) fn daemon_words(scene: &Scene, allowed: &str) -> Result<Vec<String>> {
    let uplink = scene.uplink("up0")?;
    let LinkHeader::Ethernet(mac) = uplink.header else {
        return Err(Error::unmet("no Ethernet"));
    };
    let tun = scene.tun.index().map_err(Error::io("TUN"))?;
    let own = std::env::current_exe().map_err(Error::io("own executable"))?;
    let own = own.display().to_string();
    let mut words = vec![own, DAEMON.into(), "home".into(), allowed.into()];
    words.extend([tun, uplink.index].map(|number| number.to_string()));
    words.extend(mac.map(|byte| byte.to_string()));
    Ok(words)
}

pub(crate) fn main(words: &[&str]) -> ! {
    let result = (|| -> Result<()> {
        let [home, allowed, numbers @ ..] = words else {
            return Err(Error::unmet(format!("{words:?}")));
        };
        enter(home)?;
        let (numbers, mut carrier) = match *numbers {
            [ref numbers @ .., program, to] if to.parse::<SocketAddr>().is_ok() => {
                let mut command = Command::new(program);
                command.args([WORD, "hold", to]);
                (numbers, Some(Application::start(command)?))
            }
            _ => (numbers, None),
        };
        let numbers: Vec<u32> = numbers
            .iter()
            .filter_map(|word| word.parse().ok())
            .collect();
        let [tun, index, ref mac @ ..] = numbers[..] else {
            return Err(Error::unmet(format!("{words:?}")));
        };
        let mut address = [0; 6];
        for (to, from) in address.iter_mut().zip(mac) {
            *to = u8::try_from(*from).map_err(unmet)?;
        }
        let uplink = Uplink {
            index,
            name: "up0".to_owned(),
            header: LinkHeader::Ethernet(address),
            has_default_route: true,
        };
        let programs = set_up_all(
            uplink,
            tun,
            [carrier.as_ref().map(Application::id), None],
            &rules(&[allowed], &[]),
            &everything_but(&[]),
        )
        .map_err(unmet)?;
        println!("ready\n{:?}", programs.missing_features());
        let _ = io::stdin().read(&mut [0; 64]);
        if let Some(carrier) = &mut carrier {
            println!("{}", carrier.go()?);
            let _ = io::stdin().read(&mut [0; 64]);
        }
        Ok(())
    })();
    if let Err(error) = result {
        println!("{error}");
        std::process::exit(1);
    }
    std::process::exit(0)
}

/// Moves this thread into a host's network namespace.
fn enter(host: &str) -> Result<()> {
    let path = format!("/run/netns/{host}");
    let namespace = fs::File::open(&path).map_err(Error::io(&*path))?;
    let kind = Some(rustix::thread::LinkNameSpaceType::Network);
    rustix::thread::move_into_link_name_space(namespace.as_fd(), kind).map_err(Error::io(path))
}

/// Starts a capture that follows the links of the calling thread's namespace.
pub(crate) fn begin(
    tunnel: &str,
    allowed: &str,
    tun: u32,
) -> std::result::Result<capture::Capture, TransparentError> {
    begin_with(tunnel, &settings(allowed), tun)
}

/// Returns the settings for these applications and all destinations.
pub(crate) fn settings(allowed: &str) -> CaptureSettings {
    CaptureSettings {
        rules: rules(&[allowed], &[]),
        destinations: everything_but(&[]),
        lock: Lock::Selected,
        forwarded: Forwarded::Direct,
        dns: DnsHandling::default(),
    }
}

/// Starts a capture with any settings.
pub(crate) fn begin_with(
    tunnel: &str,
    settings: &CaptureSettings,
    tun: u32,
) -> std::result::Result<capture::Capture, TransparentError> {
    // The tunnel has no translator here.
    let translator = Translator::new(&Settings {
        v4: "192.0.2.2".parse().ok(),
        v6: None,
        mtu: 1420,
        dns: Vec::new(),
        capacity: flows::CAPACITY,
    });
    capture::Capture::begin(tunnel, tun, [None, None], settings, Box::new(translator))
}

/// Runs a capture in a process of its own, or prints why it cannot, and stays alive.
pub(crate) fn capture(words: &[&str]) -> ! {
    let [home, allowed, tun, more @ ..] = words else {
        panic!("{words:?}");
    };
    enter(home).expect("a host");
    let mut settings = settings(allowed);
    if more.contains(&"forwarded") {
        settings.forwarded = Forwarded::Tunnel;
    }
    let begun = begin_with(TUNNEL, &settings, tun.parse().expect("an index"));
    println!("ready");
    if let Err(error) = &begun {
        println!("{error}");
    }
    let _ = io::stdin().read(&mut [0; 64]);
    std::process::exit(0)
}
