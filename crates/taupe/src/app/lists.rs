//! The edits that `allow`, `deny` and `remove` make in a file's lists.
//!
//! An edit only affects the named applications. The first entry of `AllowedApps`, or the removal of
//! its last, would affect all other applications, so the user has to make that change in the file.

use crate::arguments::AppPlace;
use taupe_config::application::Application;
use taupe_config::file::Key;
use taupe_config::file::edit::{entries, with_application, without_application};
use zeroize::Zeroizing;

/// Reason why the lists stay unchanged.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum ListError {
    #[error("it has no entry {0}; `taupe app list` prints its entries")]
    NoEntry(Application),
    #[error(
        "it selects no applications, so all use the tunnel; to let only {0} use it, write \
         AllowedApps = {0} under [Interface]"
    )]
    AllAllowed(Application),
    #[error(
        "{} = {by} also covers {application}; remove this entry, or replace it with narrower ones",
        .key.name()
    )]
    Covered {
        application: Application,
        key: Key,
        by: Application,
    },
    #[error(
        "it would have no AllowedApps any more, so all applications that it does not disallow would \
         use the tunnel; if you want that, delete the line of AllowedApps and `taupe reload`"
    )]
    NoneAllowed,
    #[error(
        "it would select no applications any more, which means adapter mode for all of them; if you \
         want that, `taupe down` the tunnel, delete the last line that selects applications, and \
         `taupe up`"
    )]
    NoneSelected,
}

/// Puts each application into at most one of the lists. Depending on the list that exists, this
/// adds an entry to one list or removes it from the other.
pub(super) fn edit(
    text: &[u8],
    place: AppPlace,
    applications: &[Application],
) -> Result<Zeroizing<Vec<u8>>, ListError> {
    use Key::{AllowedApps, DisallowedApps};
    let names_allowed = !list(text, AllowedApps).is_empty();
    let mut text = Zeroizing::new(text.to_vec());
    for application in applications {
        // If there is an AllowedApps list, it decides about applications in neither list.
        let (into, out_of) = match (place, names_allowed) {
            (AppPlace::Allowed, true) => (Some(AllowedApps), &[DisallowedApps][..]),
            (AppPlace::Allowed, false) => (None, &[DisallowedApps][..]),
            (AppPlace::Disallowed, true) => (None, &[AllowedApps][..]),
            (AppPlace::Disallowed, false) => (Some(DisallowedApps), &[AllowedApps][..]),
            (AppPlace::Nowhere, _) => (None, &[AllowedApps, DisallowedApps][..]),
        };
        if let Some(key) = into
            && without_application(&text, key, application).is_none()
        {
            text = with_application(&text, key, application);
        }
        let mut found = false;
        for key in out_of {
            if let Some(rest) = without_application(&text, *key, application) {
                found = true;
                text = rest;
            }
        }
        match (place, into) {
            (AppPlace::Nowhere, _) if !found => {
                return Err(ListError::NoEntry(application.clone()));
            }
            (AppPlace::Allowed | AppPlace::Disallowed, None) => {
                check_not_covered(&text, out_of, application)?;
            }
            _ => {}
        }
    }
    if names_allowed && list(&text, AllowedApps).is_empty() {
        return Err(ListError::NoneAllowed);
    }
    Ok(text)
}

/// Fails if another entry of a list still covers an application that was removed from it.
fn check_not_covered(
    text: &[u8],
    keys: &[Key],
    application: &Application,
) -> Result<(), ListError> {
    for key in keys {
        let by = list(text, *key).into_iter();
        if let Some(by) = by.into_iter().find(|by| by.covers(application)) {
            return Err(ListError::Covered {
                application: application.clone(),
                key: *key,
                by,
            });
        }
    }
    Ok(())
}

