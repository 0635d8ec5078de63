//! Escape tests: a process confines itself, and then tries what it must no longer be able to do.
//!
//! Each attempt is a process of its own, in two kinds: with refusals, where the attempt must fail with
//! the right error, and with fatal violations, where the kernel must end the process by SIGSYS. The
//! latter tells a refusal of the list from one that has another reason. The packet process opens
//! nothing, so its list refuses every path and every socket; the other processes open some, and
//! Landlock refuses the rest.

#![cfg(target_os = "linux")]

use libtest_mimic::{Arguments, Failed, Trial};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, SocketType, netlink, socket};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::mpsc;
use std::{env, fs, thread};
use taupe_confine::{
    CallList, Layer, OnViolation, Rights, available, lists, restrict_calls, restrict_thread,
};
use taupe_os_linux::harmless_call::HarmlessCall;
use taupe_os_linux::message_socket;
use taupe_os_linux::security::landlock_version;

/// Variable with the attempt of a child process.
pub(crate) const ATTEMPT: &str = "TAUPE_ESCAPE";

/// Variable with the folder of an attempt.
const FOLDER: &str = "TAUPE_ESCAPE_FOLDER";

/// Exit status of an attempt that succeeded. Otherwise it is the error number.
const SUCCEEDED: u8 = 200;

/// The signal that ends a process that may not send itself SIGABRT: SIGSEGV.
const CRASHED: i32 = 11;

/// The signal of a fatal violation: SIGSYS.
const FATAL: i32 = 31;

pub(crate) fn main() -> ExitCode {
    match env::var(ATTEMPT) {
        Ok(attempt) => child(&attempt),
        Err(_) => parent(),
    }
}

/// A process that is tested.
struct Process {
    /// Its name in tests.
    name: &'static str,
    list: &'static CallList,
    /// It opens files and sockets after it has been confined.
    opens: bool,
}

const PROCESSES: [Process; 5] = [
    Process {
        name: "proxy",
        list: &lists::PROXY,
        opens: true,
    },
    Process {
        name: "exec",
        list: &lists::EXEC,
        opens: true,
    },
    Process {
        name: "packets",
        list: &lists::PACKETS,
        opens: false,
    },
    Process {
        name: "metrics",
        list: &lists::METRICS,
        opens: false,
    },
    Process {
        name: "web",
        list: &lists::WEB,
        opens: false,
    },
];

/// Sockets that every list refuses.
const SOCKETS: [(&str, AddressFamily, SocketType, Option<Protocol>); 5] = [
    ("packet", AddressFamily::PACKET, SocketType::RAW, None),
    (
        "raw",
        AddressFamily::INET,
        SocketType::RAW,
        Some(rustix::net::ipproto::ICMP),
    ),
    (
        "netfilter",
        AddressFamily::NETLINK,
        SocketType::RAW,
        Some(netlink::NETFILTER),
    ),
    ("vsock", AddressFamily::VSOCK, SocketType::STREAM, None),
    (
        "sequenced",
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        None,
    ),
];

/// Sockets that only the list of a process that opens nothing refuses.
const USUAL_SOCKETS: [(&str, AddressFamily, SocketType, Option<Protocol>); 5] = [
    ("udp", AddressFamily::INET, SocketType::DGRAM, None),
    ("udp6", AddressFamily::INET6, SocketType::DGRAM, None),
    ("tcp", AddressFamily::INET, SocketType::STREAM, None),
    ("unix", AddressFamily::UNIX, SocketType::STREAM, None),
    // Protocol 0 is `NETLINK_ROUTE`.
    ("route", AddressFamily::NETLINK, SocketType::RAW, None),
];

/// Attempts with paths and addresses, and the first version of Landlock that refuses them.
const PATHS: [(&str, u32); 6] = [
    ("read", 1),
    ("list", 1),
    ("create", 1),
    ("truncate", 1),
    ("remove", 1),
    ("connect", 4),
];

/// First version of Landlock that refuses connections to abstract sockets.
const SCOPES: u32 = 6;

