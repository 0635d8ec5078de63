//! Values that are cryptographic keys: the key itself, or `file:` and the path of a file with the
//! key.

use thiserror::Error;
use zeroize::Zeroizing;

use super::diagnostic::{DiagnosticKind, KeyProblem};
use super::keys::Key;
use super::line::{Span, WithoutBlanks, is_blank};
use super::value::Value;
use taupe_uapi::key::{Encoding, KeyError, PqKeyError};

/// Prefix of a path that replaces a key.
pub(super) const KEY_FILE: &str = "file:";

/// The longest key file, in bytes.
pub const MAX_KEY_FILE: usize = 4096;

/// Reads a key file of up to [`MAX_KEY_FILE`] bytes by its path in the configuration. A relative
/// path starts at the folder of the configuration.
pub type KeyFiles<'a> = &'a dyn Fn(&str) -> Result<KeyFile, KeyFileProblem>;

/// Content of a key file.
pub struct KeyFile {
    /// The text. Treated as a secret, even if the file is not meant to hold one.
    pub text: Zeroizing<Vec<u8>>,
    /// Permissions of all users (the last octal digit of the mode); 0 if they cannot enter the
    /// folder.
    pub others: u32,
}

/// Reason why a key file cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum KeyFileProblem {
    /// The system's reason.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// Longer than [`MAX_KEY_FILE`].
    #[error("is longer than {MAX_KEY_FILE} bytes; every key is shorter")]
    TooLong,
    /// Bytes that are not UTF-8.
    #[error("is not text; expected a key in base64")]
    NotText,
    /// This caller has no access to files.
    #[error("cannot be read: this program reads no key files")]
    NoFileAccess,
}

/// Treatment of `file:` paths.
#[derive(Clone, Copy)]
pub(super) enum KeyPaths<'a> {
    /// A path is an error.
    Refuse,
    /// The key is left out, and counts as present.
    Omit,
    /// The key is read from the file.
    Read(KeyFiles<'a>),
}

impl KeyPaths<'_> {
    /// Returns true if a key is left out.
    pub(super) fn omit(self, key: Key, value: Span<'_>) -> bool {
        matches!(self, Self::Omit) && key.may_be_in_file() && value.text.starts_with(KEY_FILE)
    }

    /// Returns the problem of a value that is a path without `file:`.
    fn problem(self) -> KeyProblem {
        match self {
            Self::Refuse => KeyProblem::Path,
            Self::Omit | Self::Read(_) => KeyProblem::PathWithoutPrefix,
        }
    }
}

/// A key with its source.
pub(super) struct SourcedKey<T> {
    pub(super) key: T,
    /// The path after `file:` if the key is in a file.
    pub(super) file: Option<String>,
    /// [`KeyFile::others`], or 0 if the key is not in a file.
    pub(super) others: u32,
}

/// Text of a key, before it is decoded.
enum KeySource<'a> {
    Inline(WithoutBlanks<'a>),
    File { path: String, file: KeyFile },
}

impl<'a> KeySource<'a> {
    /// Reads a value, and the file that it names.
    fn read(key: Key, value: Span<'a>, paths: KeyPaths<'_>) -> Value<'a, Self> {
        let Some(path) = value.text.strip_prefix(KEY_FILE) else {
            return Ok(Self::Inline(value.clean()));
        };
        let KeyPaths::Read(files) = paths else {
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
    ) -> Result<SourcedKey<T>, (Self, E)> {
        let text = match &self {
            Self::Inline(text) => text,
            Self::File { file, .. } => decoded(&file.text),
        };
        match (decode(text), self) {
            (Ok(key), Self::Inline(_)) => Ok(SourcedKey {
                key,
                file: None,
                others: 0,
            }),
            (Ok(key), Self::File { path, file }) => Ok(SourcedKey {
                key,
                file: Some(path),
                others: file.others,
            }),
            (Err(error), source) => Err((source, error)),
        }
    }
}

/// Returns the text of a key file without blanks around it.
pub(super) fn decoded(text: &[u8]) -> &str {
    // Only `strip` passes bytes that are not UTF-8; it does not check keys.
    let text = core::str::from_utf8(text).unwrap_or_default();
    text.trim_matches(is_blank)
}

/// Reads a key with one of [`Encoding`]'s functions.
pub(super) fn key<'a, T, E: KeyTextError>(
    key: Key,
    value: Span<'a>,
    paths: KeyPaths<'_>,
    read: fn(Encoding, &str) -> Result<T, E>,
) -> Value<'a, SourcedKey<T>> {
    let source = KeySource::read(key, value, paths)?;
    source
        .decode(|text| read(Encoding::Base64, text))
        .map_err(|(source, error)| match (source, error.position()) {
            // A key that begins with a slash but has the length of a key is not a path.
            (KeySource::Inline(text), ErrorPosition::Length) if is_path(&text) => {
                let problem = paths.problem();
                (value, DiagnosticKind::NotAKey { key, problem })
            }
            (KeySource::Inline(text), ErrorPosition::Character(position)) => {
                (value.nth(position), error.diagnostic(key, &text))
            }
            (KeySource::Inline(text), _) => (value, error.diagnostic(key, &text)),
            (KeySource::File { file, .. }, _) => {
                (value, error.diagnostic(key, decoded(&file.text)))
            }
        })
}

/// Reason why a text is not a key.
pub(super) trait KeyTextError {
    /// Returns the wrong part of the text.
    fn position(&self) -> ErrorPosition;

    /// Returns the diagnostic for the value `text` of `key`.
    fn diagnostic(self, key: Key, text: &str) -> DiagnosticKind;
}

/// Wrong part of a text.
pub(super) enum ErrorPosition {
    /// Its length.
    Length,
    /// The character at this position, counted from 1.
    Character(usize),
    /// All of it.
    WholeText,
}

impl KeyTextError for KeyError {
    fn position(&self) -> ErrorPosition {
        match *self {
            Self::Length { .. } => ErrorPosition::Length,
            Self::Character { position } => ErrorPosition::Character(position),
            Self::TrailingBits => ErrorPosition::Character(43),
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

impl KeyTextError for PqKeyError {
    fn position(&self) -> ErrorPosition {
        match *self {
            Self::Length { .. } => ErrorPosition::Length,
            Self::Character { position } => ErrorPosition::Character(position),
            Self::Classic
            | Self::PrivateForPublic
            | Self::PublicForPrivate
            | Self::TrailingBits
            | Self::Modulus => ErrorPosition::WholeText,
        }
    }

    fn diagnostic(self, key: Key, _: &str) -> DiagnosticKind {
        DiagnosticKind::NotAPqKey { key, problem: self }
    }
}

fn is_hex(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Returns true if a text that is not a key looks like a path.
fn is_path(text: &str) -> bool {
    let begins = ["/", "./", "../", "~", "$"];
    let ends = [".key", ".psk", ".pub", ".txt", ".conf", ".pem"];
    begins.iter().any(|begin| text.starts_with(begin)) || ends.iter().any(|end| text.ends_with(end))
}
