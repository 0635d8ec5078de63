//! Key pairs for tests.

use super::Implementation;
use crate::error::Result;
use crate::host::Host;

/// A key pair, in Base64 as `wg` writes it.
#[derive(Debug, Clone)]
pub struct Keys {
    /// The private key, made for one test and worthless after it.
    pub private: String,
    /// The public key.
    pub public: String,
}

impl Keys {
    /// Generates a key pair with `wg genkey` and `wg pubkey`.
    ///
    /// # Errors
    ///
    /// [`Error::Command`](crate::Error::Command).
    pub fn new(host: &Host) -> Result<Self> {
        let private = host.run(&["wg", "genkey"])?.stdout;
        let public = host.run_with_input(&["wg", "pubkey"], &private)?;
        Ok(Self {
            private: private.trim().to_owned(),
            public: public.text().to_owned(),
        })
    }
}

/// ML-KEM keys, in Base64 as `taupe` writes them.
#[derive(Debug, Clone)]
pub struct PqKeys {
    /// The seed, made for one test and worthless after it.
    pub seed: String,
    host: Host,
    program: String,
}

impl PqKeys {
    /// Generates keys with `taupe genkey --pq`.
    ///
    /// # Errors
    ///
    /// [`Error::Command`](crate::Error::Command); [`Error::Missing`](crate::Error::Missing) if there is
    /// no `taupe`.
    pub fn new(host: &Host) -> Result<Self> {
        let program = Implementation::Taupe.program()?.display().to_string();
        let seed = host.run(&[&program, "genkey", "--pq"])?.text().to_owned();
        Ok(Self {
            seed,
            host: host.clone(),
            program,
        })
    }

    /// Computes the public key for a suite with `taupe pubkey --pq`.
    ///
    /// # Errors
    ///
    /// [`Error::Command`](crate::Error::Command).
    pub fn public(&self, suite: &str) -> Result<String> {
        let command = [&*self.program, "pubkey", "--pq", "--suite", suite];
        let key = self.host.run_with_input(&command, &self.seed)?;
        Ok(key.text().to_owned())
    }
}
