//! Rules about applications, resolved on this system: users by number, symbolic links by target.

use crate::app_warnings;
use taupe_config::application::{AppRules, Rule};

/// Looks up the users that rules name, and the targets of symbolic links.
///
/// # Errors
/// A rule about a user whom the system does not know.
pub fn resolve(rules: &mut AppRules) -> Result<(), &Rule> {
    rules.follow_links(app_warnings::target);
    rules.resolve_users(user_id)
}

/// The number of the user of this name, by `/etc/passwd` and whatever else the
/// system asks.
fn user_id(name: &str) -> Option<u32> {
    let user = nix::unistd::User::from_name(name).ok().flatten()?;
    Some(user.uid.as_raw())
}

/// Resolves the users and links of a rule set on this system. A user whom the system does not know
/// runs nothing.
pub fn resolved(mut rules: AppRules) -> AppRules {
    let _ = resolve(&mut rules);
    rules
}
