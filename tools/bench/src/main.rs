//! `taupe-lab`: measures WireGuard programs and OpenVPN side by side.
//!
//! `make bench` calls it. Everything runs in private namespaces, which the kernel removes when this
//! process ends, even if it is killed.
#![forbid(unsafe_code)]

use clap::{Args, Parser, Subcommand};
use rustix::fs::{FlockOperation, MemfdFlags, flock};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use taupe_bench::pair::Link;
use taupe_bench::results::Report;
use taupe_bench::run::{self, Options, RunKind, Section};
use taupe_bench::{compare, contestant, report, scaling, targets};
use taupe_lab::sandbox::{self, Attached};
use taupe_lab::{Error, Result, console, ensure};

const INSIDE: &str = "--inside";
/// Environment variable that passes the options to the process inside the sandbox.
const OPTIONS: &str = "TAUPE_LAB_OPTIONS";
/// File with the output of the programs, written if something failed.
const LOG: &str = "log.txt";
/// Prefix of this program's own error messages.
const OWN: &str = "taupe-lab: ";
/// Exit status of an interrupted run.
const STOPPED: u8 = 130;

/// Measures WireGuard programs and OpenVPN side by side, in network namespaces of this machine.
#[derive(Parser)]
#[command(name = "taupe-lab", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure, and write report.json and report.html. Needs root.
    ///
    /// Missing programs are built first, in ~/.cache/taupe or TAUPE_CACHE. Taupe is the program
    /// built beside this one, or TAUPE_BIN.
    Run(Run),
    /// Show what changed between two reports, beyond the noise. Exits with 1 if a figure is worse.
    Compare {
        /// The old report.json.
        old: PathBuf,
        /// The new report.json.
        new: PathBuf,
    },
    /// Render a report.json again: as tables on the terminal, or to the files named.
    Report {
        /// The report.json.
        json: PathBuf,
        /// The web page to write.
        #[arg(long)]
        html: Option<PathBuf>,
        /// The page of documentation to write.
        #[arg(long)]
        markdown: Option<PathBuf>,
    },
    /// Show which of Taupe's published goals for speed a report reaches. Exits with 1 if one is
    /// missed; goals that were not measured are not missed.
    Targets {
        /// The report.json.
        json: PathBuf,
    },
    /// Write a report's measurements of stages into the page about more cores.
    Scaling {
        /// The report.json of a run with --only stages.
        json: PathBuf,
        /// The page, whose measured part is replaced.
        #[arg(long, default_value = "docs/scaling.md")]
        page: PathBuf,
    },
    /// List the contestants, and why one cannot run here or is not installed yet.
    Contestants,
}

#[derive(Args)]
struct Run {
    /// Measure everything in ten rounds, instead of a selection of ten minutes.
    #[arg(long)]
    full: bool,
    /// Number of rounds; 3, and 10 with --full.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Seconds for each measurement of throughput; 3.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: Option<u32>,
    /// Measure only these sections, separated by commas.
    #[arg(long, value_name = "SECTION", value_delimiter = ',')]
    only: Vec<Section>,
    /// Measure only these contestants, separated by commas; `taupe-lab contestants` lists them. If
    /// one of them cannot run, the others are measured and the exit status is 1.
    #[arg(long, value_name = "CONTESTANT", value_delimiter = ',')]
    contestants: Vec<String>,
    /// The link between the machines: cable, a rate such as 100mbit, loss=1%, 802.11b or lte. The
    /// named tables have links of their own.
    #[arg(long, default_value = "cable")]
    link: Link,
    /// The folder for the report; an existing report is replaced.
    #[arg(long, default_value = "target/lab")]
    out: PathBuf,
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(INSIDE) {
        return finish(inside());
    }
    let outcome = match Cli::parse().command {
        Command::Run(arguments) => outside(&arguments),
        Command::Compare { old, new } => compare_reports(&old, &new),
        Command::Report {
            json,
            html,
            markdown,
        } => render(&json, html.as_deref(), markdown.as_deref()),
        Command::Targets { json } => say_targets(&json),
        Command::Scaling { json, page } => {
            let report = Report::read(&json);
            report.and_then(|report| scaling::rewrite(&report, &page).map(|()| ExitCode::SUCCESS))
        }
        Command::Contestants => {
            list();
            Ok(ExitCode::SUCCESS)
        }
    };
    finish(outcome)
}