fn parent() -> ExitCode {
    let arguments = Arguments::from_args();
    for status in available() {
        if !status.holds() {
            eprintln!("this kernel: {status}");
        }
    }
    let trials = PROCESSES.iter().flat_map(trials).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trials(process: &'static Process) -> Vec<Trial> {
    let name = process.name;
    let has_calls = available()[1].holds();
    let landlock = landlock_version().unwrap_or(0);
    let mut calls: Vec<_> = HarmlessCall::ALL.map(|call| format!("{call:?}")).into();
    calls.extend(SOCKETS.map(|(name, ..)| format!("socket-{name}")));
    calls.extend(["execve", "older-thread"].map(str::to_owned));
    if !process.opens {
        calls.extend(USUAL_SOCKETS.map(|(name, ..)| format!("socket-{name}")));
        calls.extend(PATHS.map(|(path, _)| format!("path-{path}")));
        calls.push("abstract-socket".to_owned());
    }
    let refused = calls.into_iter().map(|call| {
        let title = format!("{name}_makes_no_{call}");
        let trial = Trial::test(title, move || is_refused_by_list(name, &call));
        trial.with_ignored_flag(!has_calls)
    });
    let mut trials: Vec<_> = refused.collect();
    if process.opens {
        trials.extend(PATHS.map(|(path, since)| {
            let attempt = format!("{name} refuse path-{path}");
            let trial = Trial::test(format!("{name}_does_not_{path}"), move || {
                expect(&attempt, &Ended::With(Errno::ACCESS.raw_os_error()))
            });
            trial.with_ignored_flag(landlock < since)
        }));
        let attempt = format!("{name} refuse abstract-socket");
        let title = format!("{name}_connects_to_no_abstract_socket");
        let trial = Trial::test(title, move || {
            expect(&attempt, &Ended::With(Errno::PERM.raw_os_error()))
        });
        trials.push(trial.with_ignored_flag(landlock < SCOPES));
    }
    let attempt = format!("{name} refuse abort");
    let trial = Trial::test(format!("{name}_ends_when_it_aborts"), move || {
        expect(&attempt, &Ended::By(CRASHED))
    });
    trials.push(trial.with_ignored_flag(!has_calls));
    for reaction in ["refuse", "kill"] {
        let attempt = format!("{name} {reaction} work");
        trials.push(Trial::test(format!("{name}_works_{reaction}"), move || {
            expect(&attempt, &Ended::With(SUCCEEDED.into()))
        }));
    }
    trials
}

fn is_refused_by_list(name: &str, call: &str) -> Result<(), Failed> {
    let error = match call {
        // musl reports `EPERM` from `mmap` as `ENOMEM`.
        "MapExecutable" if cfg!(target_env = "musl") => Errno::NOMEM,
        _ => Errno::PERM,
    };
    let refused = Ended::With(error.raw_os_error());
    expect(&format!("{name} refuse {call}"), &refused)?;
    expect(&format!("{name} kill {call}"), &Ended::By(FATAL))
}

/// End of a child process.
#[derive(PartialEq, Eq, Debug)]
enum Ended {
    With(i32),
    By(i32),
}

fn expect(attempt: &str, expected: &Ended) -> Result<(), Failed> {
    let scratch = Scratch::new(attempt)?;
    let mut command = Command::new(env::current_exe()?);
    command.env(ATTEMPT, attempt).env(FOLDER, &scratch.0);
    let output = command.output()?;
    let status = output.status;
    let ended = match status.code() {
        Some(code) => Ended::With(code),
        None => Ended::By(status.signal().unwrap_or_default()),
    };
    match ended == *expected {
        true => Ok(()),
        false => Err(format!(
            "{attempt}: {ended:?} instead of {expected:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        )
        .into()),
    }
}

/// A folder of this attempt, with a state folder and a file beside it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> io::Result<Self> {
        let name = format!("taupe-escape-{}-{name}", std::process::id());
        let folder = env::temp_dir().join(name.replace(' ', "-"));
        fs::create_dir_all(folder.join("state"))?;
        fs::write(folder.join("secret"), "a key")?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn child(attempt: &str) -> ExitCode {
    let mut words = attempt.split(' ');
    let (Some(name), Some(reaction), Some(what)) = (words.next(), words.next(), words.next())
    else {
        panic!("{attempt}");
    };
    let process = PROCESSES.iter().find(|process| process.name == name);
    let process = process.expect("a process");
    let reaction = match reaction {
        "kill" => OnViolation::Kill,
        _ => OnViolation::Refuse,
    };
    let folder = PathBuf::from(env::var_os(FOLDER).expect("a folder"));
    // Another process's, as far as Landlock is concerned.
    let abstract_name = SocketAddr::from_abstract_name(attempt).expect("an address");
    let listener = UnixListener::bind_addr(&abstract_name).expect("a listener");
    let (begin, begun) = mpsc::channel();
    let older = thread::spawn(move || {
        // The sender is gone at the end of the other attempts.
        match begun.recv() {
            Ok(()) => HarmlessCall::Bpf.make(),
            Err(_) => Ok(()),
        }
    });
    let opened = Opened::new().expect("sockets");
    confine(process, reaction, &folder);
    let attempted = match what {
        "older-thread" => {
            begin.send(()).expect("a thread");
            older.join().expect("no panic")
        }
        "abstract-socket" => UnixStream::connect_addr(&abstract_name).map(drop),
        "work" if process.opens => open_and_work(&folder),
        "work" => work(opened),
        _ => attempt_of(what, &folder),
    };
    drop(listener);
    let status = match attempted {
        Ok(()) => SUCCEEDED,
        Err(error) => {
            eprintln!("{error}");
            let number = error.raw_os_error().unwrap_or_default();
            u8::try_from(number).unwrap_or_default()
        }
    };
    status.into()
}

/// Confines this thread to its paths, and the process to the list.
fn confine(process: &Process, reaction: OnViolation, folder: &std::path::Path) {
    let rights = match process.opens {
        true => Rights {
            state_folders: vec![folder.join("state")],
            readable: taupe_confine::resolver_paths(true),
            ..Rights::none()
        },
        false => Rights::none(),
    };
    for status in restrict_thread(&rights) {
        let is_old = status.layer == Layer::Paths;
        assert!(status.holds() || is_old, "{status}");
    }
    let status = restrict_calls(process.list, reaction);
    assert!(status.holds() || !available()[1].holds(), "{status}");
}

fn attempt_of(what: &str, folder: &std::path::Path) -> io::Result<()> {
    let secret = folder.join("secret");
    match what {
        "abort" => std::process::abort(),
        "execve" => Err(Command::new("/bin/true").exec()),
        "path-read" => fs::read(secret).map(drop),
        "path-list" => fs::read_dir(folder).map(drop),
        "path-create" => fs::write(folder.join("new"), ""),
        "path-truncate" => fs::OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(secret)
            .map(drop),
        "path-remove" => fs::remove_file(secret),
        "path-connect" => TcpStream::connect("127.0.0.1:9").map(drop),
        _ => match what.strip_prefix("socket-") {
            Some(name) => {
                let mut all = SOCKETS.into_iter().chain(USUAL_SOCKETS);
                let found = all.find(|(of, ..)| *of == name);
                let (_, family, kind, protocol) = found.expect("a socket");
                Ok(socket(family, kind, protocol).map(drop)?)
            }
            None => {
                let calls = HarmlessCall::ALL.into_iter();
                let mut named = calls.filter(|call| format!("{call:?}") == what);
                named.next().expect("a call").make()
            }
        },
    }
}

/// Sockets of a packet process, which it has before it is confined.
struct Opened {
    /// Two UDP sockets, each connected to the other.
    datagrams: [UdpSocket; 2],
    /// A socket to the broker, on which a descriptor waits, and the pipe that the descriptor belongs to.
    broker: OwnedFd,
    pipe: io::PipeWriter,
}

impl Opened {
    fn new() -> io::Result<Self> {
        let bind = || UdpSocket::bind("127.0.0.1:0");
        let datagrams = [bind()?, bind()?];
        let [one, other] = &datagrams;
        one.connect(other.local_addr()?)?;
        other.connect(one.local_addr()?)?;
        let (broker, far) = message_socket::pair()?;
        let (reader, pipe) = io::pipe()?;
        message_socket::send(far.as_fd(), b"answer", &[reader.as_fd()])?;
        Ok(Self {
            datagrams,
            broker,
            pipe,
        })
    }
}

/// Does what a process needs that opens nothing: threads, datagrams, descriptors from the broker.
fn work(opened: Opened) -> io::Result<()> {
    let Opened {
        datagrams: [one, other],
        broker,
        mut pipe,
    } = opened;
    let worker = thread::spawn(move || {
        one.send(b"ping")?;
        other.recv(&mut [0; 4])
    });
    worker.join().expect("no panic")?;
    let message = message_socket::receive(broker.as_fd())?.expect("a message");
    let [reader] = <[OwnedFd; 1]>::try_from(message.descriptors).expect("a descriptor");
    pipe.write_all(b"text")?;
    File::from(reader).read_exact(&mut [0; 4])
}

/// Does what a process needs that opens files and sockets: threads, state files, datagrams, names.
fn open_and_work(folder: &std::path::Path) -> io::Result<()> {
    let state = folder.join("state/inner");
    let worker = thread::spawn(move || {
        fs::create_dir(&state)?;
        fs::write(state.join("new"), "text")?;
        fs::rename(state.join("new"), state.join("file"))?;
        fs::File::open(&state)?.sync_all()?;
        fs::File::open(state.join("file"))?.read_exact(&mut [0; 4])?;
        fs::remove_file(state.join("file"))
    });
    worker.join().expect("no panic")?;
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let socket = match UdpSocket::bind(address) {
            // A machine without IPv6.
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => continue,
            socket => socket?,
        };
        let own = socket.local_addr()?;
        socket.send_to(b"ping", own)?;
        socket.recv(&mut [0; 4])?;
    }
    let addresses = ("localhost", 80).to_socket_addrs()?;
    assert!(addresses.count() > 0, "localhost has no address");
    Ok(())
}
