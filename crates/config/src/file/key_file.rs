//! Values that are cryptographic keys: a key itself, or `file:` and the path of a file that
//! holds it.

use thiserror::Error;
use zeroize::Zeroizing;

use super::diagnostic::{DiagnosticKind, KeyProblem};
use super::line::{Clean, Piece, is_blank};
use super::value::Value;
use super::word::Key;
use taupe_uapi::key::{Encoding, KeyError, PqKeyError};

/// Prefix of a path in the place of a key.
pub(super) const KEY_FILE: &str = "file:";

/// The longest file of a key, in bytes.
pub const MAX_KEY_FILE: usize = 4096;

/// Reads the file of a key by its path as the configuration has it, up to [`MAX_KEY_FILE`].
/// A relative path begins at the folder of the configuration.
pub type KeyFiles<'a> = &'a dyn Fn(&str) -> Result<KeyFile, KeyFileProblem>;

/// Content of a key's file.
pub struct KeyFile {
    /// The text. It is a secret, or may be one by mistake.
    pub text: Zeroizing<Vec<u8>>,
    /// Permissions that every user of the system has (the last octal digit of the mode);
    /// 0 if they cannot enter its folder.
    pub others: u32,
}

/// Reasons why the file of a key cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum KeyFileProblem {
    /// The system's reason.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// More than [`MAX_KEY_FILE`].
    #[error("is longer than {MAX_KEY_FILE} bytes, which no key is")]
    TooLong,
    /// Bytes that are not UTF-8.
    #[error("is not text; a key is written in base64")]
    NotText,
    /// The configuration comes from a place without files.
    #[error("cannot be read here")]
    NotHere,
}

/// Treatment of [`KEY_FILE`] and a path in the place of a key.
#[derive(Clone, Copy)]
pub(super) enum KeyPaths<'a> {
    /// A path is no key.
    Refuse,
    /// The key is left out of the file, which counts as having it.
    Omit,
    /// The key is read.
    Read(KeyFiles<'a>),
}

impl<'a> KeyPaths<'a> {
    /// Checks whether the value of a key is left out.
    pub(super) fn omit(self, key: Key, value: Piece<'_>) -> bool {
        matches!(self, Self::Omit) && key.has_files() && value.text.starts_with(KEY_FILE)
    }

    /// Returns the reader of files, unless a path is no key.
    pub(super) fn files(self) -> Option<KeyFiles<'a>> {
        match self {
            Self::Read(files) => Some(files),
            Self::Refuse | Self::Omit => None,
        }
    }
}

/// A key that has been read.
pub(super) struct Sourced<T> {
    pub(super) key: T,
    /// The path after `file:`, unless the key itself stands in the configuration.
    pub(super) file: Option<String>,
    /// [`KeyFile::others`], or 0 for a key in the configuration itself.
    pub(super) others: u32,
}

/// Text of a key, before it is decoded.
enum Source<'a> {
    Here(Clean<'a>),
    File { path: String, file: KeyFile },
}

impl<'a> Source<'a> {
    /// Reads a value, and the file that it names. Without `files`, as for `wg`, a path is no
    /// key.
    fn read(key: Key, value: Piece<'a>, files: Option<KeyFiles<'_>>) -> Value<'a, Self> {
        let Some(path) = value.text.strip_prefix(KEY_FILE) else {
            return Ok(Self::Here(value.clean()));
        };
        let Some(files) = files else {
            let problem = KeyProblem::Path;
            return Err((value, DiagnosticKind::NotAKey { key, problem }));
        };
        let path = path.trim_matches(is_blank);
        let text = |file: KeyFile| match core::str::from_utf8(&file.text) {
            Ok(_) => Ok(file),
            Err(_) => Err(KeyFileProblem::NotText),
        };
        let file = files(path).and_then(text);
        let file = file.map_err(|problem| (value, DiagnosticKind::KeyFile { key, problem }))?;
        let path = path.to_owned();
        Ok(Self::File { path, file })
    }

    /// Decodes the key.
    fn decode<T, E>(
        self,
        decode: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Sourced<T>, (Self, E)> {
        let text = match &self {
            Self::Here(text) => text,
            Self::File { file, .. } => decoded(&file.text),
        };
        match (decode(text), self) {
            (Ok(key), Self::Here(_)) => Ok(Sourced {
                key,
                file: None,
                others: 0,
            }),
            (Ok(key), Self::File { path, file }) => Ok(Sourced {
                key,
                file: Some(path),
                others: file.others,
            }),
            (Err(error), source) => Err((source, error)),
        }
    }
}

