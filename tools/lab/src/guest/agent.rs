//! The connection to the shell in a guest: it sends scripts and receives their results.
//! `guest/init` is the other end and describes the format.

use crate::error::{Error, Result};
use crate::process::Output;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Time by which an answer may exceed its script's limit before the guest is given up.
const GRACE: Duration = Duration::from_secs(20);

/// A connection to a guest.
#[derive(Debug)]
pub(super) struct Agent {
    place: String,
    stream: BufReader<UnixStream>,
    /// Set if an answer is outstanding: it would be mistaken for the answer to the next script.
    out_of_step: bool,
}

impl Agent {
    /// Waits until the guest at the other end of `stream` is up. `place` is its name in messages.
    pub(super) fn connect(place: &str, stream: UnixStream, limit: Duration) -> Result<Self> {
        let mut agent = Self {
            place: place.to_owned(),
            stream: BufReader::new(stream),
            out_of_step: false,
        };
        let timeout = agent.stream.get_ref().set_read_timeout(Some(limit));
        let word = timeout.and_then(|()| agent.line());
        match word.map_err(|error| agent.lost(error, limit))?.as_str() {
            "ready" => Ok(agent),
            other => Err(agent.malformed(format!("it begins with {other:?}"))),
        }
    }

    /// Runs a script for at most `limit`, in whole seconds. Returns its exit status and output.
    /// After a missing answer all further calls fail.
    pub(super) fn execute(&mut self, limit: Duration, script: &str) -> Result<(u8, Output)> {
        if self.out_of_step {
            let place = &self.place;
            return Err(Error::unmet(format!(
                "{place} has left a script before this one unanswered"
            )));
        }
        let answer = self.exchange(limit, script);
        // A closed connection reports its error at every call.
        self.out_of_step = matches!(answer, Err(Error::Timeout { .. } | Error::Malformed { .. }));
        answer
    }

    fn exchange(&mut self, limit: Duration, script: &str) -> Result<(u8, Output)> {
        let head = self
            .send(limit, script)
            .and_then(|()| self.line())
            .map_err(|error| self.lost(error, limit + GRACE))?;
        let numbers: Vec<u32> = head.split(' ').map_while(|n| n.parse().ok()).collect();
        let [status, stdout, stderr] = numbers[..] else {
            return Err(self.malformed(format!("it is {head:?}")));
        };
        let status = u8::try_from(status).map_err(|_| self.malformed(head))?;
        let output = self.text(stdout).and_then(|stdout| {
            let stderr = self.text(stderr)?;
            Ok(Output { stdout, stderr })
        });
        let output = output.map_err(|error| self.lost(error, limit + GRACE))?;
        Ok((status, output))
    }

    fn send(&mut self, limit: Duration, script: &str) -> io::Result<()> {
        let line = format!("{} {}\n", limit.as_secs(), escaped(script));
        let stream = self.stream.get_mut();
        stream.set_read_timeout(Some(limit + GRACE))?;
        stream.set_write_timeout(Some(GRACE))?;
        stream.write_all(line.as_bytes())
    }

    /// Reads a line without its end.
    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        match line.strip_suffix('\n') {
            Some(line) => Ok(line.to_owned()),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn text(&mut self, length: u32) -> io::Result<String> {
        let mut bytes = Vec::new();
        let mut part = self.stream.by_ref().take(length.into());
        part.read_to_end(&mut bytes)?;
        if part.limit() > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn lost(&self, source: io::Error, limit: Duration) -> Error {
        let what = format!("any answer of {}", self.place);
        match source.kind() {
            io::ErrorKind::WouldBlock => Error::Timeout { what, limit },
            _ => Error::Io { what, source },
        }
    }

    fn malformed(&self, why: String) -> Error {
        Error::Malformed {
            what: format!("the answer of {}", self.place),
            why,
        }
    }
}

/// Returns a script as one line that the guest's `read -r` and `printf %b` turn back into it.
fn escaped(script: &str) -> String {
    script.trim().replace('\\', r"\\").replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn an_answer_belongs_to_its_script() -> Result<()> {
        let (guest, stream) = UnixStream::pair().map_err(Error::io("a pair"))?;
        let answers = "ready\n0 2 0\nok0 many 0\n0 5 0\nstale";
        let wrote = (&guest).write_all(answers.as_bytes());
        wrote.map_err(Error::io("answers"))?;
        let limit = Duration::from_secs(1);
        let mut agent = Agent::connect("guest", stream, limit)?;
        let (status, output) = agent.execute(limit, "first")?;
        assert_eq!((status, output.stdout.as_str()), (0, "ok"));
        assert!(agent.execute(limit, "second").is_err());
        let third = agent.execute(limit, "third");
        assert!(matches!(third, Err(Error::Unmet(_))), "{third:?}");
        Ok(())
    }

    #[test]
    fn a_script_reaches_the_shell_unchanged() {
        let script = "printf 'a\\nb\\\\ \\c\\0101\\x41 %s' \"$x\"\n\tcase 'é\u{1}%b' in\n*) ;;\nesac \\\n  end";
        let mut shell = Command::new("dash")
            .args(["-c", "read -r seconds script && printf %b \"$script\""])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("dash");
        let mut input = shell.stdin.take().expect("its input");
        writeln!(input, "30 {}", escaped(script)).expect("written");
        drop(input);
        let output = shell.wait_with_output().expect("its output");
        assert_eq!(String::from_utf8_lossy(&output.stdout), script);
    }
}
