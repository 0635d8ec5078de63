//! Paths and TCP connections (Landlock, `landlock(7)`).

use crate::layer::LayerState;
use crate::rights::Rights;
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, NetPort, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};
use std::io;
use taupe_os_linux::security::landlock_version;

/// The newest Landlock ABI with a kind of access to files that is refused here.
const INTERFACE: ABI = ABI::V5;

/// The port of name servers.
const DNS: u16 = 53;

/// Accesses that older ABIs do not refuse: the first ABI that does, and the access.
const LATER: [(u32, &str); 5] = [
    (2, "links and renames between folders"),
    (3, "truncating files"),
    (4, "TCP connections"),
    (5, "ioctl of devices"),
    (6, "signals and abstract sockets"),
];

pub(crate) fn restrict(rights: &Rights) -> LayerState {
    let version = match landlock_version() {
        Ok(version) => version,
        Err(error) => return missing(&error),
    };
    match apply(rights) {
        Ok(RulesetStatus::NotEnforced) => LayerState::Missing("it has no effect".into()),
        Ok(_) => of_version(version),
        Err(error) => LayerState::Missing(error.to_string()),
    }
}

pub(crate) fn available() -> LayerState {
    landlock_version().map_or_else(|error| missing(&error), of_version)
}

fn missing(error: &io::Error) -> LayerState {
    LayerState::Missing(match error.raw_os_error() {
        Some(libc::ENOSYS) => "the kernel was built without it, or is older than 5.13".into(),
        Some(libc::EOPNOTSUPP) => "it was not enabled at boot".into(),
        _ => error.to_string(),
    })
}

fn of_version(version: u32) -> LayerState {
    let later = LATER.iter().filter(|(since, _)| version < *since);
    let later: Vec<_> = later.map(|(_, access)| *access).collect();
    match later.as_slice() {
        [] => LayerState::Holds,
        later => LayerState::Partly(format!(
            "version {version} does not refuse {}",
            later.join(", ")
        )),
    }
}

/// Restricts the calling thread as far as the kernel can. Paths that do not exist are left out.
fn apply(rights: &Rights) -> Result<RulesetStatus, RulesetError> {
    let state = AccessFs::ReadFile
        | AccessFs::ReadDir
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::MakeDir
        | AccessFs::RemoveFile;
    let mut scopes = BitFlags::empty();
    if !rights.signals_others {
        scopes |= Scope::Signal;
    }
    if !rights.abstract_sockets {
        scopes |= Scope::AbstractUnixSocket;
    }
    let rules = Ruleset::default()
        .handle_access(AccessFs::from_all(INTERFACE))?
        .handle_access(AccessNet::BindTcp | AccessNet::ConnectTcp)?
        .scope(scopes)?
        .create()?
        .add_rules(path_beneath_rules(&rights.state_folders, state))?
        .add_rules(path_beneath_rules(
            &rights.readable,
            AccessFs::ReadFile | AccessFs::ReadDir,
        ))?
        .add_rules(path_beneath_rules(&rights.removable, AccessFs::RemoveFile))?;
    let rules = match rights.asks_name_servers {
        true => rules.add_rule(NetPort::new(DNS, AccessNet::ConnectTcp))?,
        false => rules,
    };
    Ok(rules.restrict_self()?.ruleset)
}

#[cfg(test)]
mod tests {
    use super::of_version;
    use crate::layer::LayerState;

    #[test]
    fn an_old_interface_is_reported_with_its_gaps() {
        assert_eq!(of_version(6), LayerState::Holds);
        assert_eq!(of_version(99), LayerState::Holds);
        let LayerState::Partly(text) = of_version(3) else {
            panic!("version 3 has gaps");
        };
        assert!(
            text.contains("TCP") && !text.contains("truncating"),
            "{text}"
        );
    }
}