/// Text of a key's file, without the end of its line.
pub(super) fn decoded(text: &[u8]) -> &str {
    // Only `strip` comes with other bytes, and does not judge them.
    let text = core::str::from_utf8(text).unwrap_or_default();
    text.trim_matches(is_blank)
}

/// Reads a key with one of [`Encoding`]'s functions.
pub(super) fn key<'a, T, E: Refusal>(
    key: Key,
    value: Piece<'a>,
    files: Option<KeyFiles<'_>>,
    read: fn(Encoding, &str) -> Result<T, E>,
) -> Value<'a, Sourced<T>> {
    let source = Source::read(key, value, files)?;
    source
        .decode(|text| read(Encoding::Base64, text))
        .map_err(|(source, error)| match (source, error.place()) {
            // A key is as long as a key, also when it begins with a slash.
            (Source::Here(text), Place::Length) if is_path(&text) => {
                let problem = KeyProblem::Path;
                (value, DiagnosticKind::NotAKey { key, problem })
            }
            (Source::Here(text), Place::Character(position)) => {
                (value.nth(position), error.diagnostic(key, &text))
            }
            (Source::Here(text), _) => (value, error.diagnostic(key, &text)),
            (Source::File { file, .. }, _) => (value, error.diagnostic(key, decoded(&file.text))),
        })
}

/// Reason why a text is no key of some kind.
pub(super) trait Refusal {
    /// Returns the part of the text that is wrong.
    fn place(&self) -> Place;

    /// Returns the diagnostic for the value of `key`, of which `text` is the text.
    fn diagnostic(self, key: Key, text: &str) -> DiagnosticKind;
}

/// Wrong part of a text that is no key.
pub(super) enum Place {
    /// Its length.
    Length,
    /// The character at this position, counted from 1.
    Character(usize),
    /// All of it.
    Text,
}

impl Refusal for KeyError {
    fn place(&self) -> Place {
        match *self {
            Self::Length { .. } => Place::Length,
            Self::Character { position } => Place::Character(position),
            Self::TrailingBits => Place::Character(43),
        }
    }

    fn diagnostic(self, key: Key, text: &str) -> DiagnosticKind {
        let problem = match self {
            Self::Length { .. } if is_hex(text) => KeyProblem::Hex,
            Self::Length { .. } if Encoding::Base64.is_pq_length(text.len()) => KeyProblem::MlKem,
            Self::Length { .. } => KeyProblem::Length {
                found: text.chars().count(),
            },
            Self::Character { .. } => KeyProblem::Character,
            Self::TrailingBits => KeyProblem::TrailingBits,
        };
        DiagnosticKind::NotAKey { key, problem }
    }
}

impl Refusal for PqKeyError {
    fn place(&self) -> Place {
        match *self {
            Self::Length { .. } => Place::Length,
            Self::Character { position } => Place::Character(position),
            Self::Classic
            | Self::PrivateForPublic
            | Self::PublicForPrivate
            | Self::TrailingBits
            | Self::Modulus => Place::Text,
        }
    }

    fn diagnostic(self, key: Key, _: &str) -> DiagnosticKind {
        DiagnosticKind::NotAPqKey { key, problem: self }
    }
}

fn is_hex(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Checks whether a text that is no key looks like a path.
fn is_path(text: &str) -> bool {
    let begins = ["/", "./", "../", "~", "$"];
    let ends = [".key", ".psk", ".pub", ".txt", ".conf", ".pem"];
    begins.iter().any(|begin| text.starts_with(begin)) || ends.iter().any(|end| text.ends_with(end))
}
