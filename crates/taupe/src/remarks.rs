//! Errors and warnings about a file, with the commands that help.
//!
//! The diagnostics themselves name no command.

use taupe_config::file::{Compatibility, DiagnosticKind, Key, KeyProblem};
use taupe_inspect::check::Remark;

/// Returns an error or a warning with its fix and the command that helps, if there is one.
pub(crate) fn with_command(remark: &Remark) -> String {
    match command(&remark.diagnostic.kind, remark.compatibility) {
        Some(command) => format!("{remark} ({command})"),
        None => remark.to_string(),
    }
}

/// Returns the command that helps to follow the advice of a diagnostic, if there is one.
pub(crate) fn command(kind: &DiagnosticKind, compatibility: Compatibility) -> Option<String> {
    let tool = match compatibility {
        Compatibility::Taupe => "taupe",
        Compatibility::WgQuick => "wg",
    };
    if let DiagnosticKind::NotForWgQuick { .. } = kind {
        return Some("`taupe up` applies it".to_owned());
    }
    if let DiagnosticKind::NotForWg { .. } = kind {
        return Some("`taupe strip` prints the other lines".to_owned());
    }
    if let DiagnosticKind::NotAKey {
        key: Key::PrivateKey,
        problem: KeyProblem::Path,
    } = kind
    {
        return Some(format!(
            "PostUp = {tool} set %i private-key FILE reads it from the file"
        ));
    }
    Some(match kind.needed_key()? {
        Key::PrivateKey => format!("`{tool} genkey` makes one"),
        Key::PresharedKey => format!("`{tool} genpsk` makes one"),
        Key::PqPrivateKey => "`taupe genkey --pq` makes one".to_owned(),
        Key::PqPublicKey => "`taupe pubkey --pq` prints it at the peer".to_owned(),
        _ => format!("`{tool} pubkey` prints it at the peer"),
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use taupe_inspect::check::check_text;
    use taupe_inspect::conf::Conf;

    #[test]
    fn fixes_name_the_program_that_was_called() {
        let conf = Conf {
            interface: "wg0".parse().unwrap(),
            path: "/nowhere/wg0.conf".into(),
            shown: "./wg0.conf".into(),
        };
        let text = "[Interface]\n[Peer]\nPublicKey\nPresharedKey = x\n";
        for (compatibility, maker, other) in [
            (Compatibility::Taupe, "taupe", "`wg "),
            (Compatibility::WgQuick, "wg", "taupe"),
        ] {
            let text = text.as_bytes().to_vec().into();
            let remarks = check_text(&conf, compatibility, text).remarks;
            let named = format!("`{maker} ");
            assert!(remarks.iter().all(|one| !one.to_string().contains(&named)));
            let lines: Vec<_> = remarks.iter().map(with_command).collect();
            let text = lines.join("\n");
            for command in ["genkey", "pubkey", "genpsk"] {
                assert!(text.contains(&format!("`{maker} {command}`")), "{text}");
            }
            assert!(!text.contains(other), "{text}");
        }
    }
}
