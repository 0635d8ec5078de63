use super::{Compatibility, Conf, check, check_with_available_keys, count};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

const KEY: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
const PEER: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";

struct Scratch(PathBuf);

impl Scratch {
    /// Creates a file with this text that only its owner can read.
    fn new(test: &str, text: &str) -> Self {
        let name = format!("taupe-check-{test}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("folder");
        fs::write(folder.join("wg0.conf"), text).expect("file");
        let private = Permissions::from_mode(0o600);
        fs::set_permissions(folder.join("wg0.conf"), private).expect("mode");
        Self(folder)
    }

    fn conf(&self) -> Conf {
        Conf {
            interface: "wg0".parse().expect("name"),
            path: self.0.join("wg0.conf"),
            shown: "./wg0.conf".into(),
        }
    }

    fn lines(&self) -> Vec<String> {
        let checked = check(&self.conf(), Compatibility::Taupe).expect("readable");
        let lines = checked.remarks.iter().map(ToString::to_string);
        lines.collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn good() -> String {
    format!(
        "[Interface]\nPrivateKey = {KEY}\nAddress = 10.0.0.2/24\n\n\
         [Peer]\nPublicKey = {PEER}\nAllowedIPs = 10.0.0.0/24\n"
    )
}

#[test]
fn a_good_file_has_no_remarks() {
    let scratch = Scratch::new("good", &good());
    let checked = check(&scratch.conf(), Compatibility::Taupe).expect("readable");
    assert!(checked.remarks.is_empty(), "{:?}", checked.remarks);
    assert_eq!(checked.file.expect("a file").peers.len(), 1);
    assert_eq!(*checked.text, good().as_bytes());
}

#[test]
fn every_error_has_a_position_a_reason_and_a_fix_and_no_secret() {
    let text = format!(
        "[Interface]\nPrivateKey = {}\nMTU = many\n[Peer]\n  Speed = fast\nPublicKey = {PEER}\n",
        &KEY[..40]
    );
    let scratch = Scratch::new("bad", &text);
    let lines = scratch.lines();
    let errors: Vec<_> = lines
        .iter()
        .filter(|line| line.contains(": error: "))
        .collect();
    assert_eq!(errors.len(), 3, "{lines:#?}");
    for (line, place) in errors.iter().zip(["2:14", "3:7", "5:3"]) {
        assert!(
            line.starts_with(&format!("./wg0.conf:{place}: error: ")),
            "{line}"
        );
        let (reason, fix) = line.split_once("\n  fix: ").expect("a fix");
        assert!(
            reason.len() > 30 && !fix.is_empty() && !fix.contains('\n'),
            "{line}"
        );
        assert!(!line.contains(&KEY[..20]), "{line}");
    }
    assert!(
        check(&scratch.conf(), Compatibility::Taupe)
            .expect("readable")
            .file
            .is_none()
    );
}

#[test]
fn a_key_that_everybody_can_read_is_warned_of() {
    let scratch = Scratch::new("open", &good());
    let path = scratch.0.join("wg0.conf");
    fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("mode");
    if scratch.conf().modes().1 == 0 {
        // The folder for temporary files cannot be entered by other users here.
        return;
    }
    let lines = scratch.lines();
    let [line] = lines.as_slice() else {
        panic!("{lines:?}");
    };
    assert!(line.starts_with("./wg0.conf:2:14: warning: "), "{line}");
    assert!(
        line.contains("\n  fix: ") && line.contains("chmod"),
        "{line}"
    );
    let checked = check(&scratch.conf(), Compatibility::Taupe).expect("readable");
    assert!(checked.file.is_some());
    assert_eq!(count(&checked.remarks), "1 warning");
}

#[test]
fn remarks_are_counted_in_words() {
    let text = format!("[Interface]\nPrivateKey = {KEY}\nMTU = many\nColour = red\n");
    let scratch = Scratch::new("count", &text);
    let remarks = check(&scratch.conf(), Compatibility::Taupe)
        .expect("readable")
        .remarks;
    assert_eq!(count(&remarks), "2 errors");
    assert_eq!(count(&remarks[..1]), "1 error");
}

#[test]
fn a_file_that_cannot_be_read_is_named_with_the_reason() {
    let scratch = Scratch::new("folder", "");
    let conf = Conf {
        path: scratch.0.clone(),
        shown: Path::new("./folder.conf").into(),
        interface: "folder".parse().expect("name"),
    };
    let error = check(&conf, Compatibility::Taupe)
        .err()
        .expect("a folder is no file")
        .to_string();
    assert!(
        error.starts_with("cannot read ./folder.conf: Is a directory"),
        "{error}"
    );
}

#[test]
fn a_file_that_selects_applications_is_fine() {
    let text = format!(
        "[Interface]\nPrivateKey = {KEY}\nAddress = 10.7.0.2/32, fd00:7::2/128\n\
         DNS = 1.1.1.1, 1.0.0.1\nMTU = 1420\n\n[Peer]\nPublicKey = {PEER}\n\
         AllowedIPs = 0.0.0.0/0, ::/0\nEndpoint = vpn.example.org:51820\n\
         AllowedApps = sleep\nDisallowedIPs = 192.168.1.0/24\n"
    );
    let scratch = Scratch::new("apps", &text);
    assert_eq!(scratch.lines(), [""; 0]);
    // `wg-quick` refuses the unknown key, and ignores it in a comment.
    let as_quick = |scratch: &Scratch| {
        let checked = check(&scratch.conf(), Compatibility::WgQuick).expect("readable");
        let lines: Vec<_> = checked.remarks.iter().map(ToString::to_string).collect();
        (checked.file.is_some(), lines.join("\n"))
    };
    let (taken, told) = as_quick(&scratch);
    assert!(
        !taken && told.starts_with("./wg0.conf:11:1: error: AllowedApps"),
        "{told}"
    );
    let commented = Scratch::new(
        "apps-comment",
        &text.replace("AllowedApps", "#@ws:AllowedApps"),
    );
    let (taken, told) = as_quick(&commented);
    assert!(
        taken && told.starts_with("./wg0.conf:11:6: warning: AllowedApps"),
        "{told}"
    );
}

/// A list of peers that all hosts of a network share contains this host too. The private key
/// identifies that entry, whose networks are the host's own.
#[test]
fn a_key_file_shows_which_peer_is_the_tunnel_itself() {
    const OWN: &str = "HIgo9xNzJMWLKASShiTqIybxZ0U3wGLiUeJ1PKf8ykw=";
    let text = good().replace(KEY, "file:key")
        + &format!("\n[Peer]\nPublicKey = {OWN}\nAllowedIPs = 192.168.5.0/24\n");
    let scratch = Scratch::new("own-peer", &text);
    let networks = || {
        let checked = check_with_available_keys(&scratch.conf()).expect("readable");
        let peers = checked.file.expect("a file").peers;
        peers
            .iter()
            .map(|peer| peer.allowed_ips.len())
            .collect::<Vec<_>>()
    };
    assert_eq!(networks(), [1, 1], "the key is not there");
    let key = scratch.0.join("key");
    fs::write(&key, format!("{KEY}\n")).expect("file");
    fs::set_permissions(&key, Permissions::from_mode(0o600)).expect("mode");
    assert_eq!(networks(), [1, 0]);
    fs::write(&key, "half of a k").expect("file");
    assert_eq!(networks(), [1, 1], "the key is being written");
}
