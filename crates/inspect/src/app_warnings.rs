//! Warnings about the applications in a file. The executable of a process often has another path or
//! name than the one in the file. For example, if `AllowedApps = yt-dlp` names a Python script, the
//! executable is `/usr/bin/python3`, and the rule does not match.

use crate::executables::{escaped, first_bytes, in_path, interpreter, is_executable};
use crate::processes::Subject;
use std::cell::LazyCell;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use taupe_config::application::{AppWarning, Application, Children, Process};
use taupe_config::file::edit::entries;
use taupe_config::file::{DiagnosticKind, Key, Parsed};

/// Folders whose subfolders hold executables that are not in `PATH`.
const PROGRAM_FOLDERS: [&str; 4] = ["/usr/lib", "/usr/libexec", "/usr/share", "/opt"];

/// Adds a warning for each application in the file that may not match the intended processes.
pub(crate) fn warn(text: &[u8], parsed: &mut Parsed) {
    // The list is only built if an entry needs it.
    let candidates = LazyCell::new(candidates);
    let file = parsed.file.as_ref();
    let children = file.map_or(Children::default(), |file| file.transparent.apps.children);
    for key in [Key::AllowedApps, Key::DisallowedApps] {
        for entry in entries(text, key) {
            let application = entry.text.parse::<Application>().ok();
            let found = |application| {
                let unknown = || warning_about_unknown(exact_name(application)?, &candidates);
                warning_about(application)
                    .or_else(|| warning_about_starter(application, children))
                    .or_else(unknown)
            };
            if let Some(doubt) = application.as_ref().and_then(found) {
                parsed.warn(entry.line, entry.column, DiagnosticKind::AppWarning(doubt));
            }
        }
    }
}

/// Similarity (Jaro–Winkler, 1 is equal) from which one name is suggested for another: `chrome` and
/// `chromium` reach it, `curl` and `cut` do not.
const SIMILAR_FROM: f64 = 0.86;

/// Returns the names of running processes, then those of executables in `PATH`.
fn candidates() -> Vec<String> {
    let running = Subject::all().into_iter().filter_map(|subject| {
        let name = subject.process().name.to_vec();
        String::from_utf8(name).ok()
    });
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let entries = folders
        .into_iter()
        .filter_map(|folder| fs::read_dir(folder).ok());
    let installed = entries.flatten().flatten();
    let installed = installed.filter_map(|entry| entry.file_name().into_string().ok());
    running.chain(installed).collect()
}

/// Returns a warning about a name that no executable or process has, with the most similar known
/// name.
fn warning_about_unknown(name: &str, candidates: &[String]) -> Option<AppWarning> {
    let is_same = |other: &String| other.eq_ignore_ascii_case(name);
    if in_path(name).is_some() || is_in_own_folder(name) || candidates.iter().any(is_same) {
        return None;
    }
    let likeness = |other: &String| strsim::jaro_winkler(name, &other.to_ascii_lowercase());
    let scored = candidates.iter().map(|other| (likeness(other), other));
    // The first of several equally similar names wins.
    let best = scored.fold(None, |best: Option<(f64, &String)>, next| match best {
        Some(best) if best.0 >= next.0 => Some(best),
        _ => Some(next),
    });
    let nearest = best.filter(|(likeness, _)| *likeness >= SIMILAR_FROM);
    Some(AppWarning::UnknownName {
        name: name.to_owned(),
        nearest: nearest.map(|(_, other)| escaped(other.as_bytes())),
    })
}

fn warning_about(application: &Application) -> Option<AppWarning> {
    match application {
        Application::Executable(path) => warning_about_path(path, ""),
        Application::Directory(path) => warning_about_path(path.trim_end_matches('/'), "/"),
        Application::Name(_) => warning_about_name(application),
        _ => None,
    }
}

fn warning_about_path(path: &str, end: &str) -> Option<AppWarning> {
    if path.is_empty() {
        // The root folder.
        return None;
    }
    let shown = || format!("{path}{end}");
    let real = match Path::new(path).canonicalize() {
        Ok(real) => real,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Some(AppWarning::NoSuchPath { path: shown() });
        }
        // Without the permission to look there is nothing to warn of.
        Err(_) => return None,
    };
    if end.is_empty() && real.is_dir() {
        return Some(AppWarning::PathIsFolder { path: shown() });
    }
    if real != Path::new(path) && !can_be_rule(&real) {
        return Some(AppWarning::PathHasLink {
            path: shown(),
            target: format!("{}{end}", escaped(real.as_os_str().as_bytes())),
        });
    }
    let interpreter = interpreter(&real)?;
    Some(AppWarning::PathIsScript {
        path: shown(),
        interpreter,
    })
}

