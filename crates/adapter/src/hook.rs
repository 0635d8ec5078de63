//! Running commands of a file.

use std::io;
use std::process::{Command, ExitStatus};

use crate::change::Hook;
use crate::machine::StepError;

/// Runs a command with the streams and the environment of this process, and with `INTERFACE` set to
/// the interface's name, as in `wg-quick`.
///
/// `wg-quick` evaluates the command in a subshell that stops at the first failed command, also in a
/// pipe, and that supports extended patterns. This function does the same. If `bash` is missing it
/// uses `sh`, which does not detect failures in a pipe.
pub(crate) fn run(hook: &Hook, interface: &str) -> Result<(), StepError> {
    let bash = ["-e", "-o", "pipefail", "-O", "extglob", "-c"];
    let status = |shell: &str, options: &[&str]| -> io::Result<ExitStatus> {
        let mut command = Command::new(shell);
        command.args(options).arg(&hook.command);
        command.env("INTERFACE", interface).status()
    };
    let status = match status("bash", &bash) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => status("sh", &["-e", "-c"]),
        other => other,
    };
    let outcome = match status {
        Ok(status) if status.success() => return Ok(()),
        Ok(status) => status.to_string(),
        Err(error) => format!("neither bash nor sh can be run: {error}"),
    };
    Err(StepError::Hook {
        phase: hook.phase,
        outcome,
    })
}

#[cfg(test)]
mod tests {
    use super::run;
    use crate::change::{Hook, Phase};
    use crate::machine::StepError;

    fn outcome(command: &str) -> Option<String> {
        let hook = Hook {
            phase: Phase::PostUp,
            command: command.to_owned(),
        };
        match run(&hook, "wg0") {
            Ok(()) => None,
            Err(StepError::Hook { outcome, .. }) => Some(outcome),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_command_ends_where_wg_quick_would_end_it() {
        assert_eq!(outcome("true; [[ a == @(a|b) ]]"), None);
        let failed = Some("exit status: 1".to_owned());
        assert_eq!(outcome("false; true"), failed);
        assert_eq!(outcome("false | true"), failed);
        assert_eq!(outcome("false || true"), None);
        assert_eq!(outcome("exit 7"), Some("exit status: 7".to_owned()));
        assert_eq!(
            outcome("kill -9 $$"),
            Some("signal: 9 (SIGKILL)".to_owned())
        );
    }

    #[test]
    fn quotes_are_the_commands_own() {
        assert_eq!(outcome(r#"test "$(echo 'a  b')" = "a  b""#), None);
        assert_eq!(outcome("test $INTERFACE = wg0"), None);
        assert_eq!(outcome("test '# no comment' = \"# no comment\""), None);
    }
}
