//! `taupe up`, `down`, `reload` and `strip`. This module finds and reads the file and starts the
//! device's process. The crate `taupe-adapter` sets up the interface.

mod advice;
mod ending;
mod error;
mod foreground;
mod transparent;

use crate::arguments::{Action, DeviceOrder, DeviceSettings, TunnelOrder, Up};
use crate::capture::Plan;
use crate::console::{Console, print, say};
use crate::device::Device;
use crate::endpoint_names::{self, Leave};
use crate::mode::{self, Mode};
use crate::via::{self, Through};
use crate::{background, root};
use ending::Ending;
use error::{Failure, wrong};
use std::ffi::{OsStr, OsString};
use std::process::ExitCode;
use std::time::Duration;
use taupe_adapter::{
    self as adapter, Compatibility, Devices, Down, DownError, Options, Request, State,
    TransparentSettings,
};
use taupe_config::file::{self, DiagnosticKind};
use taupe_inspect::check::{self, Checked, Remark, check, check_alone};
use taupe_inspect::conf::{self, Conf};
use taupe_inspect::endpoint_names::Named;
use taupe_inspect::interface::InterfaceName;
use taupe_transparent::capture::{Replaced, is_in_effect, replace};
use transparent::{Captured, is_transparent, let_go};

pub(crate) fn main<D: Device>(order: &TunnelOrder, arguments: &[OsString]) -> ExitCode {
    match run::<D>(order, arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Output(error)) if error.is_unread() => crate::FAILED.into(),
        Err(failure) => {
            let name = match order.personality {
                Compatibility::Taupe => "taupe",
                Compatibility::WgQuick => "wg-quick",
            };
            say(&format_args!("{name}: {failure}"));
            crate::FAILED.into()
        }
    }
}

fn run<D: Device>(order: &TunnelOrder, arguments: &[OsString]) -> Result<(), Failure> {
    let TunnelOrder {
        personality,
        file,
        verbose,
        ..
    } = order;
    // `wg-quick` requires root for every action.
    if order.action != Action::Strip || *personality == Compatibility::WgQuick {
        root::require(*personality, arguments)?;
    }
    match &order.action {
        Action::Up(up) => {
            let conf = find(file, *personality)?;
            bring_up::<D>(&conf, up, *personality, *verbose)
        }
        Action::Down {
            no_save,
            keep_closed,
        } => {
            let console = Console::new(*verbose);
            take_down(file, !no_save, *keep_closed, *personality, console)
        }
        Action::Lock => transparent::lock(&find(file, *personality)?),
        Action::Reload => reload(&find(file, *personality)?, &mut Console::new(*verbose)),
        Action::Save => save(&find(file, *personality)?, *personality),
        Action::Strip => strip(&find(file, *personality)?, *personality),
    }
}

/// Finds the file. Called as `wg-quick`, it prints the warning of that program.
fn find(word: &OsStr, personality: Compatibility) -> Result<Conf, Failure> {
    let conf = Conf::find(word, personality)?;
    if personality == Compatibility::WgQuick && conf.quick_warns() {
        let path = conf.path.display();
        say(&format_args!("Warning: `{path}' is world accessible"));
    }
    Ok(conf)
}

