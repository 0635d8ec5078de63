//! Moves of an application, from the key to the confirmed change.

use super::{ApplicationRow, Effect, Model, Notice, Screen};
use crate::reading::{List, Path};
use crate::text::Text;
use std::collections::BTreeSet;

/// A change of a tunnel's applications, as `taupe app` makes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Name of the tunnel.
    pub tunnel: String,
    /// The application as an entry of a file.
    pub entry: String,
    /// Its new place.
    pub place: Place,
}

/// A place of an application.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In the tunnel.
    Allowed,
    /// Outside the tunnel.
    Disallowed,
    /// In neither list.
    Nowhere,
}

impl Place {
    /// Returns the subcommand of `taupe app`.
    #[must_use]
    pub const fn verb(self) -> &'static str {
        match self {
            Self::Allowed => "allow",
            Self::Disallowed => "deny",
            Self::Nowhere => "remove",
        }
    }
}

impl Change {
    /// Returns the command that makes the change.
    pub(crate) fn command(&self) -> Text {
        let Self {
            tunnel,
            entry,
            place,
        } = self;
        Text::new(&format!("taupe app {} {tunnel} {entry}", place.verb()))
    }
}

/// Meaning of the next keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Browse,
    /// Characters go to the filter.
    Filter,
    Help,
    /// A digit chooses one of the tunnels.
    Choose {
        place: Place,
        tunnels: Vec<Text>,
    },
    Confirm(Change),
}

/// Tunnels that one can choose from, as many as there are digits.
const MAX_CHOICES: usize = 9;

impl Model {
    pub(super) fn begin_move(&mut self, place: Place) {
        if self.screen != Screen::Applications {
            self.complain("select an application on the screen Applications (3) first");
            return;
        }
        if self.is_busy {
            return;
        }
        let Some(application) = self.selected_application() else {
            self.complain("no application is selected");
            return;
        };
        let tunnels = self.candidates(application, place);
        match tunnels.as_slice() {
            [] => self.complain(
                "no tunnel applies: none that is up selects applications, or none has an entry for this one",
            ),
            [tunnel] => {
                let tunnel = tunnel.clone();
                self.confirm(&tunnel, place);
            }
            _ => self.mode = Mode::Choose { place, tunnels },
        }
    }

    /// Returns the tunnels to which a move can apply: to leave a tunnel, those that carry the
    /// application or have an entry for it.
    fn candidates(&self, application: &ApplicationRow, place: Place) -> Vec<Text> {
        let all = self.selecting_tunnels();
        let carrying = application.paths.iter().filter_map(|path| match path {
            Path::Tunnel(name) => Some(name),
            Path::Direct | Path::Blocked => None,
        });
        let ruling = application.rules.iter().map(|(name, _)| name);
        let own: BTreeSet<Text> = match place {
            Place::Allowed => BTreeSet::new(),
            Place::Disallowed => carrying.chain(ruling).cloned().collect(),
            Place::Nowhere => ruling.cloned().collect(),
        };
        let tunnels: Vec<Text> = match (place, own.is_empty()) {
            (Place::Nowhere, _) | (Place::Disallowed, false) => {
                all.intersection(&own).cloned().collect()
            }
            _ => all.into_iter().collect(),
        };
        tunnels.into_iter().take(MAX_CHOICES).collect()
    }

    pub(super) fn choose(&mut self, digit: char) {
        let Mode::Choose { place, tunnels } = &self.mode else {
            return;
        };
        let index = digit.to_digit(10).and_then(|digit| digit.checked_sub(1));
        let tunnel = index.and_then(|index| tunnels.get(usize::try_from(index).ok()?));
        if let Some(tunnel) = tunnel.cloned() {
            let place = *place;
            self.confirm(&tunnel, place);
        }
    }

    fn confirm(&mut self, tunnel: &Text, place: Place) {
        self.mode = Mode::Browse;
        let Some(application) = self.selected_application() else {
            return;
        };
        let mut rules = application.rules.iter();
        let rule = rules.find(|(name, _)| name == tunnel).map(|(_, rule)| rule);
        // An application that an entry already covers is moved by this entry.
        let entry = match (rule, place) {
            (Some(rule), Place::Allowed) if rule.list == List::Allowed => {
                let text = format!(
                    "{tunnel} already selects it, by AllowedApps = {}",
                    rule.entry
                );
                self.complain(&text);
                return;
            }
            (Some(rule), _) => Some(rule.entry.clone()),
            (None, _) => application.entry.clone(),
        };
        match entry {
            Some(entry) => {
                self.mode = Mode::Confirm(Change {
                    tunnel: tunnel.as_str().to_owned(),
                    entry,
                    place,
                });
            }
            None => self.complain("this path cannot be written as an entry of AllowedApps"),
        }
    }

    pub(super) fn accept(&mut self) -> Effect {
        match std::mem::replace(&mut self.mode, Mode::Browse) {
            Mode::Confirm(change) => {
                self.is_busy = true;
                let text = Text::new(&format!("{} …", change.command()));
                self.notice = Some(Notice {
                    text,
                    is_error: false,
                });
                Effect::Apply(change)
            }
            choose @ Mode::Choose { .. } => {
                self.mode = choose;
                Effect::None
            }
            Mode::Browse | Mode::Filter | Mode::Help => Effect::None,
        }
    }

    fn complain(&mut self, text: &str) {
        self.notice = Some(Notice {
            text: Text::new(text),
            is_error: true,
        });
    }
}
