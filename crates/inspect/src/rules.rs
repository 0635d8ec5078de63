//! Resolution of application rules on this system: users become ids, symbolic links their targets.

use crate::app_warnings;
use taupe_config::application::{AppRules, Rule};

/// Looks up the users that rules name, and the targets of symbolic links.
///
/// # Errors
/// Returns a rule whose user does not exist.
pub fn resolve(rules: &mut AppRules) -> Result<(), &Rule> {
    rules.follow_links(app_warnings::target);
    rules.resolve_users(user_id)
}

/// Returns a user's id from `/etc/passwd` or another source of the system (nsswitch).
fn user_id(name: &str) -> Option<u32> {
    let user = nix::unistd::User::from_name(name).ok().flatten()?;
    Some(user.uid.as_raw())
}

/// Resolves the users and links of a rule set. Rules about unknown users match nothing.
pub fn resolved(mut rules: AppRules) -> AppRules {
    let _ = resolve(&mut rules);
    rules
}
