//! Finding the broker of a packet process. The command runs a device in two processes: the *broker*,
//! which the user starts, and its child, the *packet process*, which listens at the device's
//! configuration socket.

use std::fs;

use rustix::process::Pid;

/// The name by which the program is called as a packet process.
pub const PROGRAM: &str = "taupe";

/// The argument after the name. The name of the interface follows.
pub const ARGUMENT: &str = "packet-process";

/// Returns the parent of a packet process, or `None` if the process is no packet process or has
/// ended. Anybody can give a process such arguments, so use the result only for processes whose user
/// is trusted.
pub fn broker_of(process: Pid) -> Option<Pid> {
    let arguments = fs::read(format!("/proc/{process}/cmdline")).ok()?;
    let mut arguments = arguments.split(|byte| *byte == 0);
    if arguments.next()? != PROGRAM.as_bytes() || arguments.next()? != ARGUMENT.as_bytes() {
        return None;
    }
    let status = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The state and the parent follow the name, which ends with the last parenthesis
    // (proc_pid_stat(5)).
    let (_, rest) = status.rsplit_once(')')?;
    let parent = rest.split_whitespace().nth(1)?.parse().ok()?;
    Pid::from_raw(parent)
}

#[cfg(test)]
mod tests {
    use super::{ARGUMENT, PROGRAM, broker_of};
    use rustix::process::{Pid, getpid};
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};

    /// Returns the result for a child with this name and argument.
    fn broker_of_child(name: &str, argument: &str) -> Option<Pid> {
        // The argument is a file that `tail` waits for.
        let mut command = Command::new("tail");
        command.arg0(name).args([argument, "--retry", "-f"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("tail");
        // `spawn` may return a moment before the kernel has noted the arguments.
        let arguments = format!("/proc/{}/cmdline", child.id());
        while std::fs::read(&arguments).expect("a list").is_empty() {
            std::thread::yield_now();
        }
        let found = broker_of(Pid::from_child(&child));
        child.kill().expect("it still waits");
        child.wait().expect("it ends");
        found
    }

    #[test]
    fn only_a_packet_process_has_a_broker() {
        assert_eq!(broker_of_child(PROGRAM, ARGUMENT), Some(getpid()));
        assert_eq!(broker_of_child("other", ARGUMENT), None);
        assert_eq!(broker_of_child(PROGRAM, "other"), None);
        assert_eq!(broker_of(getpid()), None);
    }
}