fn bring_up<D: Device>(
    conf: &Conf,
    up: &Up,
    personality: Compatibility,
    verbose: bool,
) -> Result<(), Failure> {
    let Checked { file, remarks, .. } = check(conf, personality)?;
    let Some(mut file) = file else {
        return Err(wrong(conf, &remarks));
    };
    via::is_free(conf.interface.as_str())?;
    // Names of endpoints are removed from the file below.
    let endpoints = file.peers.iter().map(|peer| peer.endpoint.is_some());
    let endpoints: Vec<_> = endpoints.collect();
    let through = match &up.via {
        None => None,
        Some(word) => {
            already_up(conf, personality)?;
            // A kill switch that a killed process left active blocks DNS queries of this process.
            let is_closed = is_in_effect(conf.interface.as_str())?;
            let through = Through::find(word, conf, is_closed)?;
            let admitted = via::admit(&through.outer, conf, &mut file)?;
            Some((through, admitted))
        }
    };
    let chooses = file.transparent.first.is_some();
    let mode = mode::choose(up.mode, personality, chooses, &endpoints);
    let mode = transparent::on_this_kernel(mode);
    let plan = match mode {
        Mode::Adapter(_) if chooses && personality == Compatibility::Taupe => {
            let mark = transparent::free_mark(conf, &file)?;
            Some(transparent::plan(conf, &mut file, Some(mark))?)
        }
        Mode::Adapter(_) => {
            without_applications(conf, &file)?;
            if is_in_effect(conf.interface.as_str())? {
                return Err(Failure::Captured(conf.interface.to_string()));
            }
            None
        }
        Mode::Transparent(_) => Some(transparent::plan(conf, &mut file, None)?),
    };
    already_up(conf, personality)?;
    say(&mode);
    let (through, admitted) = through.unzip();
    if let (Some(through), Some(admitted)) = (&through, &admitted) {
        admitted.sentences.iter().for_each(|sentence| say(sentence));
        if let Some(doubt) = through.doubt_about(&admitted.left) {
            say(&format_args!("[!] {doubt}"));
        }
    }
    // wg-quick has a warning of its own for this.
    let said = |remark: &&Remark| {
        let kind = &remark.diagnostic.kind;
        personality == Compatibility::Taupe
            || !matches!(kind, DiagnosticKind::WorldAccessible { .. })
    };
    for remark in remarks.iter().filter(said) {
        say(remark);
    }
    let options = Options {
        override_routes: up.override_routes,
        firewall: !up.no_firewall,
        chosen: plan.as_ref().and_then(Plan::mark),
    };
    let captured = plan.map(|plan| Captured::prepare(conf, plan, &mut file, up));
    let captured = captured.transpose()?;
    let fixed = captured.as_ref().map(|captured| captured.fixed.clone());
    let outer = through.as_ref().map(|through| &through.outer);
    let request = Request {
        outer,
        ..request(conf, &file, personality, options, fixed.as_ref())
    };
    let device = DevicePlan {
        settings: &up.device,
        captured: captured.as_ref(),
        through: through.as_ref(),
        left: admitted.as_ref().map_or(&[], |admitted| &admitted.left),
    };
    if up.foreground {
        foreground::run::<D>(conf, &request, up, device, verbose)
    } else {
        let mut console = Console::catching(verbose, |_| {}).map_err(Failure::Signals)?;
        let mut devices = Background(device);
        let brought_up = adapter::up(&request, &mut devices, &mut console);
        device.settle(&request, &brought_up);
        Ok(brought_up?)
    }
}

/// Fails if the tunnel is up already. This comes before other messages. If another process brings
/// the tunnel up later, that is detected again.
fn already_up(conf: &Conf, personality: Compatibility) -> Result<(), Failure> {
    let interface = conf.interface.as_str();
    match State::default().of_running(interface) {
        Some(header) if taupe_client::is_alive(interface, PATIENCE) => {
            Err(Failure::Up(adapter::UpError::AlreadyUp {
                interface: interface.to_owned(),
                since: header.since(),
                config: header.config,
                outer: header.outer.map(|outer| outer.name),
                personality,
            }))
        }
        _ => Ok(()),
    }
}

/// Time that a running device has to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Fails if the file selects applications, because all applications would use the tunnel: as in
/// wg-quick, or in a reload of a tunnel that was brought up for all applications.
fn without_applications(conf: &Conf, file: &file::File) -> Result<(), Failure> {
    match file.transparent.first {
        None => Ok(()),
        Some((key, line)) => Err(Failure::Applications {
            file: conf.shown.display().to_string(),
            line,
            key,
        }),
    }
}

/// Settings of a tunnel's device.
#[derive(Clone, Copy)]
struct DevicePlan<'a> {
    settings: &'a DeviceSettings,
    /// The part for selected applications.
    captured: Option<&'a Captured<'a>>,
    /// The outer tunnel, if this one goes through another.
    through: Option<&'a Through>,
    /// Endpoint names that the device's process looks up.
    left: &'a [Named],
}

