//! The fake device, which behaves as its name says.

use super::bench::wait_for;
use super::{DIRECTORY, LIMIT};
use rustix::process::{Signal, kill_process};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use taupe_broker::RemoteTranslator;
use taupe_engine::{Exit, Options, Resolver, StartError, TunSource};
use taupe_nat::translate::Settings;

pub(crate) struct Fake {
    name: String,
    stop: Sender<()>,
    stopped: Receiver<()>,
    _tun: TunSource,
}

fn directory() -> PathBuf {
    std::env::var_os(DIRECTORY).expect("set").into()
}

fn note(name: &str, text: &str) {
    let draft = directory().join(format!(".{name}"));
    fs::write(&draft, text).expect("written");
    fs::rename(draft, directory().join(name)).expect("renamed");
}

/// Describes the properties of this process that its caller may have influenced.
fn situation() -> String {
    let link = |path: &str| {
        let target = fs::read_link(path);
        target.map_or_else(
            |error| error.to_string(),
            |target| target.display().to_string(),
        )
    };
    let stat = fs::read_to_string("/proc/self/stat").expect("stat");
    let session = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.split(' ').nth(4));
    let status = fs::read_to_string("/proc/self/status").expect("status");
    let umask = status
        .lines()
        .find_map(|line| line.strip_prefix("Umask:\t"));
    let mut text = format!(
        "pid {}\nsession {}\numask {}\ncwd {}\n",
        std::process::id(),
        session.expect("field"),
        umask.expect("line"),
        link("/proc/self/cwd"),
    );
    for entry in fs::read_dir("/proc/self/fd")
        .expect("descriptors")
        .flatten()
    {
        let path = entry.path();
        let target = link(&path.display().to_string());
        text += &format!("fd {} {target}\n", entry.file_name().display());
    }
    text
}

impl taupe_command::Device for Fake {
    fn start(
        options: Options,
        _: Option<Settings>,
        _: Arc<dyn Resolver>,
    ) -> Result<Self, StartError> {
        note("situation", &situation());
        let fails = |text: String| {
            Err(StartError::System {
                what: "the fake device",
                source: io::Error::other(text),
            })
        };
        match options.interface.as_str() {
            "fails" => return fails("fails as told".into()),
            "fails-long" => return fails("x".repeat(1 << 20)),
            "dies" => {
                let _ = kill_process(rustix::process::getpid(), Signal::KILL);
            }
            "slow" => wait_for(&directory().join("go")),
            _ => {}
        }
        let (stop, stopped) = channel();
        Ok(Self {
            name: options.interface,
            stop,
            stopped,
            _tun: options.tun,
        })
    }

    fn packet_process(&self) -> Option<u32> {
        None
    }

    fn translator(&self) -> Option<RemoteTranslator> {
        None
    }

    fn stopper(&self) -> impl FnOnce() + Send + 'static {
        let stop = self.stop.clone();
        move || {
            let _ = stop.send(());
        }
    }

    fn run(self) -> Exit {
        note("running", "");
        if self.name == "breaks" {
            return Exit::Failed("it broke as told".into());
        }
        let outcome = self.stopped.recv_timeout(LIMIT);
        note(
            "ended",
            if outcome.is_ok() {
                "stopped"
            } else {
                "forgotten"
            },
        );
        Exit::Stopped
    }
}
