//! A service with simulated commands, and its front.

use crate::executor::{Executor, FlowView, Outcome, Running, Target};
use crate::link::Link;
use crate::listed::Listed;
use crate::message::{Answer, Class, FromFront, Request, Source};
use crate::name::TunnelName;
use crate::passed::tests::{KEY, text};
use crate::registry::Registry;
use crate::sealed::{read_sealed, seal};
use crate::server::{Server, Settings};
use rustix::process::geteuid;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use taupe_os_linux::message_socket;

pub(super) const ALICE: u32 = 1000;
pub(super) const BOB: u32 = 1001;

#[derive(Default)]
struct State {
    calls: Vec<String>,
    tunnels: BTreeMap<String, Running>,
    status: u8,
    /// Commands that bring up a tunnel wait while this is true.
    is_held: bool,
    /// Commands that wait.
    waiting: usize,
}

/// Commands that only note that they were executed.
struct Commands(Arc<Mutex<State>>);

impl Commands {
    fn note(&self, call: String) -> Outcome {
        let mut state = self.0.lock().expect("state");
        state.calls.push(call);
        Outcome {
            status: state.status,
            output: b"output\n".to_vec(),
            errors: b"errors\n".to_vec(),
        }
    }
}

fn shown(target: &Target) -> String {
    match target {
        Target::File(path) => path.display().to_string(),
        Target::Name(name) => name.to_string(),
    }
}

fn tunnel_of(target: &str) -> String {
    Path::new(target)
        .file_stem()
        .expect("a name")
        .to_str()
        .expect("text")
        .to_owned()
}

impl Executor for Commands {
    fn tunnels(&self) -> io::Result<BTreeMap<String, Running>> {
        Ok(self.0.lock().expect("state").tunnels.clone())
    }

    fn up(&self, file: &Path, is_transparent: bool) -> Outcome {
        let how = if is_transparent { " transparent" } else { "" };
        self.0.lock().expect("state").waiting += 1;
        while self.0.lock().expect("state").is_held {
            thread::yield_now();
        }
        self.0.lock().expect("state").waiting -= 1;
        let outcome = self.note(format!("up {}{how}", file.display()));
        if outcome.status == 0 {
            let running = Running {
                file: Some(file.to_owned()),
                selects: is_transparent,
                only_user: None,
                is_transparent,
            };
            let name = tunnel_of(&file.display().to_string());
            self.0.lock().expect("state").tunnels.insert(name, running);
        }
        outcome
    }

    fn down(&self, target: &Target) -> Outcome {
        let target = shown(target);
        self.0
            .lock()
            .expect("state")
            .tunnels
            .remove(&tunnel_of(&target));
        self.note(format!("down {target}"))
    }

    fn reload(&self, file: &Path) -> Outcome {
        self.note(format!("reload {}", file.display()))
    }

    fn edit(&self, target: &Target, application: &str, is_allowed: bool) -> Outcome {
        self.note(format!("edit {} {application} {is_allowed}", shown(target)))
    }

    fn status(&self, names: Option<&BTreeSet<TunnelName>>, _json: bool) -> Outcome {
        self.note(match names {
            None => "status of all".to_owned(),
            Some(names) => {
                let names: Vec<_> = names.iter().map(TunnelName::as_str).collect();
                format!("status {}", names.join(" "))
            }
        })
    }

    fn flows(&self, view: &FlowView, _json: bool) -> Outcome {
        let FlowView {
            user,
            tunnel,
            explained,
        } = view;
        let tunnel = tunnel.as_ref().map(TunnelName::as_str);
        let explained = explained.as_ref();
        let explained = explained.map(|it| it.iter().map(TunnelName::as_str).collect::<Vec<_>>());
        self.note(format!(
            "flows of {user:?} in {tunnel:?} explained {explained:?}"
        ))
    }
}

/// A service whose folders are removed when it is dropped.
pub(super) struct World {
    folder: PathBuf,
    state: Arc<Mutex<State>>,
    server: Server,
}

/// The last answer to a request, and its output.
#[derive(Debug)]
pub(super) struct Reply(Answer, Vec<u8>);

impl Reply {
    pub(super) fn new(answer: Answer) -> Self {
        Self(answer, Vec::new())
    }

