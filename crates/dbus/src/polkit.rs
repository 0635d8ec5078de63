//! The question to polkit whether a caller may do something.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use taupe_service::Class;
use thiserror::Error;
use zbus::{Connection, Variant};

const AUTHORITY: &str = "org.freedesktop.PolicyKit1";
const AUTHORITY_PATH: &str = "/org/freedesktop/PolicyKit1/Authority";
const AUTHORITY_INTERFACE: &str = "org.freedesktop.PolicyKit1.Authority";

/// `AllowUserInteraction` of polkit's `CheckAuthorizationFlags`.
const ALLOW_USER_INTERACTION: u32 = 1;

/// Time for polkit to answer, and for a user to authenticate.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// Reason why a caller needs an administrator for anything.
const NOT_ACTIVE: &str = "the session is not active, and the user is not in the group taupe";

/// Characters of the reasons in a dialogue, at most.
const MAX_REASONS: usize = 300;

/// Characters of another text in a dialogue, at most.
const MAX_DETAIL: usize = 100;

/// Users of this machine. Users from other sources appear with their ID only.
const USERS: &str = "/etc/passwd";

/// Reason why a caller is not authorised.
#[derive(Debug, Error)]
pub(crate) enum NotAuthorized {
    /// polkit refuses.
    #[error("polkit refused the request ({0})")]
    Refused(&'static str),
    /// An administrator could authorise it, and nobody can be asked.
    #[error(
        "an administrator must authorise this: {0}; polkit found no agent to ask: run it in a session with an \
         agent, or with sudo"
    )]
    Challenge(String),
    /// Nobody authenticates in time.
    #[error("nobody authorised the request within {} seconds", PATIENCE.as_secs())]
    Late,
    /// polkit does not answer, which counts as a refusal.
    #[error("polkit cannot be asked: {0}")]
    Unknown(#[from] zbus::Error),
}

/// A question to polkit.
pub(crate) struct Question<'a> {
    /// Unique name of the caller's connection. The bus never uses it for another connection. A process ID
    /// could be that of another process when polkit looks (CVE-2013-4288).
    pub(crate) sender: &'a str,
    /// The class that the request needs.
    pub(crate) class: Class,
    /// Reasons why it needs this class.
    pub(crate) reasons: &'a [String],
    /// The caller's user ID, for the dialogue.
    pub(crate) caller: u32,
    /// The request in words, for the dialogue.
    pub(crate) request: &'a str,
    /// The tunnel, for the dialogue.
    pub(crate) tunnel: &'a str,
    /// True if the caller waits while a user is asked.
    pub(crate) is_interactive: bool,
}

/// Returns polkit's action for a class.
fn action(class: Class) -> &'static str {
    match class {
        Class::User => "org.taupe.use",
        Class::Admin => "org.taupe.administer",
    }
}

/// polkit's answer.
#[derive(Clone, Copy)]
struct Verdict {
    is_authorized: bool,
    /// True if an administrator could still authorise it.
    is_challenge: bool,
}

/// Refuses a caller for whom no request can be authorised. The service then reads nothing of this caller.
pub(crate) fn admit(
    bus: &Connection,
    sender: &str,
    is_interactive: bool,
) -> Result<(), NotAuthorized> {
    let mut refusal = NotAuthorized::Refused(action(Class::User));
    for class in [Class::User, Class::Admin] {
        let verdict = check(bus, sender, action(class), &HashMap::new(), 0)?;
        if verdict.is_authorized || verdict.is_challenge && is_interactive {
            return Ok(());
        }
        if verdict.is_challenge {
            refusal = NotAuthorized::Challenge(NOT_ACTIVE.to_owned());
        }
    }
    Err(refusal)
}

/// Asks polkit. If the caller waits, polkit may ask a user.
pub(crate) fn authorize(bus: &Connection, question: &Question<'_>) -> Result<(), NotAuthorized> {
    let Question {
        sender,
        class,
        reasons,
        is_interactive,
        ..
    } = *question;
    let action = action(class);
    let flags = if is_interactive {
        ALLOW_USER_INTERACTION
    } else {
        0
    };
    let verdict = check(bus, sender, action, &details(question), flags)?;
    match (verdict.is_authorized, verdict.is_challenge) {
        (true, _) => Ok(()),
        (false, true) => Err(NotAuthorized::Challenge(match class {
            Class::Admin => reasons.join("; "),
            Class::User => NOT_ACTIVE.to_owned(),
        })),
        (false, false) => Err(NotAuthorized::Refused(action)),
    }
}

