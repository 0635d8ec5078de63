//! A shell that executes the commands of a block one by one.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command as Program, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;
use taupe_lab::documents::{Block, Command};
use taupe_lab::process::Output;
use taupe_lab::sandbox::{scratch, step};
use taupe_lab::{Error, Result};

/// Reads paths of scripts and executes each in the same shell, until one fails.
const LOOP: &str = "set -e -o pipefail\n\
    while read -r file; do\n\
    . \"$file\" </dev/null >\"$file.out\" 2>\"$file.err\"\n\
    echo done\n\
    done";

/// Time limit for one command.
const PATIENCE: Duration = Duration::from_secs(90);

pub(crate) struct Shell {
    child: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
    folder: PathBuf,
    count: usize,
}

impl Shell {
    /// Starts bash by a command line that ends with its name.
    pub(crate) fn start(mut bash: Program) -> Result<Self> {
        let folder = scratch("lines");
        let what = || Error::io("folder of scripts");
        fs::create_dir_all(&folder).map_err(what())?;
        // The shell may belong to another user.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).map_err(what())?;
        bash.args(["--noprofile", "--norc", "-c", LOOP]);
        let mut child = bash
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(Error::io("bash"))?;
        let (Some(orders), Some(printed)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::unmet("bash without pipes"));
        };
        let (sender, answers) = channel();
        thread::spawn(move || {
            for line in BufReader::new(printed).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            child,
            orders,
            answers,
            folder,
            count: 0,
        })
    }

    /// Executes a command as it is written, which must succeed.
    pub(crate) fn run(&mut self, block: &Block, command: &Command) -> Result<Output> {
        self.run_as(block, command, &command.text)
    }

    /// As [`run`](Self::run), with another text in place of the command's: for placeholders.
    pub(crate) fn run_as(
        &mut self,
        block: &Block,
        command: &Command,
        text: &str,
    ) -> Result<Output> {
        let place = block.place(command);
        step(&format!("{place}: {text}"));
        self.count += 1;
        let file = self.folder.join(self.count.to_string());
        let what = || Error::io(file.display().to_string());
        fs::write(&file, format!("{text}\n")).map_err(what())?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).map_err(what())?;
        let ordered = writeln!(self.orders, "{}", file.display());
        let answer = self.answers.recv_timeout(PATIENCE);
        let read = |kind: &str| {
            let path = file.with_extension(kind);
            String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
        };
        let output = Output {
            stdout: read("out"),
            stderr: read("err"),
        };
        if ordered.is_ok() && answer.is_ok() {
            return Ok(output);
        }
        let end = match self.child.try_wait() {
            Ok(None) if answer == Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                format!("has not ended after {PATIENCE:?}")
            }
            _ => {
                let status = self.child.wait().map_err(Error::io("bash"))?;
                format!("failed: {status}")
            }
        };
        Err(Error::unmet(format!(
            "{place}: `{text}` {end}\n{}{}\
             Correct the page, or the program.",
            output.stderr, output.stdout
        )))
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
