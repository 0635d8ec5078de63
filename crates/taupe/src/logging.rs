//! Level of the log, and the log to standard error.

use std::io::{self, IsTerminal as _};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Reads the value of `LOG_LEVEL`. As in wireguard-go, an unknown value means errors only.
pub(crate) fn level(word: Option<&str>) -> LevelFilter {
    let word = word.map(str::to_ascii_lowercase);
    match word.as_deref() {
        None | Some("") => LevelFilter::WARN,
        Some("silent" | "off" | "none") => LevelFilter::OFF,
        Some("warn" | "warning") => LevelFilter::WARN,
        Some("info") => LevelFilter::INFO,
        Some("verbose" | "debug") => LevelFilter::DEBUG,
        Some("trace") => LevelFilter::TRACE,
        Some(_) => LevelFilter::ERROR,
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
