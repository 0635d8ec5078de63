//! `taupe-lab`: measures WireGuard programs and OpenVPN side by side.
//!
//! `make bench` calls it. Everything runs in private namespaces, which the kernel removes when this
//! process ends, even if it is killed.
#![forbid(unsafe_code)]

#[cfg(test)]
mod documented;

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
use taupe_bench::gateway::MAX_CLIENTS;
use taupe_bench::options::{Options, RunKind, Section};
use taupe_bench::pack::{self, Pack, enter};
use taupe_bench::pair::Link;
use taupe_bench::results::Report;
use taupe_bench::run::{self, RunEnd};
use taupe_bench::tcp::{Congestion, TcpSettings};
use taupe_bench::{compare, contestant, parts, report, scaling, targets};
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
/// Exit status of a run in parts if measurements are missing.
const PART_OVER: u8 = 3;
/// Minutes of a part of a run from a pack.
const PART_MINUTES: u32 = 8;
/// Sections of a run from a pack.
const PACK_SECTIONS: &str = "throughput,latency,beside,gateway,cores";

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
    Run(Box<Run>),
    /// Make a folder with all programs and libraries of a run, for `run --from` on another machine.
    ///
    /// Missing programs are built first, as by `run`. OpenVPN is never in a pack.
    Pack {
        /// The folder. An existing pack in it is replaced.
        folder: PathBuf,
        /// The contestants in the pack, separated by commas. Default: all that a pack can
        /// contain.
        #[arg(long, value_name = "CONTESTANT", value_delimiter = ',')]
        contestants: Vec<String>,
    },
    /// Join the parts of a run into one report. Exits with 3 if measurements are missing.
    Merge {
        /// Files part-….json, or folders with such files.
        #[arg(required = true)]
        parts: Vec<PathBuf>,
        /// The folder for the report; an existing report is replaced.
        #[arg(long, default_value = "target/lab")]
        out: PathBuf,
    },
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
    /// Numbers of parallel TCP streams of the throughput section, separated by commas. Default:
    /// 1,4; with --full 1,4,16.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=128))]
    streams: Vec<u32>,
    /// Numbers of clients of the gateway section, separated by commas. Default: 1,4,8,16.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=MAX_CLIENTS as i64))]
    clients: Vec<u16>,
    /// Numbers of workers of the cores section, separated by commas. Default: 1,2,4 and so on, up
    /// to the number of cores, at most 64.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Vec<u16>,
    /// Measure in parts: end after N minutes with exit status 3. The same command continues, and
    /// joins the files part-….json in the folder of the report.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1440))]
    minutes: Option<u32>,
    /// Run from a pack that `taupe-lab pack` has made. Nothing else needs to be installed. Measures
    /// in parts of 8 minutes, unless --minutes is given, and all contestants of the pack, unless
    /// --contestants is given. Without --only, the sections are throughput, latency, beside,
    /// gateway and cores.
    #[arg(long, value_name = "FOLDER")]
    from: Option<PathBuf>,
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
    /// Congestion control of iperf3's connections.
    #[arg(long, value_enum, default_value_t, value_name = "NAME")]
    congestion: Congestion,
    /// Negotiate ECN (RFC 3168) in all TCP connections.
    #[arg(long)]
    ecn: bool,
    /// The folder for the report; an existing report is replaced.
    #[arg(long, default_value = "target/lab")]
    out: PathBuf,
}

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some(INSIDE) => return finish(inside()),
        Some(enter::ENTER) => return finish(enter::enter().map(|never| match never {})),
        _ => {}
    }
    let outcome = match Cli::parse().command {
        Command::Run(arguments) => match &arguments.from {
            Some(folder) => from_pack(&arguments, folder),
            None => outside(&arguments),
        },
        Command::Pack {
            folder,
            contestants,
        } => make_pack(&folder, &contestants),
        Command::Merge { parts, out } => merge(&parts, &out),
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

/// Checks that the contestants of a command exist.
fn check_contestants(ids: &[String]) -> Result<()> {
    let unknown = |id: &&String| contestant::find(id).is_none();
    match ids.iter().find(unknown) {
        None => Ok(()),
        Some(id) => Err(Error::unmet(format!(
            "there is no contestant {id}; `taupe-lab contestants` lists them"
        ))),
    }
}

fn check_root() -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "it takes root to make network namespaces"
    );
    Ok(())
}

