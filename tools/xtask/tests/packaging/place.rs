//! A folder with a faked system and an installed Taupe.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The root of the repository.
pub(crate) const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Records its arguments in the file `calls` beside the prefix, with LOG_LEVEL if it is set. It fails
/// if they are a line of the file `failing`. A tunnel in the foreground ends with the status in the file
/// `ended`, which `down` writes too.
const TAUPE: &str = r#"#!/bin/sh
place=@PLACE@
echo "$*${LOG_LEVEL:+ at $LOG_LEVEL}" >>"$place/calls"
if grep -qxF "$*" "$place/failing" 2>/dev/null; then
    echo "taupe: $* failed" >&2
    exit 1
fi
case $1 in
    strip) printf '[Interface]\n# \\n of %s\n' "$2" ;;
    syncconf) sed 's/^/< /' "$3" >>"$place/calls" ;;
    show) echo "interface: $2" ;;
    down) echo 0 >"$place/ended" ;;
    up)
        [ "$2" = --foreground ] || exit 0
        echo "$$" >"$place/running"
        until [ -s "$place/ended" ]; do sleep 0.02; done
        exit "$(cat "$place/ended")"
        ;;
esac
"#;

/// Refuses options that only GNU's `install` has.
const INSTALL: &str = r#"#!/bin/sh
for argument; do
    case $argument in
        -d | -m) ;;
        -*)
            echo "install: $argument is an option of GNU" >&2
            exit 64
            ;;
    esac
done
exec @INSTALL@ "$@"
"#;

/// A folder with a program and pages to install, and a prefix. Removed when dropped.
pub(crate) struct Place {
    pub(crate) folder: PathBuf,
    system: &'static str,
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Place {
    /// Creates a folder, on a system whose name is `system` (`uname -s`).
    pub(crate) fn new(system: &'static str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("taupe-packaging-{}-{number}", std::process::id());
        let folder = env::temp_dir().join(name);
        let place = Self { folder, system };
        let release = place.folder.join("target/release");
        fs::create_dir_all(release.join("pages")).expect("folder");
        let stub = TAUPE.replace("@PLACE@", &place.folder.display().to_string());
        program(&release.join("taupe"), &stub);
        for page in ["taupe.1", "taupe.bash", "_taupe", "taupe.fish"] {
            fs::write(release.join("pages").join(page), "").expect("page");
        }
        let tools = place.folder.join("tools");
        fs::create_dir(&tools).expect("folder");
        for tool in "dirname readlink rm rmdir ln sed chmod".split(' ') {
            symlink(found(tool), tools.join(tool)).expect("link");
        }
        program(&tools.join("uname"), &format!("#!/bin/sh\necho {system}\n"));
        let install = found("install").display().to_string();
        program(
            &tools.join("install"),
            &INSTALL.replace("@INSTALL@", &install),
        );
        place
    }

    /// Adds pages of commands to those that are installed.
    pub(crate) fn add_pages<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        for name in names {
            let page = format!("target/release/pages/taupe-{name}.1");
            fs::write(self.folder.join(page), "").expect("page");
        }
    }

    pub(crate) fn prefix(&self) -> PathBuf {
        self.folder.join("prefix")
    }

    /// Runs `packaging/install` with the tools of the faked system.
    pub(crate) fn install(&self, shell: &[String], arguments: &[&str], options: &[&str]) -> Output {
        let mut command = Command::new(&shell[0]);
        command.args(&shell[1..]).arg("packaging/install");
        command.args(arguments).current_dir(REPOSITORY);
        command
            .env_clear()
            .env("PATH", self.folder.join("tools"))
            .env("CARGO_TARGET_DIR", self.folder.join("target"))
            .env("PREFIX", self.prefix())
            .envs(options.iter().map(|name| (*name, "1")));
        command.output().expect("a shell")
    }

    /// Installs it, which must succeed, and returns the output.
    pub(crate) fn installed(&self, options: &[&str]) -> String {
        let output = self.install(&shells()[0], &[], options);
        assert!(output.status.success(), "{}: {output:?}", self.system);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns the files below the prefix with their modes; those of links are 0.
    pub(crate) fn files(&self) -> BTreeSet<(String, u32)> {
        let (mut found, mut folders) = (BTreeSet::new(), vec![self.prefix()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let (path, metadata) = (entry.path(), entry.metadata().expect("metadata"));
                if metadata.is_dir() {
                    folders.push(path);
                    continue;
                }
                let path = path.strip_prefix(self.prefix()).expect("inside");
                let mode = metadata.permissions().mode() & 0o7777;
                let mode = if metadata.is_symlink() { 0 } else { mode };
                found.insert((path.to_string_lossy().into_owned(), mode));
            }
        }
        found
    }

    /// Returns the calls of `taupe` since the last time, a line each.
    pub(crate) fn calls(&self) -> Vec<String> {
        let file = self.folder.join("calls");
        let calls = fs::read_to_string(&file).unwrap_or_default();
        let _ = fs::remove_file(file);
        calls.lines().map(str::to_owned).collect()
    }

    /// Has these calls of `taupe` fail.
    pub(crate) fn fail(&self, calls: &[&str]) {
        fs::write(self.folder.join("failing"), calls.join("\n")).expect("file");
    }
}

/// Shells that are similar to FreeBSD's and macOS's, as far as this machine has them: the path of each
/// and its first arguments.
pub(crate) fn shells() -> Vec<Vec<String>> {
    let all = ["sh", "dash", "busybox sh", "bash --posix"];
    let mut shells = Vec::new();
    for shell in all {
        let mut words = shell.split(' ');
        let name = words.next().expect("a name");
        match find(name) {
            Some(path) => {
                let path = path.display().to_string();
                shells.push([path].into_iter().chain(words.map(str::to_owned)).collect());
            }
            None => println!("no {name} here: not tried"),
        }
    }
    shells
}

/// Writes an executable file. Another process writes it: if this one did, a child that another thread
/// has just forked would have the file open for writing, and it could not be executed (`ETXTBSY`).
pub(crate) fn program(path: &Path, text: &str) {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", r#"cat >"$1" && chmod 755 "$1""#, "sh"]);
    let child = shell.arg(path).stdin(Stdio::piped()).spawn();
    let mut child = child.expect("a shell");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(text.as_bytes()).expect("text");
    drop(input);
    assert!(child.wait().expect("a child").success());
}

/// Checks that a shell can parse a script.
pub(crate) fn parses(shell: &[String], script: &Path) {
    let mut command = Command::new(&shell[0]);
    let output = command.args(&shell[1..]).arg("-n").arg(script).output();
    let output = output.expect("a shell");
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{shell:?}: {output:?}"
    );
}

fn found(tool: &str) -> PathBuf {
    find(tool).expect(tool)
}

fn find(tool: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let mut places = env::split_paths(&path).map(|folder| folder.join(tool));
    places.find(|file| file.exists())
}
