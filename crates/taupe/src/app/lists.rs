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
pub(super) enum Refused {
    #[error("it has no entry {0}; `taupe app list` prints those that it has")]
    NotThere(Application),
    #[error(
        "it chooses no applications, so all use the tunnel; to have {0} use it and all others go \
         past it, write AllowedApps = {0} under [Interface]"
    )]
    AllAllowed(Application),
    #[error(
        "{application} is in {} = {by} too, which has to be taken out, or replaced by what is meant",
        .key.name()
    )]
    Wider {
        application: Application,
        key: Key,
        by: Application,
    },
    #[error(
        "it would have no AllowedApps any more, and all applications that it does not disallow would \
         use the tunnel; if that is meant, delete the line of AllowedApps and `taupe reload`"
    )]
    NoneAllowed,
    #[error(
        "it would choose no applications any more, which is adapter mode, for all of them; if that is \
         meant, `taupe down` the tunnel, delete the last line that chooses applications, and \
         `taupe up`"
    )]
    NoneChosen,
}

/// Puts each application into at most one of the lists. Depending on the list that exists, this
/// adds an entry to one list or removes it from the other.
pub(super) fn edit(
    text: &[u8],
    place: AppPlace,
    applications: &[Application],
) -> Result<Zeroizing<Vec<u8>>, Refused> {
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
                return Err(Refused::NotThere(application.clone()));
            }
            (AppPlace::Allowed | AppPlace::Disallowed, None) => {
                not_wider(&text, out_of, application)?;
            }
            _ => {}
        }
    }
    if names_allowed && list(&text, AllowedApps).is_empty() {
        return Err(Refused::NoneAllowed);
    }
    Ok(text)
}

/// Fails if another entry of a list still covers an application that was removed from it.
fn not_wider(text: &[u8], keys: &[Key], application: &Application) -> Result<(), Refused> {
    for key in keys {
        let by = list(text, *key).into_iter();
        if let Some(by) = by.into_iter().find(|by| by.covers(application)) {
            return Err(Refused::Wider {
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

    fn edited(text: &str, place: AppPlace, applications: &[&str]) -> Result<String, Refused> {
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
    fn applications_go_where_they_are_wanted() {
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
    fn the_way_of_all_others_is_not_changed() {
        use AppPlace::{Allowed, Disallowed, Nowhere};
        let wider = |application, key, by| Refused::Wider {
            application: app(application),
            key,
            by: app(by),
        };
        for (text, place, applications, why) in [
            (
                ALLOWED,
                Disallowed,
                &["curl", "wget"][..],
                Refused::NoneAllowed,
            ),
            (ALLOWED, Nowhere, &["wget", "curl"], Refused::NoneAllowed),
            (
                ALLOWED,
                Nowhere,
                &["wget", "lynx"],
                Refused::NotThere(app("lynx")),
            ),
            (
                "AllowedApps = curl\nDisallowedApps = lynx\n",
                Disallowed,
                &["curl", "lynx"],
                Refused::NoneAllowed,
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
