//! The log of a packet process, which its broker copies to its own standard error.
//!
//! The packet process has only a socket to its broker: it cannot read the terminal, send it control
//! sequences or shut down the journal's socket.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

/// Bytes of a line, at most. The rest begins another line.
const MAX_LINE: u64 = 4096;

/// Time to copy the rest of the log after the process has ended.
const REST: Duration = Duration::from_secs(1);

/// The log of a process without rights, which a thread copies to standard error.
pub struct CopiedLog(Receiver<()>);

impl CopiedLog {
    /// Starts the thread. It ends with the other end of the socket.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn begin(log: UnixStream) -> io::Result<Self> {
        let (ended, end) = sync_channel(1);
        let copy = move || {
            // The log is not needed if standard error is closed, but the process must go on.
            let _ = copy_lines(log, |line| {
                let _ = io::stderr().write_all(line.as_bytes());
            });
            drop(ended);
        };
        thread::Builder::new().name("log".into()).spawn(copy)?;
        Ok(Self(end))
    }

    /// Waits until everything is copied that the process has written before its end.
    pub fn finish(&self) {
        // The thread drops its end. It goes on if another process has the socket too.
        let _ = self.0.recv_timeout(REST);
    }
}

/// Calls `write` with each line, without characters that control a terminal.
fn copy_lines(log: impl io::Read, mut write: impl FnMut(&str)) -> io::Result<()> {
    let mut log = BufReader::new(log);
    let mut line = Vec::new();
    loop {
        line.clear();
        if log.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end_matches(['\n', '\r']);
        let plain = text
            .chars()
            .map(|it| if controls_text(it) { ' ' } else { it });
        write(&plain.chain(['\n']).collect::<String>());
    }
}

/// Returns true for characters that control a terminal, and for those that begin another line or change
/// the direction of the text.
pub(crate) fn controls_text(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests {
    use super::{MAX_LINE, copy_lines};

    fn copied(text: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        copy_lines(text, |line| lines.push(line.to_owned())).expect("memory can be read");
        lines
    }

    #[test]
    fn lines_cannot_control_a_terminal() {
        let text = b"one\n\x1b[2Jtwo\x07\r\n\xc2\x9b31m\xffthree\xe2\x80\xae";
        let expected = ["one\n", " [2Jtwo \n", " 31m\u{fffd}three \n"];
        assert_eq!(copied(text), expected);
    }

    #[test]
    fn a_line_without_end_does_not_fill_the_memory() {
        let max = usize::try_from(MAX_LINE).expect("short");
        let lines = copied(&vec![b'x'; 2 * max + 1]);
        let lengths: Vec<usize> = lines.iter().map(String::len).collect();
        assert_eq!(lengths, [max + 1, max + 1, 2]);
    }
}
