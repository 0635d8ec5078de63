//! A line that says what a command is doing, if the command takes long.
//!
//! The line is for people: it appears only if standard error is a terminal, and it is erased when
//! the command prints or ends. It does not appear again after that, because commands of a file
//! print to the same terminal.

use std::io::{self, IsTerminal as _, Write};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Time after which the line appears.
const DELAY: Duration = Duration::from_millis(500);

/// Erases the cursor's line, and moves to its beginning (ECMA-48 section 8.3.41).
const ERASE: &[u8] = b"\r\x1b[K";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Line {
    /// No line appears.
    Unwanted,
    /// The line appears if nothing is printed before.
    Waiting,
    Shown,
}

static LINE: Mutex<Line> = Mutex::new(Line::Unwanted);

fn line() -> MutexGuard<'static, Line> {
    LINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A command that may take long. When it is dropped, the line is erased.
pub(crate) struct LongCommand {
    /// Ends the thread that shows the line. `None` if standard error is no terminal.
    _end: Option<Sender<()>>,
}

impl LongCommand {
    /// Begins a command. `doing` says what it does, as in "examining this system".
    pub(crate) fn begin(doing: &'static str) -> Self {
        Self {
            _end: match io::stderr().is_terminal() {
                true => begin(doing, io::stderr),
                false => None,
            },
        }
    }
}

impl Drop for LongCommand {
    fn drop(&mut self) {
        erase();
    }
}

/// Erases the line if it is shown, and prevents it otherwise.
pub(crate) fn erase() {
    erase_from(&mut line(), &mut io::stderr());
}

fn erase_from(line: &mut Line, terminal: &mut impl Write) {
    if *line == Line::Shown {
        let _ = terminal.write_all(ERASE);
    }
    *line = Line::Unwanted;
}

/// Starts the thread that shows the line. Without a thread there is no line.
fn begin<T: Write>(
    doing: &'static str,
    terminal: impl FnOnce() -> T + Send + 'static,
) -> Option<Sender<()>> {
    let (end, ended) = channel::<()>();
    *line() = Line::Waiting;
    let show = move || {
        if ended.recv_timeout(DELAY) == Err(RecvTimeoutError::Timeout) {
            show(&mut line(), doing, &mut terminal());
        }
    };
    let thread = thread::Builder::new().name("progress".into()).spawn(show);
    thread.ok().map(|_| end)
}

fn show(line: &mut Line, doing: &str, terminal: &mut impl Write) {
    if *line == Line::Waiting && write!(terminal, "{doing} …").is_ok() {
        *line = Line::Shown;
    }
}

#[cfg(test)]
mod tests {
    use super::{Line, erase_from, show};

    #[test]
    fn a_line_is_shown_once_and_erased() {
        let (mut line, mut terminal) = (Line::Waiting, Vec::new());
        show(&mut line, "examining this system", &mut terminal);
        assert_eq!(
            String::from_utf8_lossy(&terminal),
            "examining this system …"
        );
        erase_from(&mut line, &mut terminal);
        assert!(terminal.ends_with(b"\r\x1b[K"));
        let before = terminal.len();
        erase_from(&mut line, &mut terminal);
        show(&mut line, "examining this system", &mut terminal);
        assert_eq!(
            terminal.len(),
            before,
            "nothing after the command has printed"
        );
    }

    #[test]
    fn a_command_that_prints_in_time_shows_no_line() {
        let (mut line, mut terminal) = (Line::Waiting, Vec::new());
        erase_from(&mut line, &mut terminal);
        show(&mut line, "examining this system", &mut terminal);
        assert!(terminal.is_empty());
    }
}