    pub(super) fn status(&self) -> u8 {
        match &self.0 {
            Answer::Done { status, .. } => *status,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn output(&self) -> String {
        String::from_utf8(self.1.clone()).expect("UTF-8")
    }
}

/// Returns the reason of a refusal, which must be one line.
pub(super) fn refused(reply: &Reply) -> &str {
    match &reply.0 {
        Answer::Refused { reason } => {
            assert!(!reason.chars().any(char::is_control), "{reason:?}");
            reason
        }
        other => panic!("not refused: {other:?}"),
    }
}

pub(super) fn name(name: &str) -> TunnelName {
    name.parse().expect("a name")
}

/// Returns files with these lines under `[Interface]`, as descriptors.
pub(super) fn seals(lines: &[&str]) -> Vec<OwnedFd> {
    let texts = lines
        .iter()
        .map(|lines| text(&format!("PrivateKey = {KEY}\n{lines}")));
    texts
        .map(|text| seal(text.as_bytes()).expect("memory"))
        .collect()
}

impl World {
    pub(super) fn new() -> Self {
        Self::with_front(geteuid().as_raw())
    }

    /// Returns a service whose front is another user.
    pub(super) fn with_front(front: u32) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("taupe-service-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let listed = folder.join("listed");
        fs::create_dir_all(&listed).expect("folder");
        fs::set_permissions(&listed, Permissions::from_mode(0o755)).expect("mode");
        let state = Arc::<Mutex<State>>::default();
        let server = server(&folder, front, &state);
        Self {
            folder,
            state,
            server,
        }
    }

    pub(super) fn registry(&self) -> PathBuf {
        self.folder.join("registry")
    }

    /// Returns the names in the registry.
    pub(super) fn files(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(self.registry()).expect("registry");
        entries
            .map(|entry| {
                entry
                    .expect("entry")
                    .file_name()
                    .into_string()
                    .expect("text")
            })
            .collect()
    }

    /// Returns the commands that were executed since the last call.
    pub(super) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().expect("state").calls)
    }

    /// Lets commands end with this status.
    pub(super) fn fail(&self, status: u8) {
        self.state.lock().expect("state").status = status;
    }

    /// Writes a listed file.
    pub(super) fn list(&self, name: &str, lines: &str) {
        let path = self.folder.join("listed").join(format!("{name}.conf"));
        fs::write(&path, text(lines)).expect("file");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("mode");
    }

    /// Simulates a tunnel that root has brought up.
    pub(super) fn run_by_root(&self, name: &str, selects: bool) {
        let file = Some(PathBuf::from(format!("/etc/wireguard/{name}.conf")));
        let running = Running {
            file,
            selects,
            only_user: None,
            is_transparent: selects,
        };
        self.state
            .lock()
            .expect("state")
            .tunnels
            .insert(name.to_owned(), running);
    }

    /// Restricts a running tunnel to the applications of a user.
    pub(super) fn restrict(&self, name: &str, user: u32) {
        let mut state = self.state.lock().expect("state");
        let running = state.tunnels.get_mut(name).expect("a tunnel");
        running.only_user = Some(user);
    }

    /// Simulates a tunnel that uses marks, addresses and routes, because the kernel lacks the features of
    /// transparent mode.
    pub(super) fn fall_back(&self, name: &str) {
        let mut state = self.state.lock().expect("state");
        state
            .tunnels
            .get_mut(name)
            .expect("a tunnel")
            .is_transparent = false;
    }

    /// Lets commands that bring up a tunnel wait, or go on.
    pub(super) fn hold(&self, is_held: bool) {
        self.state.lock().expect("state").is_held = is_held;
    }

    /// Returns the number of commands that wait.
    pub(super) fn waiting(&self) -> usize {
        self.state.lock().expect("state").waiting
    }

    /// Starts the service again.
    pub(super) fn restart(&mut self) {
        self.server = server(&self.folder, geteuid().as_raw(), &self.state);
    }

    /// Simulates root's `taupe down`.
    pub(super) fn down_by_root(&self, name: &str) {
        self.state.lock().expect("state").tunnels.remove(name);
    }

