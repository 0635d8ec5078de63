use super::machine::Files;
use super::*;
use crate::arguments::AppPlace;
use std::os::fd::{AsFd as _, OwnedFd};
use taupe_config::application::Application;
use taupe_os_linux::message_socket;
use taupe_web_link::{Outcome, Place, Switch};

#[test]
fn the_helper_is_in_libexec_or_beside() {
    for (own, expected) in [
        ("/usr/bin/taupe", &["/usr/libexec", "/usr/bin"][..]),
        ("/src/target/debug/taupe", &["/src/target/debug"]),
    ] {
        let expected: Vec<_> = expected.iter().map(Path::new).collect();
        assert_eq!(folders(Path::new(own)), expected);
    }
}

/// A machine with one tunnel.
struct Fake<'a> {
    read: Box<dyn FnMut() -> Result<String, String> + 'a>,
    changed: Vec<(PathBuf, AppPlace, String)>,
}

impl Machine for Fake<'_> {
    type Facts = String;

    fn read(&mut self) -> Result<(String, Files), String> {
        let files = [("home".to_owned(), PathBuf::from("/etc/wireguard/home.conf"))];
        Ok(((self.read)()?, files.into()))
    }

    fn change(
        &mut self,
        file: &Path,
        place: AppPlace,
        application: &Application,
    ) -> (Vec<String>, Result<(), String>) {
        let change = (file.to_owned(), place, application.to_string());
        self.changed.push(change);
        (vec!["a remark".to_owned()], Ok(()))
    }
}

type Reader<'a> = Box<dyn FnMut() -> Result<String, String> + 'a>;

/// A conversation, its socket and that of its child.
fn conversation(read: Reader<'_>) -> (Conversation<Fake<'_>>, OwnedFd, OwnedFd) {
    let addresses = Addresses {
        tcp: None,
        unix: None,
        path: Secret::random().expect("randomness"),
    };
    let changed = Vec::new();
    let token = next_token(0).expect("randomness");
    let mut conversation = Conversation::new(addresses, token, Fake { read, changed }, None);
    conversation.terminal.has_input = false;
    let (near, far) = message_socket::pair().expect("sockets");
    (conversation, near, far)
}

fn nothing() -> Result<String, String> {
    Ok("facts".to_owned())
}

fn switch(tunnel: &str, application: &str) -> Switch {
    Switch {
        tunnel: tunnel.to_owned(),
        application: application.to_owned(),
        place: Place::Allowed,
    }
}

/// Returns the answer to a request for a change.
fn outcome(
    parent: &mut Conversation<Fake<'_>>,
    (near, far): (&OwnedFd, &OwnedFd),
    switch: Switch,
) -> Outcome {
    send(far.as_fd(), &ToParent::Switch(switch), &[]).expect("sent");
    assert!(parent.receive(near.as_fd()).expect("allowed"));
    let received = receive::<ToServer>(far.as_fd()).expect("received");
    let Some((ToServer::Switched(outcome), _)) = received else {
        panic!("another message");
    };
    outcome
}

#[test]
fn changes_are_limited_to_applications_of_tunnels_that_the_page_shows() {
    let (mut parent, near, far) = conversation(Box::new(nothing));
    parent.switches = Some(Switches::default());
    let sockets = (&near, &far);
    // The page has shown nothing yet.
    assert!(!outcome(&mut parent, sockets, switch("home", "curl")).is_done);
    send(far.as_fd(), &ToParent::Wanted, &[]).expect("sent");
    assert!(parent.receive(near.as_fd()).expect("allowed"));
    receive::<ToServer>(far.as_fd()).expect("received");
    for (tunnel, application) in [
        ("work", "curl"),
        ("/etc/wireguard/home.conf", "curl"),
        ("../home", "curl"),
        ("home", ""),
        ("home", "a\nPostUp = reboot"),
        ("home", "a, b"),
    ] {
        let refused = outcome(&mut parent, sockets, switch(tunnel, application));
        assert!(!refused.is_done, "{tunnel} {application:?}: {refused:?}");
    }
    assert_eq!(parent.machine.changed, []);
    let done = outcome(&mut parent, sockets, switch("home", "curl"));
    assert!(done.is_done && done.sentences == ["a remark"], "{done:?}");
    let file = PathBuf::from("/etc/wireguard/home.conf");
    let expected = (file, AppPlace::Allowed, "curl".to_owned());
    assert_eq!(parent.machine.changed, [expected]);
    // Seven requests were refused.
    let mut count = 1;
    while outcome(&mut parent, sockets, switch("home", "curl")).is_done {
        count += 1;
    }
    assert_eq!((count, parent.machine.changed.len()), (13, 13));
}

