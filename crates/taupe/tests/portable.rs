//! Tests of commands that exist on every system. On Windows they also run under Wine.

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

const KEY: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
const PEER: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";

fn taupe<S: AsRef<OsStr>>(arguments: &[S], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taupe"));
    command.args(arguments).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program");
    let mut stdin = child.stdin.take().expect("its input");
    // A command that reads no input may have ended already.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().expect("its end")
}

fn out(output: &Output) -> &str {
    str::from_utf8(&output.stdout).expect("text")
}

fn error(output: &Output) -> &str {
    str::from_utf8(&output.stderr).expect("text")
}

/// A file that is removed when dropped.
struct Conf(PathBuf);

impl Conf {
    fn new(name: &str, text: &[u8]) -> Self {
        let folder = std::env::temp_dir().join(format!("taupe-portable-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join(format!("{name}.conf"));
        fs::write(&path, text).expect("a file");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
        }
        Self(path)
    }

    fn check(&self) -> Output {
        taupe(&[OsStr::new("check"), self.0.as_os_str()], "")
    }
}

impl Drop for Conf {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
        // This only succeeds once the folder is empty.
        let _ = self.0.parent().map(fs::remove_dir);
    }
}

fn good() -> String {
    format!(
        "[Interface]\nPrivateKey = {KEY}\nAddress = 10.0.0.2/24\n\n\
         [Peer]\nPublicKey = {PEER}\nAllowedIPs = 10.0.0.0/24\nEndpoint = 192.0.2.1:51820\n"
    )
}

fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

#[test]
fn help_in_a_pipe_has_one_width() {
    let help = |columns: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taupe"));
        command.args(["help", "proxy"]).env("COLUMNS", columns);
        command.output().expect("the program")
    };
    let narrow = help("40");
    assert_eq!(out(&narrow), out(&help("200")));
    let longest = out(&narrow).lines().map(|line| line.chars().count()).max();
    assert!(
        (70..=80).contains(&longest.unwrap_or_default()),
        "{longest:?}"
    );
}

#[test]
fn keys_are_made_and_have_public_ones() {
    let made = [["genkey"], ["genkey"], ["genpsk"]].map(|arguments| {
        let made = taupe(&arguments, "");
        assert!(made.status.success(), "{}", error(&made));
        assert_eq!(out(&made).trim_end().len(), 44, "{:?}", out(&made));
        out(&made).to_owned()
    });
    assert_ne!(made[0], made[1]);
    // Also with the line end of Windows consoles and pipes.
    for input in [made[0].clone(), made[0].replace('\n', "\r\n")] {
        let public = taupe(&["pubkey"], &input);
        assert!(public.status.success(), "{}", error(&public));
        assert_ne!(out(&public), made[0]);
    }
    // Alice's key of RFC 7748 section 6.1.
    let public = taupe(&["pubkey"], "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=");
    assert_eq!(
        out(&public).trim_end(),
        "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo="
    );
    let none = taupe(&["pubkey"], "nonsense");
    assert_eq!(none.status.code(), Some(1));
    assert_eq!(error(&none).lines().count(), 1, "{}", error(&none));
}

#[test]
fn post_quantum_keys_are_made_and_have_public_ones() {
    let seed = taupe(&["genkey", "--pq"], "");
    assert!(seed.status.success(), "{}", error(&seed));
    for (suite, length) in [("hybrid-768", 1184), ("hybrid-512", 800_usize)] {
        let public = taupe(&["pubkey", "--pq", "--suite", suite], out(&seed));
        assert!(public.status.success(), "{}", error(&public));
        // Base64, which may have the name of the suite before it.
        assert!(
            out(&public).trim_end().len() >= length.div_ceil(3) * 4,
            "{suite}"
        );
    }
}

#[test]
fn a_good_file_is_fine_whoever_wrote_it() {
    let notepad = format!("\u{feff}{}", good().replace('\n', "\r\n"));
    for (name, text) in [("plain", good()), ("notepad", notepad)] {
        let conf = Conf::new(name, text.as_bytes());
        let checked = conf.check();
        assert!(checked.status.success(), "{}", out(&checked));
        assert!(out(&checked).ends_with("is fine\n"), "{}", out(&checked));
        let stripped = taupe(&[OsStr::new("strip"), conf.0.as_os_str()], "");
        assert!(stripped.status.success(), "{}", error(&stripped));
        assert!(out(&stripped).contains("AllowedIPs = 10.0.0.0/24"));
        assert!(!out(&stripped).contains("Address"), "{}", out(&stripped));
    }
}

#[test]
fn a_bad_file_has_a_line_for_each_mistake_and_its_fix() {
    let conf = Conf::new(
        "bad",
        good().replace("10.0.0.0/24", "10.0.0.0/33").as_bytes(),
    );
    let checked = conf.check();
    assert_eq!(checked.status.code(), Some(1));
    let said = out(&checked);
    assert!(
        said.contains("bad.conf:7:") && said.contains("  fix: "),
        "{said}"
    );
}

/// The encoding that Notepad calls Unicode, with and without byte order mark.
#[test]
fn utf_16_is_refused_in_one_line_with_its_fix() {
    for (name, text) in [("marked", format!("\u{feff}{}", good())), ("bare", good())] {
        let checked = Conf::new(name, &utf16(&text)).check();
        assert_eq!(checked.status.code(), Some(1));
        let lines: Vec<_> = out(&checked).lines().collect();
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(
            lines[0].contains("UTF-16") && lines[1].contains("UTF-8"),
            "{lines:?}"
        );
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let missing = taupe(&["check", "./no-such-file.conf"], "");
    assert_eq!(missing.status.code(), Some(1));
    assert!(error(&missing).contains("there is no file ./no-such-file.conf"));
}

#[test]
fn the_shortest_list_of_networks_is_printed() {
    let list = taupe(
        &["allowed-ips", "10.0.0.0/30", "--except", "10.0.0.3/32"],
        "",
    );
    assert_eq!(out(&list), "10.0.0.0/31, 10.0.0.2/32\n", "{}", error(&list));
}

#[test]
fn a_proxy_without_a_way_to_begin_says_why_in_one_line() {
    let conf = Conf::new("proxy", good().as_bytes());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = taken.local_addr().expect("its address").to_string();
    let words = ["proxy", "--socks5", &at].map(OsStr::new);
    let refused = taupe(&[&words[..], &[conf.0.as_os_str()]].concat(), "");
    assert_eq!(refused.status.code(), Some(1));
    let said = error(&refused);
    assert!(said.contains(&at) && said.lines().count() == 1, "{said}");
}

#[test]
fn wrong_usage_has_a_status_of_its_own() {
    assert_eq!(taupe(&["no-such-command"], "").status.code(), Some(2));
    assert_eq!(taupe(&["proxy"], "").status.code(), Some(2));
    assert!(taupe(&["--version"], "").status.success());
}

#[cfg(not(target_os = "linux"))]
#[test]
fn what_is_linux_s_alone_says_so_in_one_line() {
    for command in ["up", "exec", "doctor", "device"] {
        let refused = taupe(&[command, "x"], "");
        assert_eq!(refused.status.code(), Some(2), "{command}");
        let said = error(&refused);
        assert!(
            said.contains("as there is on Linux") && said.lines().count() == 1,
            "{said}"
        );
    }
}
