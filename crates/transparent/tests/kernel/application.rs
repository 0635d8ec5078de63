//! A running application of the tests, or another process that waits for orders.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use taupe_lab::sandbox::scratch;
use taupe_lab::{Error, Result, ensure};

/// Installs a stripped copy of this program at a path in the test's folder.
pub(crate) fn install(path: &str) -> Result<String> {
    let stripped = scratch("client");
    if !stripped.exists() {
        let own = std::env::current_exe().map_err(Error::io("own executable"))?;
        let strip = Command::new("strip")
            .arg("-o")
            .args([&stripped, &own])
            .status();
        if !strip.is_ok_and(|status| status.success()) {
            fs::copy(&own, &stripped).map_err(Error::io("copy"))?;
        }
    }
    let path = match path.starts_with('/') {
        true => Path::new(path).to_owned(),
        false => scratch(path),
    };
    let directory = path.parent().ok_or_else(|| Error::unmet("no directory"))?;
    fs::create_dir_all(directory).map_err(Error::io("directory"))?;
    fs::copy(&stripped, &path).map_err(Error::io("copy"))?;
    Ok(path.display().to_string())
}

pub(crate) struct Application {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<std::process::ChildStdout>,
}

impl Application {
    /// Starts an application and waits until it is ready.
    pub(crate) fn start(mut command: Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(Error::io("application"))?;
        let input = child.stdin.take();
        let output = child.stdout.take().map(BufReader::new);
        let output = output.ok_or_else(|| Error::unmet("no output"))?;
        let mut application = Self {
            child,
            input,
            output,
        };
        let said = application.line()?;
        ensure!(said == "ready", "the application prints {said:?}");
        Ok(application)
    }

    pub(crate) fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output
            .read_line(&mut line)
            .map_err(Error::io("application's output"))?;
        Ok(line.trim().to_owned())
    }

    /// Returns its PID.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a line and returns its answer.
    pub(crate) fn ask(&mut self) -> Result<String> {
        let input = self.input.as_mut();
        let input = input.ok_or_else(|| Error::unmet("its input is closed"))?;
        input
            .write_all(b"\n")
            .map_err(Error::io("application's input"))?;
        self.line()
    }

    /// Tells it to continue, and returns the next line of its output.
    pub(crate) fn go(&mut self) -> Result<String> {
        self.input = None;
        self.line()
    }

    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill().map_err(Error::io("kill"))?;
        self.child.wait().map(drop).map_err(Error::io("wait"))
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