impl DevicePlan<'_> {
    fn order(&self, interface: &str) -> Result<DeviceOrder, String> {
        let interface = InterfaceName::for_new(interface).map_err(|error| error.to_string())?;
        Ok(DeviceOrder {
            capture: self.captured.map(|captured| captured.file.to_owned()),
            mark: self.captured.and_then(|captured| captured.mark),
            beneath: self.through.map(Through::beneath),
            ..DeviceOrder::new(interface, self.settings)
        })
    }

    /// Called once the device runs.
    fn begun(&self) {
        if let Some(captured) = self.captured {
            captured.begun();
        }
    }

    /// Completes the work after the tunnel has been brought up, or has failed to be.
    fn settle(&self, request: &Request<'_>, brought_up: &Result<(), adapter::UpError>) {
        if let Some(captured) = self.captured {
            captured.settle(brought_up);
        }
        if let (Some(through), Ok(())) = (self.through, brought_up) {
            through.tell_of_endpoints();
            transparent::hand_over(through.inner.as_str(), self.left);
        }
        if brought_up.is_ok() && request.personality == Compatibility::Taupe {
            for sentence in taupe_inspect::status::warnings(request.interface) {
                say(&format_args!("[!] {sentence}"));
            }
        }
    }
}

/// Devices in background processes, which run this program as `taupe device`.
struct Background<'a>(DevicePlan<'a>);

impl Devices for Background<'_> {
    fn start(&mut self, interface: &str) -> Result<(), String> {
        let order = self.0.order(interface)?;
        let mut arguments = vec![OsString::from("taupe"), "device".into()];
        if let Some(file) = &order.capture {
            arguments.extend(["--capture".into(), file.into()]);
        }
        if let Some(mark) = order.mark {
            arguments.extend(["--mark".into(), mark.to_string().into()]);
        }
        if let Some(outer) = &order.beneath {
            arguments.extend(["--via".into(), (&outer.file).into()]);
            arguments.push(format!("--via-name={}", outer.interface).into());
            arguments.push(format!("--via-mtu={}", outer.mtu).into());
        }
        arguments.extend(["--".into(), interface.into()]);
        background::start(&order, &arguments).map_err(|error| error.to_string())?;
        self.0.begun();
        Ok(())
    }
}

fn take_down(
    word: &OsStr,
    save: bool,
    keep_closed: bool,
    personality: Compatibility,
    mut console: Console,
) -> Result<(), Failure> {
    let (interface, missing, file) = match find(word, personality) {
        Ok(conf) => {
            let file = readable(&conf).map(|file| (conf.path, file));
            (conf.interface, None, file.map(Some))
        }
        // The journal of `up` is sufficient without a file.
        Err(Failure::Conf(error @ conf::Error::Missing { .. })) => match conf::interface(word) {
            Some(interface) => (interface, Some(error), Ok(None)),
            None => return Err(error.into()),
        },
        Err(failure) => return Err(failure),
    };
    let (file, problem) = match &file {
        Ok(file) => (file.as_ref(), None),
        Err(problem) => (None, Some(problem.as_str())),
    };
    let request = Down {
        interface: interface.as_str(),
        file: file.map(|(path, file)| (&**path, file)),
        problem,
        personality,
        save: save && !is_transparent(interface.as_str()),
    };
    let ending = Ending::of(interface.as_str());
    let down = adapter::down(&request, &mut console);
    if let Ok(()) = &down
        && let Some(ending) = ending
    {
        ending.wait();
    }
    if let Ok(()) | Err(DownError::NotUp { .. }) = &down
        && let_go(interface.as_str(), keep_closed)?
        && down.is_err()
    {
        // Releasing the applications counts as success.
        return Ok(());
    }
    match (down, missing) {
        (Err(DownError::NotUp { .. }), Some(missing)) => Err(missing.into()),
        (outcome, _) => Ok(outcome?),
    }
}

