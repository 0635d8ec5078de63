//! Credentials of clients.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use subtle::{Choice, ConstantTimeEq};
use zeroize::Zeroizing;

/// User names with passwords. Has no `Debug`; erased on drop.
pub struct Credentials(Vec<Credential>);

struct Credential {
    name: Zeroizing<Vec<u8>>,
    password: Zeroizing<Vec<u8>>,
}

/// The longest name or password, in bytes (RFC 1929 §2).
const LONGEST: usize = 255;

/// The longest credentials file, in bytes.
const MAX_FILE: usize = 1 << 20;

/// Reason why a credentials file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A line is malformed.
    #[error("{}:{line}: {problem}; each line is USER:PASSWORD, of 1 to 255 bytes each", .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Line number, counted from 1.
        line: usize,
        /// Description of the mistake.
        problem: &'static str,
    },
    /// The file contains no credentials.
    #[error("{} has no line USER:PASSWORD, so no client could use the proxy; add one", .0.display())]
    Nobody(PathBuf),
    /// The file is too long.
    #[error("{} is longer than 1 MiB, the limit for a list of users; give another file", .0.display())]
    TooLong(PathBuf),
}

impl Credentials {
    /// Reads a file with one `USER:PASSWORD` per line. Skips empty lines and lines that begin with
    /// `#`.
    ///
    /// # Errors
    /// See [`AuthError`].
    pub fn read(path: &Path) -> Result<Self, AuthError> {
        let unreadable = |source| AuthError::Unreadable {
            path: path.into(),
            source,
        };
        let file = File::open(path).map_err(unreadable)?;
        // The length of a special file, or of one that grows, is not reliable.
        let length = file.metadata().map_err(unreadable)?.len();
        let room = usize::try_from(length).map_or(MAX_FILE, |length| length.min(MAX_FILE));
        let mut text = Zeroizing::new(Vec::with_capacity(room + 1));
        let mut file = file.take(MAX_FILE as u64 + 1);
        file.read_to_end(&mut text).map_err(unreadable)?;
        if text.len() > MAX_FILE {
            return Err(AuthError::TooLong(path.into()));
        }
        let credentials = Self::parse(&text).map_err(|(line, problem)| AuthError::Line {
            path: path.into(),
            line,
            problem,
        })?;
        if credentials.0.is_empty() {
            return Err(AuthError::Nobody(path.into()));
        }
        Ok(credentials)
    }

    fn parse(text: &[u8]) -> Result<Self, (usize, &'static str)> {
        let mut credentials = Vec::new();
        for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let wrong = |problem| (number + 1, problem);
            let colon = line.iter().position(|byte| *byte == b':');
            let colon = colon.ok_or(wrong("no colon"))?;
            let (name, password) = (&line[..colon], &line[colon + 1..]);
            if name.is_empty() || password.is_empty() {
                return Err(wrong("the user or the password is empty"));
            }
            if name.len() > LONGEST || password.len() > LONGEST {
                return Err(wrong("the user or the password is too long"));
            }
            credentials.push(Credential {
                name: Zeroizing::new(name.to_vec()),
                password: Zeroizing::new(password.to_vec()),
            });
        }
        Ok(Self(credentials))
    }

    /// Returns true if a user has this name and password. The running time depends on lengths only.
    #[must_use]
    pub fn admit(&self, name: &[u8], password: &[u8]) -> bool {
        let fits = |one: &Credential| one.name.ct_eq(name) & one.password.ct_eq(password);
        let fits = self.0.iter().map(fits);
        fits.fold(Choice::from(0), |any, fits| any | fits).into()
    }

    /// Checks `USER:PASSWORD` in one string (RFC 7617 §2).
    pub(crate) fn admit_joined(&self, joined: &[u8]) -> bool {
        let colon = joined.iter().position(|byte| *byte == b':');
        colon.is_some_and(|colon| self.admit(&joined[..colon], &joined[colon + 1..]))
    }
}

#[cfg(test)]
mod tests {
    use super::Credentials;

    #[cfg(unix)]
    #[test]
    fn an_endless_credentials_file_is_refused() {
        use super::AuthError;
        let endless = Credentials::read(std::path::Path::new("/dev/zero"));
        assert!(matches!(endless, Err(AuthError::TooLong(_))));
    }

    #[test]
    fn only_listed_credentials_are_admitted() {
        let file = b"# users\n\nalice:secret\r\nbob:with:colon\n";
        let credentials = Credentials::parse(file).ok().unwrap();
        assert!(credentials.admit(b"alice", b"secret"));
        assert!(credentials.admit(b"bob", b"with:colon"));
        assert!(credentials.admit_joined(b"bob:with:colon"));
        for (name, password) in [
            (&b"alice"[..], &b"with:colon"[..]),
            (b"bob", b"secret"),
            (b"alice", b"secre"),
            (b"alice", b"secrets"),
            (b"alice", b""),
            (b"", b""),
            (b"# users", b""),
        ] {
            assert!(!credentials.admit(name, password), "{name:?} {password:?}");
        }
        assert!(!credentials.admit_joined(b"alice"));
    }

    #[test]
    fn errors_in_a_credentials_file_have_a_line_number() {
        let wrong = |text: &[u8]| Credentials::parse(text).err().unwrap();
        assert_eq!(wrong(b"a:b\nc").0, 2);
        assert_eq!(wrong(b":b").0, 1);
        assert_eq!(wrong(b"a:").0, 1);
        assert_eq!(wrong(&[b"a:", &*vec![b'x'; 256]].concat()).0, 1);
        let longest = [b"a:", &*vec![b'x'; 255]].concat();
        assert!(Credentials::parse(&longest).is_ok());
    }
}