    /// Connects to the service. The thread ends with the connection.
    pub(super) fn connect(&self) -> (Link, JoinHandle<()>) {
        let (near, far) = message_socket::pair().expect("sockets");
        let server = self.server.clone();
        let thread = thread::spawn(move || server.serve(far));
        (Link::new(near), thread)
    }

    /// Sends bytes in place of a message.
    pub(super) fn raw(&self, text: &[u8]) -> Answer {
        let (near, far) = message_socket::pair().expect("sockets");
        let server = self.server.clone();
        let thread = thread::spawn(move || server.serve(far));
        rustix::net::send(&near, text, rustix::net::SendFlags::empty()).expect("sent");
        let link = Link::new(near);
        let (answer, _) = link.receive().expect("an answer");
        drop(link);
        thread.join().expect("served");
        answer
    }

    /// Prepares a request. Returns the connection and the answer.
    pub(super) fn prepare(
        &self,
        caller: u32,
        request: Request,
        descriptors: &[OwnedFd],
    ) -> (Link, JoinHandle<()>, Answer) {
        let (link, thread) = self.connect();
        let descriptors: Vec<_> = descriptors.iter().map(|it| it.as_fd()).collect();
        let sent = link.send(&FromFront::Prepare { caller, request }, &descriptors);
        sent.expect("sent");
        let (answer, _) = link.receive().expect("an answer");
        (link, thread, answer)
    }

    pub(super) fn needs(&self, caller: u32, request: &Request) -> (Class, Vec<String>) {
        let (_, _, answer) = self.prepare(caller, request.clone(), &[]);
        of_needs(answer)
    }

    pub(super) fn needs_up(&self, caller: u32, tunnel: &str, lines: &str) -> (Class, Vec<String>) {
        let (_, _, answer) = self.prepare(caller, up(tunnel), &seals(&[lines]));
        of_needs(answer)
    }

    /// Brings up a file with these lines.
    pub(super) fn up(&self, caller: u32, tunnel: &str, lines: &str, granted: Class) -> Reply {
        self.call_with(caller, up(tunnel), seals(&[lines]), granted)
    }

    /// Applies a file with these lines.
    pub(super) fn reload(&self, caller: u32, tunnel: &str, lines: &str, granted: Class) -> Reply {
        self.call_with(caller, reload(tunnel), seals(&[lines]), granted)
    }

    pub(super) fn call(&self, caller: u32, request: Request, granted: Class) -> Reply {
        self.call_with(caller, request, Vec::new(), granted)
    }

    /// Prepares and executes a request, for which `granted` was granted.
    pub(super) fn call_with(
        &self,
        caller: u32,
        request: Request,
        descriptors: Vec<OwnedFd>,
        granted: Class,
    ) -> Reply {
        let (link, thread, answer) = self.prepare(caller, request, &descriptors);
        if let Answer::Refused { .. } = answer {
            return Reply(answer, Vec::new());
        }
        link.send(&FromFront::Execute { caller, granted }, &[])
            .expect("sent");
        let (answer, output) = link.receive().expect("an answer");
        let output = output
            .first()
            .map(|it| read_sealed(it, 1 << 20).expect("output").to_vec());
        drop(link);
        thread.join().expect("served");
        Reply(answer, output.unwrap_or_default())
    }
}

fn server(folder: &Path, front: u32, state: &Arc<Mutex<State>>) -> Server {
    Server::new(Settings {
        front,
        registry: Registry::open(&folder.join("registry")).expect("registry"),
        listed: Listed::new(&folder.join("listed"), "root"),
        executor: Box::new(Commands(Arc::clone(state))),
        patience: Duration::from_secs(10),
        authentication: Duration::from_secs(10),
    })
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns a request to bring up a file without key files.
pub(super) fn up(tunnel: &str) -> Request {
    Request::Up {
        tunnel: name(tunnel),
        source: Source::Passed {
            key_files: Vec::new(),
        },
    }
}

/// Returns a request to apply a file without key files.
pub(super) fn reload(tunnel: &str) -> Request {
    Request::Reload {
        tunnel: name(tunnel),
        source: Source::Passed {
            key_files: Vec::new(),
        },
    }
}

fn of_needs(answer: Answer) -> (Class, Vec<String>) {
    match answer {
        Answer::Needs { class, reasons } => (class, reasons),
        other => panic!("{other:?}"),
    }
}
