//! Tests of `make install` into a folder: the installed files, their validity, and their removal by
//! `make uninstall`.

#![cfg(target_os = "linux")]

#[path = "../examples/pages/pages.rs"]
mod pages;
#[path = "../examples/pages/reference.rs"]
mod reference;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A folder with a built program in `target`, and an empty folder as the system's root.
struct Place(PathBuf);

impl Place {
    fn new(test: &str) -> Self {
        let name = format!("taupe-install-{test}-{}", std::process::id());
        let place = Self(std::env::temp_dir().join(name));
        let release = place.0.join("target/release");
        fs::create_dir_all(&release).expect("folder");
        symlink(env!("CARGO_BIN_EXE_taupe"), release.join("taupe")).expect("link");
        symlink(env!("CARGO_BIN_EXE_taupe"), release.join("taupe-web")).expect("link");
        pages::write(&release.join("pages")).expect("pages");
        // Tools that installing needs. Cargo is not among them, because root may not have it.
        let tools = place.0.join("tools");
        fs::create_dir(&tools).expect("folder");
        let path = std::env::var_os("PATH").expect("PATH");
        for tool in "make dirname uname readlink rm install ln sed chmod".split(' ') {
            let mut places = std::env::split_paths(&path).map(|folder| folder.join(tool));
            let found = places.find(|file| file.exists()).expect(tool);
            symlink(found, tools.join(tool)).expect("link");
        }
        place
    }

    fn system(&self) -> PathBuf {
        self.0.join("system")
    }

    fn make(&self, target: &str, variables: &[&str]) -> Output {
        Command::new("make")
            .args(["--no-print-directory", "-C", REPOSITORY, target])
            .arg(format!("DESTDIR={}", self.system().display()))
            .args(variables)
            .env("PATH", self.0.join("tools"))
            .env("CARGO_TARGET_DIR", self.0.join("target"))
            .env_remove("PREFIX")
            .env_remove("ALIASES")
            .output()
            .expect("make")
    }