/// Makes a check of polkit. The connection limits its time.
fn check(
    bus: &Connection,
    sender: &str,
    action: &str,
    details: &HashMap<&str, String>,
    flags: u32,
) -> Result<Verdict, NotAuthorized> {
    static CHECKS: AtomicU64 = AtomicU64::new(0);
    let subject = (
        "system-bus-name",
        HashMap::from([("name", Variant::from(sender))]),
    );
    let id = format!("taupe-{}", CHECKS.fetch_add(1, Ordering::Relaxed));
    let answer = zbus::block_on(bus.call_method(
        Some(AUTHORITY),
        AUTHORITY_PATH,
        Some(AUTHORITY_INTERFACE),
        "CheckAuthorization",
        &(subject, action, details, flags, &*id),
    ));
    if let Err(zbus::Error::InputOutput(error)) = &answer
        && error.kind() == io::ErrorKind::TimedOut
    {
        // The dialogue closes. If it cannot be closed, its answer has no effect.
        let _ = zbus::block_on(bus.call_method(
            Some(AUTHORITY),
            AUTHORITY_PATH,
            Some(AUTHORITY_INTERFACE),
            "CancelCheckAuthorization",
            &id,
        ));
        return Err(NotAuthorized::Late);
    }
    let answer = answer?;
    let body = answer.body();
    let ((is_authorized, is_challenge, _details),): ((bool, bool, HashMap<String, String>),) =
        body.deserialize()?;
    Ok(Verdict {
        is_authorized,
        is_challenge,
    })
}

/// Returns the details of a question. polkit puts them into the message of the action.
fn details(question: &Question<'_>) -> HashMap<&'static str, String> {
    let user = user(
        question.caller,
        &fs::read_to_string(USERS).unwrap_or_default(),
    );
    HashMap::from([
        ("user", plain(&user, MAX_DETAIL)),
        ("request", plain(question.request, MAX_DETAIL)),
        ("tunnel", plain(question.tunnel, MAX_DETAIL)),
        ("reasons", plain(&question.reasons.join("; "), MAX_REASONS)),
    ])
}

/// Returns a user's ID, and the name that a file in the format of `passwd(5)` has for it.
fn user(id: u32, users: &str) -> String {
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(id)).then_some(name)
    });
    match name {
        Some(name) => format!("{name} (user ID {id})"),
        None => format!("user ID {id}"),
    }
}