fn finish(outcome: Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        console::warn(format_args!("{OWN}{error}"));
        ExitCode::from(2)
    })
}

/// Prepares the run, starts it in a sandbox, and prints where the report is.
fn outside(arguments: &Run) -> Result<ExitCode> {
    if !rustix::process::geteuid().is_root() {
        return Err(Error::unmet("it takes root to make network namespaces"));
    }
    let unknown = |id: &&String| contestant::find(id).is_none();
    if let Some(id) = arguments.contestants.iter().find(unknown) {
        return Err(Error::unmet(format!(
            "there is no contestant {id}; `taupe-lab contestants` lists them"
        )));
    }
    let (out, _lock) = folder(&arguments.out)?;
    let kind = if arguments.full {
        RunKind::Full
    } else {
        RunKind::Bench
    };
    let mut options = Options::new(kind, out.clone());
    options.rounds = arguments.rounds.unwrap_or(options.rounds);
    options.seconds = arguments.seconds.unwrap_or(options.seconds);
    options.link.clone_from(&arguments.link);
    options.sections.clone_from(&arguments.only);
    options.contestants.clone_from(&arguments.contestants);
    console::print("preparing the contestants\n");
    options.refused = run::prepare(&options);
    for (id, reason) in &options.refused {
        console::print(format_args!(
            "without {id}, which cannot run here: {reason}\n"
        ));
    }

    let interrupts = Arc::new(AtomicUsize::new(0));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        let interrupts = Arc::clone(&interrupts);
        count(signal, &interrupts)?;
    }
    let log = rustix::fs::memfd_create("log", MemfdFlags::CLOEXEC).map_err(Error::io("memory"))?;
    let mut log = File::from(log);
    let copy = log.try_clone().map_err(Error::io("dup"))?;
    let words = serde_json::to_string(&options)
        .map_err(|error| Error::unmet(format!("options as JSON: {error}")))?;
    let mut attached = Attached::start(INSIDE, &[(OPTIONS, &words)], copy)?;
    let mut heard = 0;
    let status = loop {
        if let Some(status) = attached.ended(Duration::from_millis(100))? {
            break status;
        }
        let now = interrupts.load(Ordering::Relaxed);
        if now > heard {
            heard = now;
            if now > 1 {
                return Err(Error::unmet("stopped at once; the report is as it was"));
            }
            console::print("\nstopping after this measurement; once more stops at once\n");
            attached.request_stop();
        }
    };
    let code = status.code();
    let stopped = code == Some(i32::from(STOPPED));
    if !status.success() && !stopped {
        let mut output = String::new();
        log.rewind()
            .and_then(|()| log.read_to_string(&mut output))
            .map_err(Error::io("log"))?;
        let reason = output.lines().rfind(|line| line.starts_with(OWN));
        console::warn(reason.unwrap_or("taupe-lab: the run has broken off"));
        let path = out.join(LOG);
        let shown = path.display();
        match fs::write(&path, &output) {
            Ok(()) => console::warn(format_args!("commands and their output: {shown}")),
            Err(error) => console::warn(format_args!("{OWN}{shown}: {error}")),
        }
    }
    let page = out.join("report.html");
    if page.exists() {
        console::print(format_args!("{}\n", page.display()));
    }
    Ok(match code {
        Some(0) => check_requested_ran(&out, &arguments.contestants)?,
        _ if stopped => ExitCode::from(STOPPED),
        _ => ExitCode::from(2),
    })
}

