//! A file from its descriptors.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use taupe_config::application::{Application, User};
use taupe_config::file::{
    Dialect, File, KeyFile, KeyFileProblem, MAX_KEY_FILE, Parsed, Severity, parse, parse_with,
    print,
};
use taupe_os_linux::users::user_id;
use thiserror::Error;
use zeroize::Zeroizing;

use crate::class::restrict;
use crate::message::{MAX_DESCRIPTORS, MAX_PATH};
use crate::sealed::{SealError, read_sealed};

/// Bytes of a configuration file, at most. A file with 10,000 networks has a fifth of them.
pub(crate) const MAX_FILE: usize = 1 << 20;

/// Characters of a problem in an error, at most.
const MAX_PROBLEM: usize = 300;

/// A configuration file, complete with its keys.
pub(crate) struct Passed {
    /// The parsed [`Self::text`].
    pub(crate) file: File,
    /// The text that is executed. It names no other file.
    pub(crate) text: Zeroizing<String>,
}

/// Reason why descriptors are not a file.
#[derive(Debug, Error)]
pub(crate) enum PassedError {
    #[error("{passed} descriptors came for one file and {named} key files")]
    Count { passed: usize, named: usize },
    #[error("the file {0}")]
    File(#[source] SealError),
    #[error("a key file {0}")]
    KeyFile(#[source] SealError),
    #[error("the path of a key file is empty, too long, or has control characters")]
    Path,
    #[error("a key file came along that the file does not name")]
    Unnamed,
    #[error("the file has an error in line {line}: {problem}")]
    Wrong { line: usize, problem: String },
    #[error("the file cannot be reproduced: its parsed form differs")]
    Ambiguous,
}

/// Reads a caller's file and its key files, and restricts the file to the caller. `key_files` are their
/// paths in the file, in the order of the descriptors.
pub(crate) fn read(
    key_files: &[String],
    descriptors: Vec<OwnedFd>,
    caller: u32,
) -> Result<Passed, PassedError> {
    let (passed, named) = (descriptors.len(), key_files.len());
    if passed != named + 1 || passed > MAX_DESCRIPTORS {
        return Err(PassedError::Count { passed, named });
    }
    let is_path =
        |path: &String| (1..=MAX_PATH).contains(&path.len()) && !path.chars().any(char::is_control);
    if !key_files.iter().all(is_path) {
        return Err(PassedError::Path);
    }
    let mut descriptors = descriptors.into_iter();
    let first = descriptors
        .next()
        .ok_or(PassedError::Count { passed, named })?;
    let text = read_sealed(first, MAX_FILE).map_err(PassedError::File)?;
    let keys = descriptors.map(|key| read_sealed(key, MAX_KEY_FILE).map_err(PassedError::KeyFile));
    let keys = keys.collect::<Result<Vec<_>, _>>()?;
    let used = RefCell::new(BTreeSet::new());
    let parsed = parse_with(&text, Dialect::Taupe, &|path| {
        let index = key_files.iter().position(|other| other == path);
        let key = index.and_then(|index| keys.get(index));
        let missing = || KeyFileProblem::Unreadable("it was not passed".to_owned());
        used.borrow_mut().extend(index);
        Ok(KeyFile {
            text: key.ok_or_else(missing)?.clone(),
            others: 0,
        })
    });
    let file = checked(parsed)?;
    if used.borrow().len() != named {
        return Err(PassedError::Unnamed);
    }
    let mut file = complete(file);
    restrict(&mut file, caller);
    let text = print(&file);
    // The class is computed from the text that is executed.
    let file = parse(text.as_bytes(), Dialect::Taupe).file;
    let file = file.ok_or(PassedError::Ambiguous)?;
    Ok(Passed { file, text })
}

fn checked(parsed: Parsed) -> Result<File, PassedError> {
    if let Some(file) = parsed.file {
        return Ok(file);
    }
    let mut diagnostics = parsed.diagnostics.iter();
    let error = diagnostics.find(|it| it.severity == Severity::Error);
    let problem = error.map(|it| it.kind.to_string()).unwrap_or_default();
    let problem = problem
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c });
    Err(PassedError::Wrong {
        line: error.map_or(0, |it| it.line),
        problem: problem.take(MAX_PROBLEM).collect(),
    })
}