fn warning_about_name(application: &Application) -> Option<AppWarning> {
    let name = exact_name(application)?;
    let path = in_path(name)?;
    let real = path.canonicalize().ok()?;
    let process = Process {
        path: real.as_os_str().as_bytes(),
        name: real.file_name()?.as_bytes(),
        cgroup: b"/",
        uid: 0,
    };
    let path = path.display().to_string();
    if !application.matches(&process) && !can_be_rule(&real) {
        let target = escaped(real.as_os_str().as_bytes());
        return Some(AppWarning::NameIsLink { path, target });
    }
    let interpreter = interpreter(&real)?;
    // Most such scripts start a program of their own name.
    (!is_in_own_folder(name)).then_some(AppWarning::NameIsScript { path, interpreter })
}

/// Multi-call programs: a link's name decides what they do.
const MULTI_CALL: [&str; 4] = ["busybox", "coreutils", "snap", "toybox"];

/// Returns the target of a symbolic link that a rule names.
pub(crate) fn link_target(application: &Application) -> Option<Application> {
    let (path, end) = match application {
        Application::Executable(path) => (PathBuf::from(path), ""),
        Application::Directory(path) => (PathBuf::from(path), "/"),
        Application::Name(_) => (in_path(exact_name(application)?)?, ""),
        _ => return None,
    };
    let real = path.canonicalize().ok()?;
    let has_kind = end.is_empty() != real.is_dir();
    if !has_kind || real == path || !can_be_rule(&real) {
        return None;
    }
    let kind = if end.is_empty() { "exe" } else { "dir" };
    let target: Application = format!("{kind}:{}", real.to_str()?).parse().ok()?;
    (!application.covers(&target)).then_some(target)
}

/// Checks whether a rule can name the target of a link: its path must be valid in a file, and the
/// target must not be a multi-call program.
fn can_be_rule(real: &Path) -> bool {
    let name = real.file_name().unwrap_or_default();
    let path = real.to_str().map(|path| format!("exe:{path}"));
    !MULTI_CALL.iter().any(|shared| name == *shared)
        && path.is_some_and(|path| path.parse::<Application>().is_ok())
}

/// Client programs, and the service that does their work. The service is not their child process.
const CLIENTS: [(&str, &str); 7] = [
    ("docker", "dockerd"),
    ("emacsclient", "emacs"),
    ("gnome-terminal", "gnome-terminal-server"),
    ("mpc", "mpd"),
    ("pkcon", "packagekitd"),
    ("snap", "snapd"),
    ("transmission-remote", "transmission-daemon"),
];

/// Programs that start children of other names to do their work.
const STARTERS: [&str; 22] = [
    "apt", "apt-get", "bash", "dash", "doas", "env", "fish", "git", "heroic", "ksh", "lutris",
    "nohup", "setsid", "sh", "steam", "su", "sudo", "wine", "wine64", "xargs", "xdg-open", "zsh",
];

/// Checks whether a service or child processes do an application's work.
fn warning_about_starter(application: &Application, children: Children) -> Option<AppWarning> {
    let name = match application {
        Application::Name(_) => exact_name(application)?.to_owned(),
        Application::Executable(path) => path.rsplit('/').next()?.to_owned(),
        _ => return None,
    };
    if let Some((name, worker)) = CLIENTS.iter().find(|(client, _)| *client == name) {
        let (name, worker) = ((*name).to_owned(), (*worker).to_owned());
        return Some(AppWarning::Client { name, worker });
    }
    if children == Children::Inherit {
        return None;
    }
    match application {
        Application::Executable(path) if is_app_image(Path::new(path)) => {
            Some(AppWarning::AppImage { path: path.clone() })
        }
        _ => STARTERS
            .contains(&&*name)
            .then_some(AppWarning::Launcher { name }),
    }
}

/// Checks whether a file is an AppImage, whose programs run from a folder that it mounts
/// (`AppImage specification`, "image format": `AI` and the type behind ELF's first 8 bytes).
fn is_app_image(path: &Path) -> bool {
    let first = first_bytes(path).unwrap_or_default();
    first.starts_with(b"\x7fELF") && matches!(first.get(8..11), Some([b'A', b'I', 1 | 2]))
}

/// Returns the name in a rule, unless the rule is a pattern for several names.
fn exact_name(application: &Application) -> Option<&str> {
    match application {
        Application::Name(pattern) if !pattern.is_prefix() => Some(pattern.text()),
        _ => None,
    }
}

