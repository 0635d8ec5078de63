//! Log of a device, which depends on whether it runs in the background.

use crate::logging;
use std::path::PathBuf;
use tracing_subscriber::filter::LevelFilter;

/// Log settings of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Logging {
    /// Most detailed level that is logged.
    pub(crate) level: LevelFilter,
    /// Destination if the device runs in the background. In the foreground it is standard error.
    pub(crate) background: Destination,
}

/// Destination of a background process's log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Destination {
    /// No log. The caller's standard error is not kept open.
    Nowhere,
    /// The caller's standard error.
    StandardError,
    /// A file, to which lines are appended.
    File(PathBuf),
}

impl Logging {
    /// Reads the value of `LOG_LEVEL`. As in wireguard-go, a background process keeps the caller's
    /// standard error only if a level other than `silent` is set.
    pub(crate) fn from_log_level(word: Option<&str>) -> Self {
        let level = logging::level(word);
        let is_set = word.is_some_and(|word| !word.is_empty());
        let background = match level {
            LevelFilter::OFF => Destination::Nowhere,
            _ if is_set => Destination::StandardError,
            _ => Destination::Nowhere,
        };
        Self { level, background }
    }

    /// True if the level is debug or more detailed.
    pub(crate) fn is_verbose(&self) -> bool {
        self.level >= LevelFilter::DEBUG
    }

    /// Starts to log to standard error, as a process in the foreground does.
    pub(crate) fn begin(&self) {
        logging::begin(self.level);
    }
}

#[cfg(test)]
mod tests {
    use super::{Destination, LevelFilter, Logging};

    #[test]
    fn log_level_is_read_as_wireguard_go_reads_it() {
        use Destination::{Nowhere, StandardError};
        for (word, level, background) in [
            (None, LevelFilter::WARN, Nowhere),
            (Some(""), LevelFilter::WARN, Nowhere),
            (Some("silent"), LevelFilter::OFF, Nowhere),
            (Some("error"), LevelFilter::ERROR, StandardError),
            (Some("info"), LevelFilter::INFO, StandardError),
            (Some("verbose"), LevelFilter::DEBUG, StandardError),
            (Some("DEBUG"), LevelFilter::DEBUG, StandardError),
            (Some("7"), LevelFilter::ERROR, StandardError),
        ] {
            assert_eq!(
                Logging::from_log_level(word),
                Logging { level, background },
                "{word:?}"
            );
        }
    }
}
