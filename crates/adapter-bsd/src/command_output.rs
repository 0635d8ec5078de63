//! Running a command of the system, with a limit.

use std::io::{self, Read, Write as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Interval between two looks whether a command has ended.
const PAUSE: Duration = Duration::from_millis(5);

/// Time that the output of a command that has ended may take. A daemon that it has started may keep the
/// pipes open: `resolvconf` restarts name servers.
const GRACE: Duration = Duration::from_secs(1);

/// Bytes of output that are kept.
const LONGEST: u64 = 64 << 10;

/// The end of a command.
pub(crate) struct CommandOutput {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a command for at most `limit`, and kills it then.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] if it had not ended; the system's if it cannot be run.
pub(crate) fn run(mut command: Command, input: &str, limit: Duration) -> io::Result<CommandOutput> {
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = pipes.stderr(Stdio::piped()).spawn()?;
    if let Some(mut pipe) = child.stdin.take() {
        let input = input.to_owned();
        // A program that ends without reading its input says why.
        thread::spawn(move || pipe.write_all(input.as_bytes()));
    }
    let stdout = child.stdout.take().map(PipeReader::start);
    let stderr = child.stderr.take().map(PipeReader::start);
    let status = wait(&mut child, limit)?;
    let text = |reader: Option<PipeReader>| reader.map_or_else(String::new, PipeReader::text);
    Ok(CommandOutput {
        status,
        stdout: text(stdout),
        stderr: text(stderr),
    })
}

fn wait(child: &mut Child, limit: Duration) -> io::Result<ExitStatus> {
    let end = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() >= end {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("it was killed because it had not ended after {limit:?}"),
            ));
        }
        thread::sleep(PAUSE);
    }
}

/// A thread that reads a pipe.
struct PipeReader {
    text: Arc<Mutex<Vec<u8>>>,
    /// Disconnected at the end of the pipe.
    end: Receiver<()>,
}

impl PipeReader {
    fn start(pipe: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(Vec::new()));
        let (ended, end) = mpsc::channel::<()>();
        let written = Arc::clone(&text);
        thread::spawn(move || {
            let _ended = ended;
            let mut pipe = pipe.take(LONGEST);
            let mut block = [0; 4096];
            while let Ok(length @ 1..) = pipe.read(&mut block) {
                let read = block.get(..length).unwrap_or_default();
                let mut text = written.lock().unwrap_or_else(PoisonError::into_inner);
                text.extend_from_slice(read);
            }
        });
        Self { text, end }
    }

    /// Returns the output of a command that has ended.
    fn text(self) -> String {
        let _ = self.end.recv_timeout(GRACE);
        let text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&text).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> io::Result<CommandOutput> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command, "from the input\n", limit)
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn output_is_returned() {
        let output = shell("cat; echo no >&2; exit 3", LONG).expect("run");
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(
            (&*output.stdout, &*output.stderr),
            ("from the input\n", "no\n")
        );
    }

    #[test]
    fn a_daemon_that_keeps_the_output_open_is_not_waited_for() {
        let output = shell("sleep 300 & echo $!", LONG).expect("run");
        assert!(output.status.success());
        // It still runs.
        let daemon = output.stdout.trim();
        assert!(!daemon.is_empty());
        let killed = shell(&format!("kill {daemon}"), LONG).expect("run");
        assert!(killed.status.success(), "{}", killed.stderr);
    }

    #[test]
    fn a_command_that_does_not_end_is_killed() {
        let ended = shell("exec sleep 15", Duration::from_millis(100));
        let error = ended.map(drop).expect_err("killed");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
