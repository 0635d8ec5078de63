//! Logging of a service to the system's event log.

use std::io::{self, Write};
use std::sync::Arc;
use taupe_os_windows::event_log::{EventLog, Level};
use tracing::Metadata;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Starts to log.
///
/// # Errors
///
/// Fails if the event log cannot be opened.
pub(super) fn begin(source: &str, level: LevelFilter) -> io::Result<()> {
    if level == LevelFilter::OFF {
        return Ok(());
    }
    let log = Lines(Arc::new(EventLog::open(source)?));
    // The system records the time.
    let lines = tracing_subscriber::fmt::layer()
        .compact()
        .without_time()
        .with_target(false)
        .with_level(false)
        .with_ansi(false)
        .with_writer(log)
        .log_internal_errors(false);
    tracing_subscriber::registry()
        .with(lines.with_filter(level))
        .init();
    Ok(())
}

/// Writes each line as an event.
struct Lines(Arc<EventLog>);

impl Lines {
    fn line(&self, level: Level) -> Line {
        Line {
            log: Arc::clone(&self.0),
            level,
            text: Vec::new(),
        }
    }
}

/// A line, which becomes an event when dropped.
struct Line {
    log: Arc<EventLog>,
    level: Level,
    text: Vec<u8>,
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        self.line(Level::Information)
    }

    fn make_writer_for(&'a self, about: &Metadata<'_>) -> Line {
        let level = match *about.level() {
            tracing::Level::ERROR => Level::Error,
            tracing::Level::WARN => Level::Warning,
            _ => Level::Information,
        };
        self.line(level)
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let text = String::from_utf8_lossy(&self.text);
        // An event that cannot be written is lost.
        let _ = self.log.report(self.level, text.trim_end());
    }
}
