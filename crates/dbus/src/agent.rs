//! polkit's agent for terminals, which asks for an administrator's password if no other agent does.
//!
//! It serves this process only: the bus connection of this process is polkit's subject.

use std::io::{self, IsTerminal as _, Read as _, pipe};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// The agent, which ends when it is dropped.
pub(crate) struct Agent(Child);

impl Agent {
    /// Starts the agent and waits until polkit knows it. Returns `None` if there is no terminal, or no
    /// agent is installed.
    pub(crate) fn start() -> Option<Self> {
        if !io::stderr().is_terminal() {
            return None;
        }
        let (mut reader, writer) = pipe().ok()?;
        let mut command = Command::new("pkttyagent");
        // A desktop's agent takes precedence. Without logind, polkit 122 finds no session and then does not
        // use a fallback either.
        if Path::new("/run/systemd/system").exists() {
            command.arg("--fallback");
        }
        // It asks at the terminal itself, and closes standard input when polkit knows it.
        command.args(["--notify-fd", "0", "--process"]);
        command.arg(std::process::id().to_string());
        let child = command.stdin(Stdio::from(writer)).spawn().ok()?;
        // The command has a copy of the writer.
        drop(command);
        let agent = Self(child);
        let _ = reader.read(&mut [0]);
        Some(agent)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Both calls fail only if it has ended.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}
