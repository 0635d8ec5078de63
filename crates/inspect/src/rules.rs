//! Resolution of application rules on this system: users become ids, symbolic links their targets.

use crate::app_warnings;
use taupe_config::application::{AppRules, UnknownUser};
use taupe_os_linux::users::user_id;

/// Looks up the users that rules name, and the targets of symbolic links.
///
/// # Errors
/// Returns a user that does not exist.
pub fn resolve(rules: &mut AppRules) -> Result<(), UnknownUser> {
    follow_links(rules);
    rules.resolve_users(user_id)
}

/// Looks up the targets of symbolic links that rules name.
pub fn follow_links(rules: &mut AppRules) {
    rules.follow_links(app_warnings::link_target);
}

/// Resolves the users and links of a rule set. Rules about unknown users match nothing.
#[must_use]
pub fn resolved(mut rules: AppRules) -> AppRules {
    let _ = resolve(&mut rules);
    rules
}
