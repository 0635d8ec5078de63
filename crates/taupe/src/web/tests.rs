use super::*;
use std::os::fd::{AsFd as _, OwnedFd};
use taupe_os_linux::message_socket;

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

type Reader<'a> = Box<dyn FnMut() -> Result<String, String> + 'a>;

/// A conversation, its socket and that of its child.
fn conversation<'a>(read: Reader<'a>) -> (Conversation<Reader<'a>>, OwnedFd, OwnedFd) {
    let addresses = Addresses {
        tcp: None,
        unix: None,
        path: Secret::random().expect("randomness"),
    };
    let mut conversation = Conversation::new(addresses, next_token(0).expect("randomness"), read);
    conversation.terminal.has_input = false;
    let (near, far) = message_socket::pair().expect("sockets");
    (conversation, near, far)
}

fn nothing() -> Result<String, String> {
    Ok("facts".to_owned())
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
