//! A broker with packet processes that misbehave. This program runs itself again as the packet process,
//! whose behaviour is the name of its interface.

#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use libtest_mimic::{Arguments, Failed, Trial};
use rustix::process::{Signal, getpid, kill_process};
use taupe_broker::{Broker, Command, LinkError, PacketProcess, RemoteTranslator, VERSION};
use taupe_engine::{
    Environment, Exit, Offloads, Options, Resolver, StartError, SystemResolver, TunSource,
    UapiSource, Underlay,
};
use taupe_nat::flows::{End, ExpiringFlows, Tuple};
use taupe_nat::translate::{Settings, TranslatorControl as _};
use taupe_os_linux::message_socket::{self, Message};
use taupe_os_linux::packet_process::ARGUMENT;
use taupe_packet::ip::Family;
use taupe_protocol::update::EndpointName;

type TestBody = fn() -> Result<(), Failed>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [first, behaviour] = &*words
        && first == ARGUMENT
    {
        // The broker ignores the exit status of a process that has reported its end.
        let _ = packet_process(behaviour);
        return ExitCode::SUCCESS;
    }
    let tests: [(&str, TestBody); 14] = [
        ("orderly_end", orderly_end),
        ("another_version", another_version),
        ("end_before_an_answer", end_before_an_answer),
        ("end_before_the_start", end_before_the_start),
        ("killed_while_it_runs", killed_while_it_runs),
        ("invalid_message", invalid_message),
        ("start_reported_twice", start_reported_twice),
        ("flows_are_removed_unasked", flows_are_removed_unasked),
        ("false_reasons", false_reasons),
        ("its_socket_instead_of_a_tun", its_socket_instead_of_a_tun),
        ("stop_is_ignored", stop_is_ignored),
        ("messages_are_not_read", messages_are_not_read),
        ("commands_for_the_translator", commands_for_the_translator),
        ("flows_are_not_removed", flows_are_not_removed),
    ];
    let trials = tests.map(|(name, test)| Trial::test(name, test));
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit_code()
}

/// Runs as the packet process.
fn packet_process(behaviour: &str) -> Result<(), LinkError> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    if behaviour == "leave" {
        return Ok(());
    }
    if behaviour == "version" {
        return run_another_version(&socket);
    }
    let raw = socket.try_clone()?;
    let (broker, _) = Broker::accept(socket)?;
    // A device, but no TUN.
    let device = File::open("/dev/null")?;
    broker.started(match behaviour {
        "socket" => raw.as_fd(),
        _ => device.as_fd(),
    })?;
    match behaviour {
        "twice" => broker.started(device.as_fd())?,
        "unasked" => message_socket::send(raw.as_fd(), b"\"Forgotten\"", &[])?,
        "deleted" => broker.ended(Exit::InterfaceDeleted)?,
        "removed" => broker.ended(Exit::SocketRemoved)?,
        "stopped" => broker.ended(Exit::Stopped)?,
        "babble" => message_socket::send(raw.as_fd(), b"{\"Reboot\":null}", &[])?,
        "die" => kill_process(getpid(), Signal::KILL).map_err(io::Error::from)?,
        "obey" => {
            let ended = broker.clone();
            broker.run(move |command| {
                if let Command::Stop = command {
                    let _ = ended.ended(Exit::Stopped);
                    std::process::exit(0);
                }
            });
        }
        "hurry" => {
            let ended = broker.clone();
            broker.run(move |command| {
                if let Command::Stop = command {
                    // Another thread's requests. Their answers are not read.
                    for request in ["CountDropped", "PrepareLookUp"] {
                        let text =
                            format!("{{\"Request\":{{\"id\":1,\"request\":\"{request}\"}}}}");
                        let _ = message_socket::send(raw.as_fd(), text.as_bytes(), &[]);
                    }
                    let _ = ended.ended(Exit::Stopped);
                    std::process::exit(0);
                }
            });
        }
        "listen" => drop(broker.run(|_| {})),
        "translate" => drop(broker.run(record)),
        // The answers fill the socket.
        "ask" => loop {
            let request = b"{\"Request\":{\"id\":1,\"request\":\"CountDropped\"}}";
            message_socket::send(raw.as_fd(), request, &[])?;
        },
        _ => {}
    }
    // Until it is killed.
    loop {
        thread::park();
    }
}

