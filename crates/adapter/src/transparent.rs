//! Settings of transparent mode that cannot change while a tunnel is up.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The settings of a tunnel in transparent mode that a reload cannot change. The default is for a
/// tunnel that is not in this mode, or that has none of these settings.
///
/// A journal stores them as text, with [`Display`](fmt::Display) and [`FromStr`].
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct TransparentSettings {
    /// True if the file has no key of transparent mode, and the command line requested the mode for
    /// all applications.
    pub for_all: bool,
    /// The addresses for address translation, if packets are translated instead of marked.
    pub translation: Option<Translation>,
}

/// The addresses for address translation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Translation {
    /// The tunnel's own addresses.
    pub addresses: Vec<IpAddr>,
    /// The tunnel's name servers.
    pub servers: Vec<IpAddr>,
}

/// Error of text that is not in the format of [`TransparentSettings`].
#[derive(Debug, Error)]
#[error("not the settings of a tunnel in transparent mode: {0:?}")]
pub struct NotTransparentSettings(String);

const FOR_ALL: &str = "--transparent; ";
const ADDRESSES: &str = "Address = ";
const SERVERS: &str = " and DNS = ";
const NO_SERVERS: &str = " and no DNS";
const SEPARATOR: &str = ", ";

impl TransparentSettings {
    /// Returns true if the tunnel has none of these settings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for TransparentSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.for_all {
            f.write_str(FOR_ALL)?;
        }
        self.translation.iter().try_for_each(|it| write!(f, "{it}"))
    }
}

/// Formats the addresses as keys of a file.
impl fmt::Display for Translation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(ADDRESSES)?;
        write_list(&self.addresses, f)?;
        if self.servers.is_empty() {
            return f.write_str(NO_SERVERS);
        }
        f.write_str(SERVERS)?;
        write_list(&self.servers, f)
    }
}

fn write_list(addresses: &[IpAddr], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (position, address) in addresses.iter().enumerate() {
        if position > 0 {
            f.write_str(SEPARATOR)?;
        }
        write!(f, "{address}")?;
    }
    Ok(())
}

impl FromStr for TransparentSettings {
    type Err = NotTransparentSettings;

    fn from_str(text: &str) -> Result<Self, NotTransparentSettings> {
        let rest = text.strip_prefix(FOR_ALL);
        let translation = match rest.unwrap_or(text) {
            "" => None,
            keys => {
                let translation = translation(keys);
                Some(translation.ok_or_else(|| NotTransparentSettings(text.to_owned()))?)
            }
        };
        Ok(Self {
            for_all: rest.is_some(),
            translation,
        })
    }
}

fn translation(keys: &str) -> Option<Translation> {
    let list = |text: &str| {
        let addresses = text.split(SEPARATOR).map(|address| address.parse().ok());
        addresses.collect::<Option<Vec<IpAddr>>>()
    };
    let keys = keys.strip_prefix(ADDRESSES)?;
    let (addresses, servers) = match keys.strip_suffix(NO_SERVERS) {
        Some(addresses) => (addresses, Vec::new()),
        None => {
            let (addresses, servers) = keys.split_once(SERVERS)?;
            (addresses, list(servers)?)
        }
    };
    Some(Translation {
        addresses: list(addresses)?,
        servers,
    })
}

impl From<TransparentSettings> for String {
    fn from(settings: TransparentSettings) -> Self {
        settings.to_string()
    }
}

impl TryFrom<String> for TransparentSettings {
    type Error = NotTransparentSettings;

    fn try_from(text: String) -> Result<Self, NotTransparentSettings> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_journals_have_them() {
        for text in [
            "",
            "--transparent; ",
            "Address = 10.0.0.2 and no DNS",
            "Address = 10.0.0.2, fd00::2 and DNS = 10.0.0.1, fd00::1",
            "--transparent; Address = fd00::2 and DNS = 10.0.0.1",
        ] {
            let settings: TransparentSettings = text.parse().expect(text);
            assert_eq!(settings.to_string(), text);
            assert_eq!(settings.is_empty(), text.is_empty());
            assert_eq!(settings.for_all, text.starts_with("--transparent"));
        }
        let both: TransparentSettings = "Address = 10.0.0.2, fd00::2 and DNS = 10.0.0.1"
            .parse()
            .expect("in order");
        let translation = both.translation.expect("a translation");
        assert_eq!(translation.addresses.len(), 2);
        assert_eq!(
            translation.servers,
            ["10.0.0.1".parse::<IpAddr>().expect("")]
        );
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "x",
            "Address = ",
            "Address =  and no DNS",
            "Address = 10.0.0.2",
            "Address = 10.0.0.2 and DNS = ",
            "--transparent",
        ] {
            assert!(text.parse::<TransparentSettings>().is_err(), "{text}");
        }
    }
}
