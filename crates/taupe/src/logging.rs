//! Level and destination of the log.

use std::io::{self, IsTerminal as _};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Log settings of an order.
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
    #[cfg(target_os = "linux")]
    File(std::path::PathBuf),
}

impl Logging {
    /// Reads the value of `LOG_LEVEL`. As in wireguard-go, a background process keeps the caller's
    /// standard error only if a level other than `silent` is set, and an unknown value means errors
    /// only.
    pub(crate) fn from_log_level(word: Option<&str>) -> Self {
        let word = word.map(str::to_ascii_lowercase);
        let (level, background) = match word.as_deref() {
            None | Some("") => (LevelFilter::WARN, Destination::Nowhere),
            Some("silent" | "off" | "none") => (LevelFilter::OFF, Destination::Nowhere),
            Some("warn" | "warning") => (LevelFilter::WARN, Destination::StandardError),
            Some("info") => (LevelFilter::INFO, Destination::StandardError),
            Some("verbose" | "debug") => (LevelFilter::DEBUG, Destination::StandardError),
            Some("trace") => (LevelFilter::TRACE, Destination::StandardError),
            Some(_) => (LevelFilter::ERROR, Destination::StandardError),
        };
        Self { level, background }
    }

    /// True if the level is debug or more detailed.
    #[cfg(target_os = "linux")]
    pub(crate) fn is_verbose(&self) -> bool {
        self.level >= LevelFilter::DEBUG
    }

    /// Starts to log to standard error, as a process in the foreground does.
    pub(crate) fn begin(&self) {
        begin(self.level);
    }
}

/// Starts to log to standard error.
pub(crate) fn begin(level: LevelFilter) {
    if level == LevelFilter::OFF {
        return;
    }
    let lines = tracing_subscriber::fmt::layer()
        .compact()
        .with_target(false)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        // A line that cannot be written is dropped. Reporting that error would write to standard
        // error too, and panic.
        .log_internal_errors(false);
    // The eBPF loader logs every step.
    let filter = Targets::new()
        .with_default(level)
        .with_targets(["aya", "aya_obj"].map(|of| (of, level.min(LevelFilter::WARN))));
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .init();
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