/// Writes the commands for a translator to the client of the last one.
fn record(command: Command) {
    static COMMANDS: Mutex<String> = Mutex::new(String::new());
    let mut commands = COMMANDS.lock().expect("no panic");
    match command {
        Command::Stop => std::process::exit(0),
        Command::Report(mut client) => {
            client.write_all(commands.as_bytes()).expect("a client");
        }
        Command::Forget(flows) => *commands += &format!("forget {}\n", flows.0.len()),
        Command::SetMainUplink { v4, v6 } => *commands += &format!("{v4:?} {v6:?}\n"),
    }
}

/// Reads the first message as a program with another version of the messages would.
fn run_another_version(socket: &OwnedFd) -> Result<(), LinkError> {
    let received = message_socket::receive(socket.as_fd())?.ok_or(LinkError::Closed)?;
    let Message {
        text, descriptors, ..
    } = received;
    let mut start: serde_json::Value = serde_json::from_slice(&text)?;
    start["version"] = (VERSION + 1).into();
    start["future"] = "unknown".into();
    let (here, there) = message_socket::pair()?;
    let borrowed: Vec<_> = descriptors.iter().map(|it| it.as_fd()).collect();
    message_socket::send(here.as_fd(), &serde_json::to_vec(&start)?, &borrowed)?;
    let accepted = Broker::accept(there).map(drop);
    assert!(matches!(accepted, Err(LinkError::Version(..))));
    let answer = message_socket::receive(here.as_fd())?.ok_or(LinkError::Closed)?;
    Ok(message_socket::send(socket.as_fd(), &answer.text, &[])?)
}

fn start(behaviour: &str) -> Result<PacketProcess, StartError> {
    start_with(behaviour, None)
}

/// Starts a device, with a translator if there are settings for it.
fn start_with(behaviour: &str, translation: Option<Settings>) -> Result<PacketProcess, StartError> {
    start_with_resolver(behaviour, translation, Arc::new(SystemResolver::default()))
}

fn start_with_resolver(
    behaviour: &str,
    translation: Option<Settings>,
    resolver: Arc<dyn Resolver>,
) -> Result<PacketProcess, StartError> {
    let options = Options {
        interface: behaviour.to_owned(),
        tun: TunSource::Create { lanes: None },
        underlay: Underlay::Here,
        outer_mark: None,
        tap: None,
        uapi: UapiSource::Bind,
        offloads: Offloads::default(),
        state_dir: None,
        notices: None,
    };
    let environment = Environment::of_this_process(Underlay::Here, None, resolver, None);
    PacketProcess::start(options, translation, environment)
}

/// Returns the reason why a device has not started.
fn refused(behaviour: &str) -> Result<String, Failed> {
    match start(behaviour) {
        Ok(_) => Err("it has started".into()),
        Err(error) => Ok(error.to_string()),
    }
}

/// Returns the reason why a device that has started has ended.
fn failed(behaviour: &str) -> Result<String, Failed> {
    match start(behaviour)?.run() {
        Exit::Failed(reason) => Ok(reason),
        exit => Err(format!("{exit:?}").into()),
    }
}

fn contains(text: &str, part: &str) -> Result<(), Failed> {
    match text.contains(part) {
        true => Ok(()),
        false => Err(format!("no {part:?} in {text:?}").into()),
    }
}

fn orderly_end() -> Result<(), Failed> {
    let process = start("obey")?;
    process.stopper()();
    match process.run() {
        Exit::Stopped => Ok(()),
        exit => Err(format!("{exit:?}").into()),
    }
}

/// Blocks the broker until the packet process has ended.
#[derive(Default)]
struct WaitsForEnd(OnceLock<u32>);

impl Resolver for WaitsForEnd {
    fn prepare(&self) {
        let stat = format!("/proc/{}/stat", self.0.wait());
        // Its supervisor, which is this thread, has not collected it yet.
        while std::fs::read_to_string(&stat).is_ok_and(|it| !it.contains(") Z ")) {
            thread::yield_now();
        }
    }

    fn resolve(&self, _: &EndpointName, _: u32) -> io::Result<Vec<SocketAddr>> {
        Err(io::ErrorKind::NotFound.into())
    }
}

