//! Advice for errors of tunnels in adapter mode: commands of this program that help.
//!
//! The errors of `taupe-adapter` say what failed, where and why, and name no command of this
//! program.

use taupe_adapter::{
    ApplyError, Compatibility, DownError, JournalError, Leftover, NotSaved, ReloadError, StepError,
    UpError,
};

/// Returns the error of an `up`, with advice.
pub(super) fn up(error: &UpError) -> String {
    match error {
        UpError::AlreadyUp {
            compatibility: Compatibility::Taupe,
            ..
        } => {
            format!("{error}; `taupe reload` makes it what its file says now, `taupe down` ends it")
        }
        UpError::Exists {
            interface,
            is_wireguard: true,
            compatibility: Compatibility::Taupe,
        } => format!(
            "there is an interface {interface} that `taupe up` has not made; give the file another \
             name, or remove the interface (`wg-quick down {interface}` if wg-quick made it, \
             otherwise `ip link delete {interface}`)"
        ),
        UpError::Elsewhere { journal, .. } => format!(
            "{error}; run `taupe down` there, or remove {} if that namespace is gone",
            journal.display()
        ),
        UpError::Failed {
            cause,
            leftovers,
            is_blocked,
        } if leftovers.is_empty() => format!(
            "{cause}{}; {}",
            without_firewall(cause),
            match is_blocked {
                true => "traffic stays blocked until `taupe up` succeeds, or `taupe down`",
                false => "everything is as it was before",
            }
        ),
        UpError::Failed {
            cause, leftovers, ..
        } => format!(
            "{cause}{}; of what had been done, this could not be undone (`taupe down` tries \
             again):\n  {}",
            without_firewall(cause),
            list(leftovers)
        ),
        UpError::Journal(error) => journal(error),
        error => error.to_string(),
    }
}

/// Returns the error of a `down`, with advice.
pub(super) fn down(error: &DownError) -> String {
    match error {
        DownError::NoFile { interface, problem } => format!(
            "`taupe up` has not made {interface}, and without its file it is not known what else \
             belongs to it; {}",
            problem.as_deref().unwrap_or("name the file")
        ),
        DownError::NotSaved { .. } => {
            format!("{error}; `taupe down --no-save` gives up what it has learned")
        }
        DownError::Journal(error) => journal(error),
        error => error.to_string(),
    }
}

/// Returns the error of a `reload`, with advice.
pub(super) fn reload(error: &ReloadError) -> String {
    match error {
        ReloadError::NotUp(_) => format!("{error}; `taupe up` brings it up"),
        ReloadError::Killed(_) => {
            format!("{error}; `taupe up` starts it again, `taupe down` gives the network back")
        }
        ReloadError::NotOurs(interface) => format!(
            "{interface} was not brought up by `taupe up`; `taupe down` and `taupe up` make it so"
        ),
        ReloadError::Moved(interface) => format!(
            "{error}; move it back (`ip -n NAMESPACE link set {interface} netns PID`), or `taupe \
             down` it, and `taupe up`"
        ),
        ReloadError::Failed { cause, leftovers } if leftovers.is_empty() => format!(
            "{cause}{}; the tunnel is as it was before",
            without_firewall(cause)
        ),
        ReloadError::Failed { cause, leftovers } => format!(
            "{cause}{}; of what was there before, this could not be put back:\n  {}",
            without_firewall(cause),
            list(leftovers)
        ),
        ReloadError::Journal(error) => journal(error),
        error => error.to_string(),
    }
}

/// Returns the error of a `save`, with advice.
pub(super) fn save(error: &NotSaved) -> String {
    match error {
        NotSaved::Journal(error) => journal(error),
        error => error.to_string(),
    }
}

/// Returns the error of a journal, with advice.
pub(crate) fn journal(error: &JournalError) -> String {
    match error {
        JournalError::Malformed { .. } => format!(
            "{error}; undo by hand what the file lists, delete the interface (`ip link delete`), and \
             remove the file"
        ),
        error => error.to_string(),
    }
}

/// Returns advice for a kernel without nf_tables, or an empty string.
fn without_firewall(cause: &ApplyError) -> &'static str {
    match cause {
        ApplyError::Step {
            error: StepError::NoFirewall(_),
            ..
        } => {
            ", or go without by `taupe up --no-firewall`: packets from elsewhere to the tunnel's \
             addresses are let in then"
        }
        _ => "",
    }
}

fn list(leftovers: &[Leftover]) -> String {
    let lines: Vec<_> = leftovers.iter().map(Leftover::to_string).collect();
    lines.join("\n  ")
}

#[cfg(test)]
mod tests {
    use taupe_os_linux::netlink::NetlinkError;

    use super::*;

    #[test]
    fn a_kernel_without_nf_tables_is_told_of_before_the_outcome() {
        let error = std::io::Error::from_raw_os_error(95);
        let error = StepError::NoFirewall(NetlinkError {
            what: "make the table".into(),
            reason: None,
            source: error,
        });
        let failed = UpError::Failed {
            cause: Box::new(ApplyError::Step {
                command: "nft -f -".into(),
                error,
            }),
            leftovers: Vec::new(),
            is_blocked: false,
        };
        let text = up(&failed);
        let end = "or go without by `taupe up --no-firewall`: packets from elsewhere to the \
                   tunnel's addresses are let in then; everything is as it was before";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn errors_of_the_library_name_no_command_and_those_shown_do() {
        let interface = || "wg0".to_owned();
        let not_up = ReloadError::NotUp(interface());
        assert_eq!(not_up.to_string(), "wg0 is not up");
        assert_eq!(reload(&not_up), "wg0 is not up; `taupe up` brings it up");
        let exists = UpError::Exists {
            interface: interface(),
            is_wireguard: true,
            compatibility: Compatibility::Taupe,
        };
        assert!(!exists.to_string().contains('`'));
        assert!(up(&exists).contains("`ip link delete wg0`"));
        let no_file = DownError::NoFile {
            interface: interface(),
            problem: None,
        };
        assert!(down(&no_file).ends_with("belongs to it; name the file"));
        let not_saved = DownError::NotSaved {
            error: taupe_client::Error::NoDevice.into(),
            interface: interface(),
        };
        assert!(down(&not_saved).contains("`taupe down --no-save`"));
        let malformed = || JournalError::Malformed {
            path: "/run/taupe/wg0.journal".into(),
            line: 2,
            reason: "end of input".to_owned(),
        };
        assert!(!malformed().to_string().contains('`'));
        for shown in [
            up(&malformed().into()),
            down(&malformed().into()),
            reload(&malformed().into()),
            save(&malformed().into()),
        ] {
            assert!(
                shown.contains("; undo by hand what the file lists"),
                "{shown}"
            );
        }
        let up_already = UpError::AlreadyUp {
            interface: interface(),
            config: "/etc/wireguard/wg0.conf".into(),
            outer: None,
            since: std::time::SystemTime::now(),
            compatibility: Compatibility::Taupe,
        };
        assert!(up(&up_already).contains(" ago from /etc/wireguard/wg0.conf; `taupe reload` "));
    }
}