/// Puts keys in place of paths, and user IDs in place of names.
fn complete(mut file: File) -> File {
    let interface = &mut file.interface;
    interface.private_key_file = None;
    interface.pq_private_key_file = None;
    for peer in &mut file.peers {
        peer.preshared_key_file = None;
        if let Some(key) = &mut peer.pq_public_key {
            key.file = None;
        }
    }
    let transparent = &mut file.transparent;
    transparent.comment_prefix = None;
    let apps = &mut transparent.apps;
    for rule in apps.allowed.iter_mut().chain(&mut apps.disallowed) {
        if let Application::User(User::Name(name)) = &rule.application
            && let Some(id) = user_id(name)
        {
            rule.application = Application::User(User::Id(id));
        }
    }
    if let Some(only) = &mut apps.of_user
        && let User::Name(name) = &only.user
        && let Some(id) = user_id(name)
    {
        only.user = User::Id(id);
    }
    file
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{MAX_FILE, PassedError, read};
    use crate::seal;
    use std::os::fd::OwnedFd;

    pub(crate) const KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAGE=";
    pub(crate) const PEER: &str = "BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBA=";

    /// Returns a file with these lines under `[Interface]`.
    pub(crate) fn text(lines: &str) -> String {
        format!(
            "[Interface]\nAddress = 10.0.0.2/32\n{lines}\n\
             [Peer]\nPublicKey = {PEER}\nEndpoint = 192.0.2.1:51820\nAllowedIPs = 0.0.0.0/0\n"
        )
    }

    fn sealed(text: &str) -> OwnedFd {
        seal(text.as_bytes()).expect("memory")
    }

    #[test]
    fn keys_take_the_place_of_their_paths() {
        let file = text("PrivateKey = file:./my.key\n#@ws:AllowedApps = uid:root\nPostUp = echo");
        let passed = read(
            &["./my.key".to_owned()],
            vec![sealed(&file), sealed(KEY)],
            0,
        );
        let passed = passed.unwrap_or_else(|error| panic!("{error}"));
        assert!(
            passed.text.contains(&format!("PrivateKey = {KEY}")),
            "{}",
            *passed.text
        );
        assert!(!passed.text.contains("my.key"));
        assert!(
            passed.text.contains("\nAllowedApps = uid:0\n"),
            "{}",
            *passed.text
        );
        assert_eq!(passed.file.interface.hooks.post_up, ["echo"]);
        assert_eq!(passed.file.transparent.apps.allowed.len(), 1);
    }

    #[test]
    fn a_file_that_was_not_passed_is_not_opened() {
        // The path exists, and root could read it.
        let file = text("PrivateKey = file:/etc/passwd");
        let error = read(&[], vec![sealed(&file)], 1000).err().expect("refused");
        assert!(error.to_string().contains("it was not passed"), "{error}");
    }

    #[test]
    fn descriptors_that_do_not_fit_are_refused() {
        let file = text(&format!("PrivateKey = {KEY}"));
        let key = || "k".to_owned();
        assert!(matches!(
            read(&[], vec![], 1000),
            Err(PassedError::Count { .. })
        ));
        assert!(matches!(
            read(&[key()], vec![sealed(&file)], 1000),
            Err(PassedError::Count { .. })
        ));
        let unnamed = read(&[key()], vec![sealed(&file), sealed(KEY)], 1000);
        assert!(matches!(unnamed, Err(PassedError::Unnamed)));
        for path in ["", "a\0b", "a\nb", &"x".repeat(1 << 20)] {
            let refused = read(&[path.to_owned()], vec![sealed(&file), sealed(KEY)], 1000);
            assert!(matches!(refused, Err(PassedError::Path)));
        }
        let long = "#".repeat(MAX_FILE + 1);
        assert!(matches!(
            read(&[], vec![sealed(&long)], 1000),
            Err(PassedError::File(_))
        ));
        let long = "#".repeat(4097);
        let refused = read(&[key()], vec![sealed(&file), sealed(&long)], 1000);
        assert!(matches!(refused, Err(PassedError::KeyFile(_))));
    }

    #[test]
    fn an_error_is_one_line() {
        let file = text(&format!("PrivateKey = {KEY}\nNo\u{1b}[31mSuch = 1"));
        let error = read(&[], vec![sealed(&file)], 1000)
            .err()
            .expect("refused")
            .to_string();
        assert!(
            error.starts_with("the file has an error in line "),
            "{error}"
        );
        assert!(!error.chars().any(char::is_control), "{error:?}");
    }

    #[test]
    fn a_users_file_is_restricted_to_the_user() {
        let of_user = |caller: u32, lines: &str| {
            let file = text(&format!("PrivateKey = {KEY}\n{lines}"));
            let passed = read(&[], vec![sealed(&file)], caller);
            let passed = passed.unwrap_or_else(|error| panic!("{lines}: {error}"));
            let only = passed.file.transparent.apps.of_user;
            only.map(|only| only.user.to_string())
        };
        let own = Some("1000".to_owned());
        for lines in [
            "AllowedApps = firefox",
            "DisallowedApps = firefox",
            "AllowedApps = uid:1000, /",
            "#@ws:AllowedApps = x\nKillSwitch = off",
            "AllowedApps = x\nAppsOfUser = 1000",
        ] {
            assert_eq!(of_user(1000, lines), own, "{lines}");
        }
        // Root's file is its own business, and so is what needs an administrator anyway.
        assert_eq!(of_user(0, "AllowedApps = firefox"), None);
        for lines in [
            "",
            "KillSwitch = app",
            "AllowedApps = firefox\nKillSwitch = all",
            "AllowedApps = firefox\nForwarded = tunnel",
            "AllowedApps = firefox, uid:1001",
            "DisallowedApps = uid:root",
        ] {
            assert_eq!(of_user(1000, lines), None, "{lines}");
        }
        // A name becomes an ID, and nobody else's is replaced.
        let root = "AllowedApps = x\nAppsOfUser = root";
        assert_eq!(of_user(1000, root), Some("0".to_owned()));
    }
}