#[test]
fn without_the_option_a_change_ends_the_child() {
    let (mut parent, near, far) = conversation(Box::new(nothing));
    send(far.as_fd(), &ToParent::Switch(switch("home", "curl")), &[]).expect("sent");
    let error = parent.receive(near.as_fd()).expect_err("refused");
    assert!(error.to_string().contains("--switches"), "{error}");
    assert_eq!(parent.machine.changed, []);
}

#[test]
fn a_child_that_does_not_follow_the_rules_is_ended() {
    let serving = || ToParent::Serving(Vec::new());
    for (messages, expected) in [
        (vec![serving(), serving()], "second report"),
        (vec![ToParent::Admitted(0)], "not valid"),
        (
            vec![ToParent::Admitted(1), ToParent::Admitted(1)],
            "not valid",
        ),
        (vec![ToParent::Admitted(2)], "not valid"),
    ] {
        let (mut parent, near, far) = conversation(Box::new(nothing));
        for message in &messages {
            send(far.as_fd(), message, &[]).expect("sent");
        }
        for _ in 1..messages.len() {
            assert!(parent.receive(near.as_fd()).expect("allowed"));
        }
        let error = parent.receive(near.as_fd()).expect_err("refused");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let (mut parent, near, far) = conversation(Box::new(nothing));
    message_socket::send(far.as_fd(), b"\"Shell\"", &[]).expect("sent");
    let error = parent.receive(near.as_fd()).expect_err("refused");
    assert!(error.to_string().contains("unknown message"), "{error}");
    drop(far);
    assert!(!parent.receive(near.as_fd()).expect("its end"));
}

#[test]
fn each_token_reports_one_browser_also_after_it_was_replaced() {
    let (mut parent, near, far) = conversation(Box::new(nothing));
    parent.is_serving = true;
    parent.renew_token(near.as_fd()).expect("a token");
    let received = receive::<ToServer>(far.as_fd()).expect("received");
    let (ToServer::Token(token), _) = received.expect("one") else {
        panic!("another message");
    };
    assert_eq!(token.number, 2);
    // The first was on its way when the user pressed Enter.
    for number in [1, 2] {
        send(far.as_fd(), &ToParent::Admitted(number), &[]).expect("sent");
        assert!(parent.receive(near.as_fd()).expect("allowed"));
        assert_eq!(parent.reported, number);
    }
}

#[test]
fn readings_have_an_interval_from_the_end_of_one_to_the_next() {
    let mut begun = Vec::new();
    let long = Duration::from_millis(300);
    let read = || {
        begun.push(Instant::now());
        thread::sleep(long);
        nothing()
    };
    let (mut parent, near, far) = conversation(Box::new(read));
    for _ in 0..2 {
        send(far.as_fd(), &ToParent::Wanted, &[]).expect("sent");
        assert!(parent.receive(near.as_fd()).expect("allowed"));
        let received = receive::<ToServer>(far.as_fd()).expect("received");
        assert!(matches!(received, Some((ToServer::Facts, _))));
    }
    drop(parent);
    assert!(begun[1] - begun[0] >= INTERVAL + long, "{begun:?}");
}

#[test]
fn facts_that_cannot_be_sent_are_a_reason() {
    for (read, expected) in [
        (Err("no <kernel>".to_owned()), "no <kernel>"),
        // More than 64 MiB.
        (Ok("x".repeat(65 << 20)), "longer than 64 MiB"),
    ] {
        let (mut parent, near, far) = conversation(Box::new(move || read.clone()));
        send(far.as_fd(), &ToParent::Wanted, &[]).expect("sent");
        assert!(parent.receive(near.as_fd()).expect("allowed"));
        let received = receive::<ToServer>(far.as_fd()).expect("received");
        let Some((ToServer::Unreadable(reason), _)) = received else {
            panic!("another message");
        };
        assert!(reason.contains(expected), "{reason}");
    }
}