/// Reads a file if it has no errors, or returns what is wrong. A tunnel can be taken down without
/// its file.
fn readable(conf: &Conf) -> Result<file::File, String> {
    let checked = check_alone(conf, Compatibility::Taupe);
    let checked = checked.map_err(|unreadable| unreadable.to_string())?;
    checked.file.ok_or_else(|| {
        let file = conf.shown.display();
        let errors = check::count(&checked.remarks);
        format!("{file} has {errors} (`taupe check` says which)")
    })
}

fn reload(conf: &Conf, console: &mut Console) -> Result<(), Failure> {
    let Checked { file, remarks, .. } = check(conf, Compatibility::Taupe)?;
    let Some(mut file) = file else {
        return Err(wrong(conf, &remarks));
    };
    let interface = conf.interface.as_str();
    let outer = via::present(interface);
    let admitted = outer
        .as_ref()
        .map(|outer| via::admit(outer, conf, &mut file));
    let admitted = admitted.transpose()?;
    let plan = if is_in_effect(interface)? {
        transparent::plan_again(conf, &mut file)?
    } else if taupe_os_linux::interface::index(interface).is_none() {
        // The reload itself reports that the tunnel is not up.
        None
    } else {
        without_applications(conf, &file)?;
        None
    };
    for remark in &remarks {
        say(remark);
    }
    let sentences = admitted.iter().flat_map(|admitted| &admitted.sentences);
    sentences.for_each(|sentence| say(sentence));
    // As in `up`, a name that has no address now does not block the reload.
    let left = match (admitted, &plan) {
        (Some(admitted), _) => admitted.left,
        (None, Some(_)) => endpoint_names::leave(&mut file, Leave::Missing),
        (None, None) => Vec::new(),
    };
    let fixed = plan.as_ref().map(|plan| &plan.fixed);
    let request = Request {
        outer: outer.as_ref(),
        ..request(conf, &file, Compatibility::Taupe, Options::default(), fixed)
    };
    let mut replaced = None;
    // Rules come before peers: newly selected applications are blocked until the peers are set.
    let mut choose = || {
        if let Some(plan) = &plan {
            replaced = replace(interface, &plan.choice).map_err(|fault| fault.to_string())?;
        }
        Ok(())
    };
    let reloaded = adapter::reload(&request, &mut choose, console);
    console.end_routes();
    if let Err(error) = reloaded {
        let taken_back = replaced.map_or(Ok(()), Replaced::take_back);
        return Err(match taken_back {
            Ok(()) => error.into(),
            Err(fault) => Failure::NotTakenBack {
                error: Box::new(error),
                interface: interface.to_owned(),
                fault: Box::new(fault),
            },
        });
    }
    transparent::hand_over(interface, &left);
    plan.iter().for_each(transparent::tell_of);
    Ok(())
}

fn save(conf: &Conf, personality: Compatibility) -> Result<(), Failure> {
    let Checked { file, remarks, .. } = check(conf, personality)?;
    let Some(file) = file else {
        return Err(wrong(conf, &remarks));
    };
    if is_transparent(conf.interface.as_str()) {
        return Err(Failure::WouldLose {
            interface: conf.interface.to_string(),
            file: conf.shown.display().to_string(),
        });
    }
    let request = request(conf, &file, personality, Options::default(), None);
    Ok(adapter::save(&request, &mut Console::new(true))?)
}

fn request<'a>(
    conf: &'a Conf,
    file: &'a file::File,
    personality: Compatibility,
    options: Options,
    transparent: Option<&'a TransparentSettings>,
) -> Request<'a> {
    Request {
        interface: conf.interface.as_str(),
        config: &conf.path,
        file,
        personality,
        options,
        transparent,
        outer: None,
    }
}

/// Prints the file for `wg setconf`. Fails if the file has errors, except as `wg-quick`, which does
/// not check it.
fn strip(conf: &Conf, personality: Compatibility) -> Result<(), Failure> {
    let checked = check(conf, personality)?;
    if personality == Compatibility::Taupe && checked.file.is_none() {
        return Err(wrong(conf, &checked.remarks));
    }
    let stripped = check::strip(conf, &checked.text, personality.dialect());
    Ok(print(&stripped)?)
}
