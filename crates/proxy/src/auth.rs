//! Who may use the proxy.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use subtle::{Choice, ConstantTimeEq};
use zeroize::Zeroizing;

/// Names with their passwords. Not printable, and erased when it is dropped.
pub struct Credentials(Vec<Credential>);

struct Credential {
    name: Zeroizing<Vec<u8>>,
    password: Zeroizing<Vec<u8>>,
}

/// The longest name or password (RFC 1929 §2), in bytes.
const LONGEST: usize = 255;

/// The longest file, in bytes.
const MAX_FILE: usize = 1 << 20;

/// Why a file of credentials cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It is no list of credentials.
    #[error("{}:{line}: {problem}; each line is USER:PASSWORD, of 1 to 255 bytes each", .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        problem: &'static str,
    },
    /// There is nobody in it.
    #[error("{} has no line USER:PASSWORD: nobody could use the proxy; add one", .0.display())]
    Nobody(PathBuf),
    /// It is too long.
    #[error("{} is longer than a list of users can be (1 MiB); give another file", .0.display())]
    TooLong(PathBuf),
}

impl Credentials {
    /// Reads a file with a line `USER:PASSWORD` for each user; lines that begin with `#`
    /// and empty ones are skipped.
    ///
    /// # Errors
    /// See [`AuthError`].
    pub fn read(path: &Path) -> Result<Self, AuthError> {
        let unreadable = |source| AuthError::Unreadable {
            path: path.into(),
            source,
        };
        let file = File::open(path).map_err(unreadable)?;
        // What is no plain file, or grows, says nothing of its length.
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
            let colon = colon.ok_or(wrong("there is no colon"))?;
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

    /// Whether somebody has this name and this password. How long it takes tells the
    /// lengths at most.
    #[must_use]
    pub fn admit(&self, name: &[u8], password: &[u8]) -> bool {
        let fits = |one: &Credential| one.name.ct_eq(name) & one.password.ct_eq(password);
        let fits = self.0.iter().map(fits);
        fits.fold(Choice::from(0), |any, fits| any | fits).into()
    }

    /// The same for `USER:PASSWORD` in one (RFC 7617 §2).
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
    fn a_file_without_an_end_is_too_long() {
        use super::AuthError;
        let endless = Credentials::read(std::path::Path::new("/dev/zero"));
        assert!(matches!(endless, Err(AuthError::TooLong(_))));
    }

    #[test]
    fn who_is_admitted() {
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
    fn mistakes_have_a_line() {
        let wrong = |text: &[u8]| Credentials::parse(text).err().unwrap();
        assert_eq!(wrong(b"a:b\nc").0, 2);
        assert_eq!(wrong(b":b").0, 1);
        assert_eq!(wrong(b"a:").0, 1);
        assert_eq!(wrong(&[b"a:", &*vec![b'x'; 256]].concat()).0, 1);
        let longest = [b"a:", &*vec![b'x'; 255]].concat();
        assert!(Credentials::parse(&longest).is_ok());
    }
}
