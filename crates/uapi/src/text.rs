//! Numbers from text, and text with secrets.

use core::fmt::{self, Write};
use core::str::FromStr;

use zeroize::Zeroizing;

/// Parses a decimal number without a sign, which `FromStr` would accept. Allows leading zeros.
#[must_use]
pub fn decimal<T: FromStr>(text: &str) -> Option<T> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// Returns the text that `write` writes. The buffer is zeroised on drop. It has its final size from
/// the start, because reallocation would leave copies of secrets in freed memory. So `write` runs
/// twice, and must write the same text each time.
#[must_use]
pub fn secret_text(write: impl Fn(&mut dyn Write) -> fmt::Result) -> Zeroizing<String> {
    let mut length = ByteCounter(0);
    let mut text = Zeroizing::new(String::new());
    // Neither sink can fail.
    let _ = write(&mut length);
    text.reserve_exact(length.0);
    let _ = write(&mut *text);
    text
}

/// Counts the bytes written.
struct ByteCounter(usize);

impl Write for ByteCounter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}