/// Checks whether an executable is in a folder such as `/usr/lib/firefox-esr` or
/// `/opt/google/chrome`.
fn is_in_own_folder(name: &str) -> bool {
    let below = |folder: PathBuf| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path())
    };
    PROGRAM_FOLDERS.into_iter().map(PathBuf::from).any(|top| {
        let is_deep = top.as_os_str() == OsStr::new("/opt");
        below(top).any(|folder| {
            is_executable(&folder.join(name))
                || is_deep && below(folder).any(|folder| is_executable(&folder.join(name)))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::os::unix::fs::symlink;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let name = format!("taupe-doubts-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).expect("a folder");
            Self(path.canonicalize().expect("a folder"))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn programs_whose_work_other_processes_do_are_warned_of() {
        let scratch = Scratch::new("starters");
        let image = scratch.0.join("Tool.AppImage");
        fs::write(&image, b"\x7fELF\x02\x01\x01\0AI\x02").expect("written");
        let of = |text: &str, children| warning_about_starter(&text.parse().expect(text), children);
        let image = image.display().to_string();
        for text in ["git", "/bin/sh", &image] {
            assert_eq!(of(text, Children::Inherit), None);
            assert!(of(text, Children::Own).is_some(), "{text}");
        }
        assert_eq!(of("curl", Children::Own), None);
        for children in [Children::Inherit, Children::Own] {
            let doubt = of("docker", children);
            assert!(
                matches!(doubt, Some(AppWarning::Client { .. })),
                "{doubt:?}"
            );
        }
    }

    #[test]
    fn an_unknown_name_gets_the_most_similar_one_as_suggestion() {
        let names = ["chromium", "firefox-esr", "cut", "Xorg"].map(str::to_owned);
        let nearest = |name: &str| match warning_about_unknown(name, &names) {
            Some(AppWarning::UnknownName { nearest, .. }) => Some(nearest),
            _ => None,
        };
        assert_eq!(nearest("chromum-zz"), Some(Some("chromium".into())));
        assert_eq!(nearest("firefoks-esr"), Some(Some("firefox-esr".into())));
        assert_eq!(nearest("qqqqqqqq"), Some(None));
        // A process of this name runs; case does not matter.
        assert_eq!(nearest("xorg"), None);
    }

    #[test]
    fn links_scripts_folders_and_missing_files_are_warned_of() {
        let scratch = Scratch::new("paths");
        let at = |name: &str| scratch.0.join(name).display().to_string();
        fs::write(at("program"), b"\x7fELF").expect("written");
        fs::write(at("script"), "#! /bin/sh -e\ntrue\n").expect("written");
        fs::create_dir(at("folder")).expect("a folder");
        symlink("program", at("link")).expect("a link");
        symlink("folder", at("way")).expect("a link");
        let warning_about = |text: String| warning_about(&text.parse().expect("an application"));
        assert_eq!(warning_about(at("program")), None);
        assert_eq!(warning_about(at("folder/")), None);
        let path = at("folder");
        assert_eq!(
            warning_about(path.clone()),
            Some(AppWarning::PathIsFolder { path })
        );
        assert_eq!(warning_about("/".into()), None);
        // The pipe has no writer, so reading from it would block.
        mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR, 0).expect("a pipe");
        assert_eq!(warning_about(at("pipe")), None);
        let path = at("missing");
        assert_eq!(
            warning_about(path.clone()),
            Some(AppWarning::NoSuchPath { path })
        );
        let (path, interpreter) = (at("script"), "/bin/sh".into());
        let script = AppWarning::PathIsScript { path, interpreter };
        assert_eq!(warning_about(at("script")), Some(script));
        // A rule follows a link, unless links of other names have the same target.
        assert_eq!(warning_about(at("link")), None);
        assert_eq!(warning_about(at("way/")), None);
        fs::write(at("busybox"), b"\x7fELF").expect("written");
        symlink("busybox", at("applet")).expect("a link");
        let (path, target) = (at("applet"), at("busybox"));
        assert_eq!(
            warning_about(at("applet")),
            Some(AppWarning::PathHasLink { path, target })
        );
        let leads_to = |text: String| super::link_target(&text.parse().expect("an application"));
        for (text, expected) in [
            (at("link"), Some(at("program"))),
            (at("way/"), Some(at("folder/"))),
            (at("applet"), None),
            (at("program"), None),
            (at("folder/"), None),
            (at("missing"), None),
        ] {
            assert_eq!(leads_to(text).map(|target| target.to_string()), expected);
        }
        // Users, control groups and patterns are not checked against files.
        for text in ["uid:4711", "cgroup:x", "no-such-program-anywhere", "fire*"] {
            assert_eq!(warning_about(text.into()), None);
        }
    }
}