fn make_pack(folder: &Path, contestants: &[String]) -> Result<ExitCode> {
    check_contestants(contestants)?;
    let made = pack::make(folder, contestants)?;
    for (id, reason) in &made.missing {
        console::print(format_args!("without {id}: {reason}\n"));
    }
    console::print(format_args!(
        "{}: {}; {} files, {}, compressed {}\n",
        folder.display(),
        made.contestants.join(", "),
        made.files,
        pack::mebibytes(made.size),
        pack::mebibytes(made.compressed),
    ));
    Ok(ExitCode::SUCCESS)
}

fn merge(files: &[PathBuf], out: &Path) -> Result<ExitCode> {
    let report = parts::merge(&parts::read_all(files)?)?;
    let (out, _lock) = folder(out)?;
    run::write_report(&out, &report)?;
    console::print(report::text(&report));
    console::print(format_args!("{}\n", out.join("report.html").display()));
    Ok(if report.complete {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(PART_OVER)
    })
}

/// Runs the lab of a pack in place of this process.
fn from_pack(arguments: &Run, pack: &Path) -> Result<ExitCode> {
    check_root()?;
    check_contestants(&arguments.contestants)?;
    let pack = Pack::open(pack)?;
    let (out, lock) = folder(&arguments.out)?;
    // The lab inside the pack takes the lock.
    drop(lock);
    let mut inner = enter::inner_arguments(std::env::args().skip(1));
    let mut add = |option: &str, value: String| inner.extend([option.to_owned(), value]);
    if arguments.contestants.is_empty() {
        add("--contestants", pack.contestants().join(","));
    }
    if arguments.only.is_empty() {
        add("--only", PACK_SECTIONS.to_owned());
    }
    if arguments.minutes.is_none() {
        add("--minutes", PART_MINUTES.to_string());
    }
    enter::start(&pack, &out, inner).map(|never| match never {})
}

/// Returns the options of a run.
fn options(arguments: &Run, out: PathBuf) -> Options {
    let kind = if arguments.full {
        RunKind::Full
    } else {
        RunKind::Bench
    };
    let mut options = Options::new(kind, out);
    options.rounds = arguments.rounds.unwrap_or(options.rounds);
    options.seconds = arguments.seconds.unwrap_or(options.seconds);
    options.link.clone_from(&arguments.link);
    options.tcp = TcpSettings {
        congestion: arguments.congestion,
        ecn: arguments.ecn,
    };
    options.sections.clone_from(&arguments.only);
    options.contestants.clone_from(&arguments.contestants);
    options.part = arguments.minutes.map(|minutes| minutes.saturating_mul(60));
    if !arguments.streams.is_empty() {
        options.streams.clone_from(&arguments.streams);
    }
    let numbers = |from: &[u16]| from.iter().copied().map(usize::from).collect();
    if !arguments.clients.is_empty() {
        options.clients = numbers(&arguments.clients);
    }
    if !arguments.workers.is_empty() {
        options.workers = numbers(&arguments.workers);
    }
    options
}

/// Prepares the run, starts it in a sandbox, and prints where the report is.
fn outside(arguments: &Run) -> Result<ExitCode> {
    check_root()?;
    check_contestants(&arguments.contestants)?;
    let (out, _lock) = folder(&arguments.out)?;
    let mut options = options(arguments, out.clone());
    options.check()?;
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
    let ends_early = [STOPPED, PART_OVER].map(i32::from);
    let early = code.filter(|code| ends_early.contains(code));
    if !status.success() && early.is_none() {
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
        _ => ExitCode::from(early.and_then(|code| code.try_into().ok()).unwrap_or(2)),
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
    let finished = run::run(options, &stop)?;
    console::print(report::text(&finished.report));
    Ok(match finished.end {
        RunEnd::Complete => ExitCode::SUCCESS,
        RunEnd::Stopped => ExitCode::from(STOPPED),
        RunEnd::PartOver { done, groups } => {
            console::print(format_args!(
                "\n{done} of {groups} groups of measurements are done: repeat the command for the rest\n"
            ));
            ExitCode::from(PART_OVER)
        }
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
        console::print(format_args!("{id:24} {title:36} {can}\n"));
    }
}
