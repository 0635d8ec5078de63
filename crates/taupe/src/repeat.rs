//! Commands that read the state again and again, until their output is closed.

use crate::console::{NotPrinted, say};
use crate::system::is_closed_within;
use std::time::Duration;

/// Passes a first reading to `handle`, and then one for each interval. An error is printed once, even if
/// it continues.
pub(crate) fn repeat<T, E>(
    every: Duration,
    first: T,
    mut read: impl FnMut() -> Result<T, E>,
    describe: impl Fn(&E) -> String,
    mut handle: impl FnMut(Result<T, &E>) -> Result<(), NotPrinted>,
) -> Result<(), NotPrinted> {
    let mut reading = Ok(first);
    let mut reported = None;
    loop {
        match reading {
            Ok(state) => {
                handle(Ok(state))?;
                reported = None;
            }
            Err(error) => {
                handle(Err(&error))?;
                let why = describe(&error);
                if reported.as_ref() != Some(&why) {
                    say(&format_args!(
                        "[!] {why}; trying again every {} s",
                        every.as_secs()
                    ));
                }
                reported = Some(why);
            }
        }
        if is_closed_within(every) {
            return Ok(());
        }
        reading = read();
    }
}