fn list(text: &[u8], key: Key) -> Vec<Application> {
    let entries = entries(text, key).into_iter();
    entries
        .filter_map(|entry| entry.text.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(text: &str, place: AppPlace, applications: &[&str]) -> Result<String, ListError> {
        let applications = applications.iter().map(|text| text.parse());
        let applications: Result<Vec<_>, _> = applications.collect();
        let applications = applications.expect("applications");
        let text = edit(text.as_bytes(), place, &applications)?;
        Ok(String::from_utf8(text.to_vec()).expect("UTF-8"))
    }

    fn app(text: &str) -> Application {
        text.parse().expect("an application")
    }

    const ALLOWED: &str = "[Interface]\n#@ws:AllowedApps = curl, wget\nMTU = 1420\n";
    const DISALLOWED: &str = "[Interface]\nDisallowedApps = curl, wget\n";

    #[test]
    fn each_edit_puts_applications_into_the_right_list() {
        use AppPlace::{Allowed, Disallowed, Nowhere};
        for (text, place, applications, after) in [
            (ALLOWED, Allowed, &["curl"][..], ALLOWED),
            (
                ALLOWED,
                Allowed,
                &["lynx"],
                "[Interface]\n#@ws:AllowedApps = curl, wget, lynx\nMTU = 1420\n",
            ),
            (
                ALLOWED,
                Disallowed,
                &["curl"],
                "[Interface]\n#@ws:AllowedApps = wget\nMTU = 1420\n",
            ),
            (
                ALLOWED,
                Nowhere,
                &["curl"],
                "[Interface]\n#@ws:AllowedApps = wget\nMTU = 1420\n",
            ),
            // The application already bypasses the tunnel.
            (ALLOWED, Disallowed, &["lynx"], ALLOWED),
            (
                "AllowedApps = a\nDisallowedApps = b\n",
                Allowed,
                &["b"],
                "AllowedApps = a, b\n",
            ),
            (
                DISALLOWED,
                Disallowed,
                &["lynx"],
                "[Interface]\nDisallowedApps = curl, wget, lynx\n",
            ),
            // Other applications use the tunnel before and after.
            (
                DISALLOWED,
                Allowed,
                &["curl"],
                "[Interface]\nDisallowedApps = wget\n",
            ),
            (DISALLOWED, Allowed, &["lynx"], DISALLOWED),
            (
                "[Interface]\n",
                Disallowed,
                &["curl"],
                "[Interface]\nDisallowedApps = curl\n",
            ),
        ] {
            let edited = edited(text, place, applications);
            assert_eq!(
                edited.as_deref(),
                Ok(after),
                "{place:?} {applications:?} {text}"
            );
        }
    }

    #[test]
    fn edits_that_would_affect_other_applications_are_refused() {
        use AppPlace::{Allowed, Disallowed, Nowhere};
        let wider = |application, key, by| ListError::Covered {
            application: app(application),
            key,
            by: app(by),
        };
        for (text, place, applications, why) in [
            (
                ALLOWED,
                Disallowed,
                &["curl", "wget"][..],
                ListError::NoneAllowed,
            ),
            (ALLOWED, Nowhere, &["wget", "curl"], ListError::NoneAllowed),
            (
                ALLOWED,
                Nowhere,
                &["wget", "lynx"],
                ListError::NoEntry(app("lynx")),
            ),
            (
                "AllowedApps = curl\nDisallowedApps = lynx\n",
                Disallowed,
                &["curl", "lynx"],
                ListError::NoneAllowed,
            ),
            // Another entry still covers it.
            (
                "AllowedApps = firefox, fire*\n",
                Disallowed,
                &["firefox"],
                wider("firefox", Key::AllowedApps, "fire*"),
            ),
            (
                "DisallowedApps = /opt/\n",
                Allowed,
                &["/opt/a"],
                wider("/opt/a", Key::DisallowedApps, "/opt/"),
            ),
        ] {
            let edited = edited(text, place, applications);
            assert_eq!(edited, Err(why), "{place:?} {applications:?} {text}");
        }
    }
}