/// Returns the beginning of a text, without characters that could change how a dialogue shows it.
fn plain(text: &str, most: usize) -> String {
    let shown = |c: char| match c {
        // Marks that reverse the direction of text.
        '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => ' ',
        c if c.is_control() => ' ',
        c => c,
    };
    let mut plain: String = text.chars().take(most).map(shown).collect();
    if text.chars().nth(most).is_some() {
        plain.pop();
        plain.push('…');
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::{NotAuthorized, Question, admit, authorize, details, user};
    use std::collections::HashMap;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;
    use std::thread::{self, JoinHandle};
    use std::time::Duration;
    use taupe_service::Class;
    use zbus::connection::Builder;
    use zbus::{Connection, Guid, MessageStream};

    const POLICY: &str = include_str!("../../../packaging/service/org.taupe.policy");

    #[test]
    fn no_consent_covers_a_second_request() {
        assert!(POLICY.contains("<allow_active>auth_admin</allow_active>"));
        assert!(!POLICY.contains("_keep"));
    }

    #[test]
    fn an_administrator_reads_who_requests_what_and_why() {
        let reasons = [
            "the file has commands,\nwhich run as root".to_owned(),
            format!("\u{1b}[2J\u{202e}{}", "x".repeat(1000)),
        ];
        let question = Question {
            sender: ":1.1",
            class: Class::Admin,
            reasons: &reasons,
            caller: 4_294_967_294,
            request: "bring up",
            tunnel: "home",
            is_interactive: true,
        };
        let details = details(&question);
        assert_eq!(details["user"], "user ID 4294967294");
        assert_eq!(details["request"], "bring up");
        assert_eq!(details["tunnel"], "home");
        let reasons = &details["reasons"];
        assert!(
            reasons.starts_with("the file has commands, which run as root; "),
            "{reasons}"
        );
        assert_eq!(reasons.chars().count(), 300);
        assert!(
            !reasons.chars().any(|c| c.is_control() || c == '\u{202e}'),
            "{reasons:?}"
        );
        let (_, administer) = POLICY
            .split_once("org.taupe.administer")
            .expect("the action");
        for key in details.keys() {
            assert!(administer.contains(&format!("$({key})")), "{key}");
        }
    }

    #[test]
    fn a_user_has_a_name_if_the_file_has_one() {
        let users = "root:x:0:0::/:/bin/sh\nalice:x:5001:5001::/:/bin/sh\n+::::::\n";
        assert_eq!(user(5001, users), "alice (user ID 5001)");
        assert_eq!(user(5002, users), "user ID 5002");
    }

    /// Returns a connection to a simulated polkit, which gives these answers and then none. The thread
    /// returns the calls.
    fn polkit(answers: Vec<(bool, bool)>) -> (Connection, JoinHandle<Vec<String>>) {
        let (near, far) = UnixStream::pair().expect("sockets");
        let (ready, is_ready) = mpsc::channel();
        let authority = thread::spawn(move || {
            let bus = Builder::unix_stream(far).server(Guid::generate());
            let bus = zbus::block_on(bus.p2p().build()).expect("polkit's end");
            let mut stream = MessageStream::from(&bus);
            ready.send(()).expect("the test");
            let mut answers = answers.into_iter();
            let mut calls = Vec::new();
            while let Some(Ok(call)) = crate::bus::next(&mut stream) {
                let header = call.header();
                let member = header.member().expect("a method").to_string();
                let is_check = member == "CheckAuthorization";
                calls.push(member);
                let sent = match (is_check, answers.next()) {
                    (true, None) => continue,
                    (true, Some((is_authorized, is_challenge))) => {
                        let details = HashMap::<String, String>::new();
                        let answer = ((is_authorized, is_challenge, details),);
                        zbus::block_on(bus.reply(&header, &answer))
                    }
                    (false, _) => zbus::block_on(bus.reply(&header, &())),
                };
                sent.expect("an answer");
            }
            calls
        });
        let bus = Builder::unix_stream(near).p2p();
        let bus = zbus::block_on(bus.method_timeout(Duration::from_millis(300)).build());
        // A call before that would be lost.
        is_ready.recv().expect("polkit's end");
        (bus.expect("a connection"), authority)
    }

    #[test]
    fn a_dialogue_that_nobody_answers_is_closed() {
        let (bus, authority) = polkit(Vec::new());
        let question = Question {
            sender: ":1.1",
            class: Class::User,
            reasons: &[],
            caller: 1000,
            request: "bring up",
            tunnel: "u-home",
            is_interactive: true,
        };
        let refused = authorize(&bus, &question);
        assert!(matches!(refused, Err(NotAuthorized::Late)), "{refused:?}");
        drop(bus);
        let calls = authority.join().expect("polkit");
        assert_eq!(calls, ["CheckAuthorization", "CancelCheckAuthorization"]);
    }

    #[test]
    fn a_caller_without_any_right_is_refused_at_once() {
        for (answers, is_interactive, is_admitted) in [
            (vec![(true, false)], false, true),
            (vec![(false, true)], true, true),
            // Only an administrator's requests are authorised.
            (vec![(false, false), (true, false)], false, true),
            (vec![(false, true), (false, true)], false, false),
            (vec![(false, false), (false, false)], true, false),
        ] {
            let (bus, authority) = polkit(answers.clone());
            let admitted = admit(&bus, ":1.1", is_interactive);
            assert_eq!(admitted.is_ok(), is_admitted, "{answers:?}: {admitted:?}");
            drop(bus);
            let calls = authority.join().expect("polkit");
            assert_eq!(calls.len(), answers.len());
        }
    }
}