/// Returns failure if a contestant that was requested by name could not run, because the report
/// lacks the figures it was made for.
fn check_requested_ran(out: &Path, named: &[String]) -> Result<ExitCode> {
    let report = Report::read(&out.join("report.json"))?;
    let entries = report.contestants.iter();
    let mut all = ExitCode::SUCCESS;
    for entry in entries.filter(|entry| named.contains(&entry.id)) {
        if let Some(reason) = &entry.unavailable {
            console::warn(format_args!(
                "{OWN}{} did not take part: {reason}",
                entry.id
            ));
            all = ExitCode::FAILURE;
        }
    }
    Ok(all)
}

/// Creates the folder for the report and locks it against other runs until the file is closed.
/// Errors surface here rather than after the first measurement.
fn folder(path: &Path) -> Result<(PathBuf, File)> {
    let shown = path.display().to_string();
    let failed = || Error::io(shown.clone());
    fs::create_dir_all(path).map_err(failed())?;
    let path = fs::canonicalize(path).map_err(failed())?;
    ensure!(
        path.to_str().is_some(),
        "the name of the folder {shown} is not UTF-8; choose another one with --out"
    );
    let hidden = sandbox::HIDDEN.iter().find(|above| path.starts_with(above));
    if let Some(above) = hidden {
        return Err(Error::unmet(format!(
            "the sandbox has a {above} of its own, so the report cannot be written to \
             {shown}; choose another folder with --out"
        )));
    }
    let lock = File::open(&path).map_err(failed())?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {
            return Err(Error::unmet(format!(
                "another run writes its report to {shown}, and measurements disturb one \
                 another: wait for its end"
            )));
        }
        outcome => outcome.map_err(Error::io(shown.clone()))?,
    }
    let probe = path.join("report.partial");
    File::create(&probe)
        .and_then(|_| fs::remove_file(&probe))
        .map_err(failed())?;
    Ok((path, lock))
}

/// Counts arrivals of a signal.
fn count(signal: i32, counter: &Arc<AtomicUsize>) -> Result<()> {
    let counter = Arc::clone(counter);
    let mut signals =
        signal_hook::iterator::Signals::new([signal]).map_err(Error::io("waiting for signals"))?;
    std::thread::spawn(move || {
        for _ in signals.forever() {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    Ok(())
}

/// Runs as the first process of the sandbox.
fn inside() -> Result<ExitCode> {
    let words = std::env::var(OPTIONS)
        .map_err(|_| Error::unmet("this is called by `taupe-lab run` only"))?;
    let options: Options =
        serde_json::from_str(&words).map_err(|error| Error::unmet(format!("options: {error}")))?;
    let stop = Arc::new(AtomicBool::new(false));
    sandbox::begin_attached(Arc::clone(&stop))?;
    let report = run::run(options, &stop)?;
    console::print(report::text(&report));
    Ok(if report.complete {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(STOPPED)
    })
}

fn compare_reports(old: &Path, new: &Path) -> Result<ExitCode> {
    let comparison = compare::compare(&Report::read(old)?, &Report::read(new)?);
    console::print(&comparison);
    Ok(if comparison.is_worse() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn render(json: &Path, html: Option<&Path>, markdown: Option<&Path>) -> Result<ExitCode> {
    let report = Report::read(json)?;
    let write = |path: &Path, content: String| {
        fs::write(path, content).map_err(Error::io(path.display().to_string()))
    };
    if let Some(path) = html {
        write(path, report::html(&report))?;
    }
    if let Some(path) = markdown {
        write(path, report::markdown(&report))?;
    }
    if html.is_none() && markdown.is_none() {
        console::print(report::text(&report));
    }
    Ok(ExitCode::SUCCESS)
}

fn say_targets(json: &Path) -> Result<ExitCode> {
    let found = targets::judge(&Report::read(json)?);
    console::print(&found);
    Ok(if found.any_missed() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn list() {
    for contestant in contestant::all().into_iter().chain(contestant::variants()) {
        let can = match contestant.version() {
            Ok(Some(version)) => version,
            Ok(None) => String::new(),
            Err(error) => format!("cannot run here: {error}"),
        };
        let (id, title) = (contestant.id(), contestant.title());
        console::print(format_args!("{id:20} {title:36} {can}\n"));
    }
}