    /// Runs a target and returns its output.
    fn succeeds(&self, target: &str, variables: &[&str]) -> String {
        let output = self.make(target, variables);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{target}: {text}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns all files below the system's root.
    fn files(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut folders = vec![self.system()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("folder").flatten() {
                if entry.file_type().expect("type").is_dir() {
                    folders.push(entry.path());
                } else {
                    let path = entry.path();
                    let path = path.strip_prefix(self.system()).expect("inside");
                    found.insert(path.to_string_lossy().into_owned());
                }
            }
        }
        found
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn expected(prefix: &str) -> BTreeSet<String> {
    let commands = "up down lock reload save strip check exec explain prove app app-allow app-deny app-remove app-list status top flows events metrics web doctor report proxy allowed-ips show showconf set setconf addconf \
                    syncconf genkey genpsk pubkey device";
    let pages = commands.split(' ').map(|name| format!("taupe-{name}.1"));
    let pages = pages.chain(["taupe.1".into()]);
    let pages = pages.map(|page| format!("{prefix}/share/man/man1/{page}"));
    let others = [
        "bin/taupe",
        "bin/taupe-device",
        "libexec/taupe-web",
        "lib/systemd/system/taupe@.service",
        "lib/systemd/system/taupe-hooks@.service",
        "lib/systemd/system/taupe-lock@.service",
        "share/man/man5/taupe.conf.5",
        "share/bash-completion/completions/taupe",
        "share/zsh/site-functions/_taupe",
        "share/fish/vendor_completions.d/taupe.fish",
    ];
    let others = others.iter().map(|file| format!("{prefix}/{file}"));
    pages.chain(others).collect()
}

#[test]
fn all_of_it_is_installed_and_removed() {
    let place = Place::new("all");
    let said = place.succeeds("install", &["PREFIX=/usr"]);
    let mut expected = expected("usr");
    assert_eq!(place.files(), expected);
    for file in expected.iter().filter(|file| !file.contains("/man1/")) {
        let line = place.system().join(file).display().to_string();
        let is_it = |said: &str| said == line || said == format!("{line} -> taupe");
        assert!(said.lines().any(is_it), "{line}: {said}");
    }
    assert!(!said.contains("systemctl"), "{said}");

    let bin = place.system().join("usr/bin");
    let version = Command::new(bin.join("taupe")).arg("--version").output();
    assert!(version.expect("installed").stdout.starts_with(b"taupe "));
    assert_eq!(
        fs::read_link(bin.join("taupe-device")).expect("link"),
        Path::new("taupe")
    );
    for file in place.files() {
        let path = place.system().join(&file);
        let mode = fs::metadata(path).expect("file").permissions().mode() & 0o7777;
        let program = ["usr/bin/", "usr/libexec/"]
            .iter()
            .any(|it| file.starts_with(it));
        assert_eq!(mode, if program { 0o755 } else { 0o644 }, "{file}");
    }
    let unit = place.system().join("usr/lib/systemd/system/taupe@.service");
    let unit = fs::read_to_string(unit).expect("unit");
    assert!(
        unit.contains("\nExecStart=/usr/bin/taupe up --foreground --keep-closed %i\n"),
        "{unit}"
    );
    assert!(!unit.contains("@BINDIR@"), "{unit}");
    let conflicts = "\nConflicts=wg-quick@%i.service\n";
    assert!(unit.contains(conflicts), "{unit}");

    // The lock starts before the network and depends on nothing that starts later.
    let lock = place
        .system()
        .join("usr/lib/systemd/system/taupe-lock@.service");
    let lock = fs::read_to_string(lock).expect("unit");
    for line in [
        "ExecStart=/usr/bin/taupe lock %i",
        "DefaultDependencies=no",
        "Before=network-pre.target taupe@%i.service taupe-hooks@%i.service",
        "Wants=network-pre.target",
    ] {
        assert!(lock.lines().any(|found| found == line), "{line}: {lock}");
    }

    place.succeeds("install", &["PREFIX=/usr", "ALIASES=1"]);
    for alias in ["wg", "wg-quick"] {
        assert_eq!(
            fs::read_link(bin.join(alias)).expect("link"),
            Path::new("taupe")
        );
        expected.insert(format!("usr/bin/{alias}"));
        expected.insert(format!("usr/share/bash-completion/completions/{alias}"));
    }
    assert_eq!(place.files(), expected);

    place.succeeds("uninstall", &["PREFIX=/usr"]);
    assert_eq!(place.files(), BTreeSet::new());
}

/// The files for users without root are found by bus, polkit and systemd, which look below /usr.
#[test]
fn the_service_is_installed_and_removed() {
    let place = Place::new("service");
    let output = place.make("install", &["PREFIX=/usr", "SERVICE=1"]);
    assert!(!output.status.success(), "it is not built: {output:?}");
    let release = place.0.join("target/release");
    symlink("taupe", release.join("taupe-dbus")).expect("link");
    let output = place.make("install", &["SERVICE=1"]);
    assert!(!output.status.success(), "{output:?}");
    assert!(!place.system().exists());
    let said = place.succeeds("install", &["PREFIX=/usr", "SERVICE=1"]);
    let own = [
        "lib/systemd/system/taupe-dbus.service",
        "lib/systemd/system/taupe-service.service",
        "lib/systemd/system/taupe-service.socket",
        "lib/sysusers.d/taupe-service.conf",
        "libexec/taupe-dbus",
        "share/dbus-1/system-services/org.taupe.Service1.service",
        "share/dbus-1/system.d/org.taupe.Service1.conf",
        "share/polkit-1/actions/org.taupe.policy",
        "share/polkit-1/rules.d/taupe.rules",
    ];
    let own = own.map(|file| format!("usr/{file}"));
    let mut files = expected("usr");
    files.extend(own.iter().cloned());
    assert_eq!(place.files(), files);
    for file in &own {
        let path = place.system().join(file);
        assert!(said.contains(&path.display().to_string()), "{file}: {said}");
        let text = fs::read_to_string(&path).unwrap_or_default();
        assert!(!text.contains("DIR@"), "{file}: {text}");
    }
    let front = place.system().join("usr/share/dbus-1/system-services");
    let front = fs::read_to_string(front.join("org.taupe.Service1.service")).expect("file");
    assert!(
        front.contains("\nExec=/usr/libexec/taupe-dbus\n"),
        "{front}"
    );
    place.succeeds("uninstall", &["PREFIX=/usr"]);
    assert_eq!(place.files(), BTreeSet::new());
}

#[test]
fn it_goes_to_usr_local_unless_told_otherwise() {
    let place = Place::new("local");
    place.succeeds("install", &[]);
    assert_eq!(place.files(), expected("usr/local"));
    let unit = place
        .system()
        .join("usr/local/lib/systemd/system/taupe@.service");
    let unit = fs::read_to_string(unit).expect("unit");
    assert!(
        unit.contains("\nExecStop=/usr/local/bin/taupe down --keep-closed %i\n"),
        "{unit}"
    );
    let output = place.make("install", &["PREFIX=usr"]);
    assert!(!output.status.success());
    assert_eq!(place.files(), expected("usr/local"));
}

#[test]
fn another_program_s_files_stay() {
    let place = Place::new("others");
    let bin = place.system().join("usr/local/bin");
    fs::create_dir_all(&bin).expect("folder");
    fs::write(bin.join("wg"), "wireguard-tools").expect("file");
    let output = place.make("install", &["ALIASES=1"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        text.contains("/usr/local/bin/wg is another program's"),
        "{text}"
    );
    assert_eq!(place.files(), BTreeSet::from(["usr/local/bin/wg".into()]));

    place.succeeds("install", &[]);
    place.succeeds("uninstall", &[]);
    assert_eq!(place.files(), BTreeSet::from(["usr/local/bin/wg".into()]));
}

/// Checks the installed files with the tools that read them, if these tools are available.
#[test]
fn what_is_installed_is_well_formed() {
    let place = Place::new("lint");
    // The unit contains the program's final path, so it is checked with the real prefix.
    let prefix = place.0.join("prefix");
    let output = Command::new("make")
        .args(["--no-print-directory", "-C", REPOSITORY, "install"])
        .arg(format!("PREFIX={}", prefix.display()))
        .env("PATH", place.0.join("tools"))
        .env("CARGO_TARGET_DIR", place.0.join("target"))
        .env_remove("DESTDIR")
        .output()
        .expect("make");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let at = |file: &str| prefix.join(file).into_os_string();

    lint(
        "bash",
        &["-n".into(), at("share/bash-completion/completions/taupe")],
    );
    lint("zsh", &["-n".into(), at("share/zsh/site-functions/_taupe")]);
    lint(
        "fish",
        &[
            "-n".into(),
            at("share/fish/vendor_completions.d/taupe.fish"),
        ],
    );
    for unit in ["taupe", "taupe-hooks", "taupe-lock"] {
        let template = at(&format!("lib/systemd/system/{unit}@.service"));
        let instance = prefix.join(format!("{unit}@wg0.service"));
        fs::copy(template, &instance).expect("copy");
        lint(
            "systemd-analyze",
            &["verify".into(), "--man=no".into(), instance.into()],
        );
    }
    // The messages for /usr/local do not apply to this prefix.
    let said = String::from_utf8_lossy(&output.stdout);
    let link = "`systemctl link ";
    assert!(said.contains(link), "{said}");
    let sections = ["share/man/man1", "share/man/man5"];
    let pages = sections.map(|section| fs::read_dir(at(section)).expect("pages").flatten());
    for page in pages.into_iter().flatten() {
        let page = page.path().into_os_string();
        let groff = ["-man", "-ww", "-z", "-Tutf8"].map(Into::into);
        lint("groff", &[&groff[..], std::slice::from_ref(&page)].concat());
        let text = fs::read_to_string(&page).expect("page");
        for section in [".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION"] {
            assert!(text.contains(section), "{}: {section}", page.display());
        }
    }
    let page = fs::read_to_string(at("share/man/man1/taupe-device.1")).expect("page");
    let synopsis = page.split(".SH ").nth(2);
    assert_eq!(
        synopsis.map(|text| text.lines().nth(1).unwrap_or_default().replace('\\', "")),
        Some(
            "fBtaupe devicefR [fB-ffR|fB--foregroundfR] [fB--no-offloadfR fIWHATfR]... \
             [fB--lanesfR fINfR] [fB-hfR|fB--helpfR] <fIIFACEfR> "
                .into()
        )
    );
}

#[test]
fn the_reference_of_commands_is_up_to_date() {
    let path = Path::new(REPOSITORY).join("docs/reference/commands.md");
    let page = fs::read_to_string(path).unwrap_or_default();
    assert!(
        page == reference::markdown(),
        "run `cargo run -p taupe --example pages -- --reference docs/reference/commands.md`"
    );
}

fn lint(program: &str, arguments: &[std::ffi::OsString]) {
    let output = match Command::new(program).args(arguments).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("no {program} here: not looked at");
            return;
        }
        output => output.expect(program),
    };
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.is_empty(),
        "{program} {arguments:?}: {text}"
    );
}

#[test]
fn bash_completes_names_files_and_options() {
    let place = Place::new("bash");
    place.succeeds("install", &["PREFIX=/usr", "ALIASES=1"]);
    // The completions are tested with fake interfaces, independent of this machine's.
    let script = r#"
        PATH=$1/usr/bin:$PATH
        taupe() {
            case "$*" in
                "show interfaces") echo "tun1 tun2" ;;
                "show tun1 peers") echo "KEY1=" ;;
            esac
        }
        cd "$2" && mkdir folder && touch here.conf notes.txt
        declare -A function
        for name in taupe wg wg-quick; do
            source "$1/usr/share/bash-completion/completions/$name"
            function[$name]=$(complete -p "$name" | sed 's/.*-F \([^ ]*\).*/\1/')
        done
        while read -ra COMP_WORDS; do
            # A `_` stands for what is to be completed with nothing typed yet.
            [ "${COMP_WORDS[-1]}" != _ ] || COMP_WORDS[-1]=
            COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
            ${function[$COMP_WORDS]} "$COMP_WORDS" "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
            echo "${COMPREPLY[*]}"
        done
    "#;
    let cases = [
        ("taupe allow", "allowed-ips"),
        ("taupe up --ad", "--adapter"),
        ("taupe check h", "here.conf"),
        ("taupe up t", "target tools"),
        ("taupe down fol", "folder"),
        ("taupe down tun", "tun1 tun2"),
        ("taupe reload tun2", "tun2"),
        ("taupe show _", "tun1 tun2 all interfaces"),
        (
            "taupe show tun1 p",
            "public-key private-key peers preshared-keys persistent-keepalive",
        ),
        ("taupe set tun", "tun1 tun2"),
        (
            "taupe set tun1 _",
            "peer listen-port fwmark private-key pq-private-key",
        ),
        ("wg set tun1 _", "peer listen-port fwmark private-key"),
        ("taupe set tun1 pq-private-key n", "notes.txt"),
        (
            "taupe set tun1 peer K p",
            "peer preshared-key persistent-keepalive pq-public-key post-quantum",
        ),
        (
            "taupe set tun1 peer K post-quantum _",
            "require prefer off default",
        ),
        ("taupe genkey _", "--pq"),
        ("taupe pubkey --pq _", "--suite"),
        ("taupe pubkey --pq --suite hybrid-5", "hybrid-512"),
        ("wg genkey _", ""),
        ("taupe set tun1 peer _", "KEY1="),
        ("taupe set tun1 peer K re", "remove"),
        ("taupe set tun1 peer K preshared-key n", "notes.txt"),
        ("taupe set tun1 fwmark _", ""),
        ("wg showconf tun1 _", ""),
        ("taupe setconf tun1 n", "notes.txt"),
        ("wg s", "show showconf set setconf syncconf"),
        ("wg show t", "tun1 tun2"),
        ("wg-quick _", "up down save strip"),
        ("wg-quick up h", "here.conf"),
        ("wg-quick down tun1", "tun1"),
    ];
    let mut bash = Command::new("bash")
        .args(["-c", script, "bash"])
        .args([place.system(), place.0.clone()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("bash");
    let mut stdin = bash.stdin.take().expect("piped");
    for (line, _) in cases {
        writeln!(stdin, "{line}").expect("read");
    }
    drop(stdin);
    let output = bash.wait_with_output().expect("bash");
    let text = String::from_utf8_lossy(&output.stdout);
    let told: Vec<_> = text.lines().collect();
    assert_eq!(told.len(), cases.len(), "{text}");
    for ((line, expected), told) in cases.into_iter().zip(told) {
        assert_eq!(told, expected, "{line}");
    }
}

#[test]
fn bash_leaves_another_wg_alone() {
    let place = Place::new("bash-others");
    place.succeeds("install", &["PREFIX=/usr"]);
    let script = r#"
        PATH=$1/usr/bin:$PATH
        source "$1/usr/share/bash-completion/completions/taupe"
        complete -p wg || complete -p wg-quick
    "#;
    let bin = place.system().join("usr/bin");
    for name in ["wg", "wg-quick"] {
        let program = bin.join(name);
        fs::write(&program, "#!/bin/sh\n").expect("file");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("mode");
    }
    let output = Command::new("bash")
        .args(["-c", script, "bash"])
        .arg(place.system())
        .output()
        .expect("bash");
    assert_ne!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
}
