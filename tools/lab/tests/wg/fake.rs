//! A device whose answers a test sets.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, PoisonError};
use taupe_lab::uapi::{SOCKETS, socket};
use taupe_lab::{Error, Result};

/// A socket that answers every request with the same text.
#[derive(Clone)]
pub(crate) struct Fake {
    answer: Arc<Mutex<Vec<u8>>>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Fake {
    /// Starts to listen, until the end of the test.
    pub(crate) fn start(interface: &str) -> Result<Self> {
        std::fs::create_dir_all(SOCKETS).map_err(Error::io(SOCKETS))?;
        let listener = UnixListener::bind(socket(interface)).map_err(Error::io("socket"))?;
        let fake = Self {
            answer: Arc::default(),
            requests: Arc::default(),
        };
        let served = fake.clone();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut request = Vec::new();
                let mut block = [0; 4096];
                while !request.ends_with(b"\n\n") {
                    match stream.read(&mut block) {
                        Ok(count @ 1..) => request.extend(block.iter().take(count)),
                        _ => break,
                    }
                }
                // Debian's first checks whether the socket has a listener.
                if request.is_empty() {
                    continue;
                }
                let text = String::from_utf8_lossy(&request).into_owned();
                lock(&served.requests).push(text);
                let answer = lock(&served.answer).clone();
                let _ = stream.write_all(&answer);
            }
        });
        Ok(fake)
    }

    /// Sets the answer.
    pub(crate) fn answer(&self, text: impl AsRef<[u8]>) {
        *lock(&self.answer) = text.as_ref().to_vec();
    }

    /// Returns the requests since the last call.
    pub(crate) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.requests))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
