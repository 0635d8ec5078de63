//! The question to polkit whether a caller may do something.

use std::collections::HashMap;

use taupe_service::Class;
use thiserror::Error;
use zbus::{Connection, Variant};

const AUTHORITY: &str = "org.freedesktop.PolicyKit1";
const AUTHORITY_PATH: &str = "/org/freedesktop/PolicyKit1/Authority";
const AUTHORITY_INTERFACE: &str = "org.freedesktop.PolicyKit1.Authority";

/// `AllowUserInteraction` of polkit's `CheckAuthorizationFlags`.
const ALLOW_USER_INTERACTION: u32 = 1;

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

/// Asks polkit. The connection has no time limit, because a user may have to be asked.
pub(crate) fn authorize(bus: &Connection, question: &Question<'_>) -> Result<(), NotAuthorized> {
    let Question {
        sender,
        class,
        reasons,
        tunnel,
        is_interactive,
    } = *question;
    let action = action(class);
    let subject = (
        "system-bus-name",
        HashMap::from([("name", Variant::from(sender))]),
    );
    // polkit puts it into the message of the action.
    let details = HashMap::from([("tunnel", tunnel)]);
    let flags = if is_interactive {
        ALLOW_USER_INTERACTION
    } else {
        0
    };
    let answer = zbus::block_on(bus.call_method(
        Some(AUTHORITY),
        AUTHORITY_PATH,
        Some(AUTHORITY_INTERFACE),
        "CheckAuthorization",
        &(subject, action, details, flags, ""),
    ))?;
    let body = answer.body();
    let ((is_authorized, is_challenge, _details),): ((bool, bool, HashMap<String, String>),) =
        body.deserialize()?;
    match (is_authorized, is_challenge) {
        (true, _) => Ok(()),
        (false, true) => Err(NotAuthorized::Challenge(match class {
            Class::Admin => reasons.join("; "),
            Class::User => {
                "the session is not active, and the user is not in the group taupe".to_owned()
            }
        })),
        (false, false) => Err(NotAuthorized::Refused(action)),
    }
}