/// The reason for its end counts, although the packet process has not waited for the answers to
/// requests of its other threads.
fn end_before_an_answer() -> Result<(), Failed> {
    let waits = Arc::new(WaitsForEnd::default());
    let process = start_with_resolver("hurry", None, Arc::clone(&waits) as _)?;
    waits
        .0
        .set(process.id())
        .map_err(|_| "it has started twice")?;
    process.stopper()();
    match process.run() {
        Exit::Stopped => Ok(()),
        exit => Err(format!("{exit:?}").into()),
    }
}

/// The packet process reports the versions, and the broker returns them.
fn another_version() -> Result<(), Failed> {
    let versions = format!(
        "version {} of the messages, this one has {VERSION}",
        VERSION + 1
    );
    contains(&refused("version")?, &versions)
}

fn end_before_the_start() -> Result<(), Failed> {
    contains(&refused("leave")?, "its packet process has ended")
}

fn killed_while_it_runs() -> Result<(), Failed> {
    contains(&failed("die")?, "signal: 9")
}

fn invalid_message() -> Result<(), Failed> {
    contains(&failed("babble")?, "is invalid")
}

fn start_reported_twice() -> Result<(), Failed> {
    contains(&failed("twice")?, "misbehaves")
}

fn flows_are_removed_unasked() -> Result<(), Failed> {
    contains(&failed("unasked")?, "unasked")
}

/// A packet process cannot make its broker open the tunnel by claiming that somebody else has ended it.
fn false_reasons() -> Result<(), Failed> {
    for behaviour in ["deleted", "removed", "stopped"] {
        contains(&failed(behaviour)?, "misbehaves: it says that")?;
    }
    Ok(())
}

/// Otherwise the broker would not find the socket closed.
fn its_socket_instead_of_a_tun() -> Result<(), Failed> {
    contains(&refused("socket")?, "without a TUN")
}

/// The broker kills a packet process that goes on.
fn stop_is_ignored() -> Result<(), Failed> {
    let process = start("listen")?;
    process.stopper()();
    match process.run() {
        Exit::Failed(reason) => contains(&reason, "its packet process has ended"),
        exit => Err(format!("{exit:?}").into()),
    }
}

/// The broker's threads do not wait for ever.
fn messages_are_not_read() -> Result<(), Failed> {
    contains(&failed("ask")?, "it does not read its messages")
}

fn translator_of(process: &PacketProcess) -> Result<RemoteTranslator, Failed> {
    process.translator().ok_or_else(|| "no translator".into())
}

fn settings() -> Settings {
    Settings {
        v4: Some(Ipv4Addr::new(10, 0, 0, 1)),
        v6: None,
        mtu: 1420,
        dns: Vec::new(),
        capacity: 16,
    }
}

fn flows(count: usize) -> ExpiringFlows {
    let end = End {
        ip: u128::MAX,
        port: 80,
    };
    let flow = Tuple {
        family: Family::V6,
        protocol: 17,
        local: end,
        remote: end,
    };
    ExpiringFlows(vec![flow; count])
}

/// Commands arrive in their order. Flows are split into messages that are short enough.
fn commands_for_the_translator() -> Result<(), Failed> {
    let process = start_with("translate", Some(settings()))?;
    let translator = translator_of(&process)?;
    translator.set_main_uplink(Some(Ipv4Addr::LOCALHOST), None);
    translator.forget(&flows(300))?;
    translator.forget(&flows(0))?;
    let (mut ours, theirs) = UnixStream::pair()?;
    translator.report(&theirs)?;
    drop(theirs);
    let mut recorded = String::new();
    ours.read_to_string(&mut recorded)?;
    let expected = "Some(127.0.0.1) None\nforget 128\nforget 128\nforget 44\n";
    if recorded != expected {
        return Err(recorded.into());
    }
    process.stopper()();
    let _ = process.run();
    let is_gone = translator.report(&ours).is_err();
    // This returns although no answer will come.
    let is_kept = translator.forget(&flows(1)).is_err();
    match is_gone && is_kept {
        true => Ok(()),
        false => Err("a process that has ended executes a command".into()),
    }
}

/// The broker ends the packet process, and the watchdog goes on.
fn flows_are_not_removed() -> Result<(), Failed> {
    let process = start_with("stay", Some(settings()))?;
    let forgotten = translator_of(&process)?.forget(&flows(1));
    let why = forgotten.err().ok_or("it claims that flows are removed")?;
    contains(&why.to_string(), "does not remove flows")?;
    match process.run() {
        Exit::Failed(reason) => contains(&reason, "its packet process has ended"),
        exit => Err(format!("{exit:?}").into()),
    }
}
