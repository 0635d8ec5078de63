//! The terminal: raw mode on its alternate screen, the loop of events, and the way back.
//!
//! ```text
//! thread "readings": Source ─┐
//! thread "keys": terminal ───┼─► events ─► the loop: model, view
//! signals of the caller ─────┘
//! ```
//!
//! The loop sleeps until there is an event. A reading or a change that takes long does not keep it from
//! drawing.

use crate::backend::Output;
use crate::input::action;
use crate::model::{Change, Effect, Model, Screen};
use crate::reading::Reading;
use crate::text::Text;
use crate::view::{Palette, draw};
use crossterm::cursor::Show;
use crossterm::event::{self, KeyEvent};
use crossterm::execute;
use crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui_core::terminal::Terminal;
use std::io::{self, stdout};
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Once};
use std::thread;
use std::time::{Duration, Instant};

/// Facts, and changes of them.
pub trait Source: Send + 'static {
    /// Reads the facts.
    ///
    /// # Errors
    /// Returns a sentence with the reason.
    fn read(&mut self) -> Result<Reading, Text>;

    /// Executes a change, and returns sentences about it.
    ///
    /// # Errors
    /// Returns a sentence with the reason.
    fn change(&mut self, change: &Change) -> Result<Text, Text>;
}

/// Settings of the view.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Time between two readings.
    pub interval: Duration,
    /// Styles.
    pub palette: Palette,
    /// First screen.
    pub screen: Screen,
    /// Sentence for the case that there are no tunnels.
    pub without_tunnels: Text,
}

/// Events that wait for the loop, at most.
const MAX_EVENTS: usize = 64;

enum Event {
    Reading(Result<Reading, Text>),
    Changed(Result<Text, Text>),
    Key(KeyEvent),
    /// The terminal has another size.
    Resized,
    Signal(Signal),
}

/// A request of the system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    /// End, and restore the terminal.
    End,
    /// Stop this process, after the terminal is restored.
    Stop,
    /// The process was continued.
    Continue,
}

/// Sends signals to the loop.
#[derive(Clone)]
pub struct Signals(SyncSender<Event>);

impl Signals {
    /// Sends a signal, and waits if many events wait.
    pub fn send(&self, signal: Signal) {
        let _ = self.0.send(Event::Signal(signal));
    }
}

/// Order to the thread of readings.
enum Order {
    /// Look whether readings are wanted.
    Pause,
    Change(Change),
}

/// Runs the view until the user or a signal ends it. `catch` begins to pass signals to the loop;
/// `stop` stops this process, and returns when it is continued. A change that has begun is finished
/// first; its result is returned then.
///
/// # Errors
/// Returns the error of the terminal, which is restored in any case.
pub fn run(
    settings: Settings,
    source: impl Source,
    catch: impl FnOnce(Signals) -> io::Result<()>,
    stop: impl Fn(),
) -> io::Result<Option<Result<Text, Text>>> {
    let (sender, events) = sync_channel(MAX_EVENTS);
    let (orders, received) = sync_channel(MAX_EVENTS);
    restore_after_panic();
    catch(Signals(sender.clone()))?;
    let screen = AlternateScreen::enter()?;
    let mut terminal = Terminal::new(Output::new())?;
    let readings = sender.clone();
    let interval = settings.interval;
    let is_paused = Arc::new(AtomicBool::new(false));
    thread::Builder::new().name("readings".into()).spawn({
        let is_paused = Arc::clone(&is_paused);
        move || serve(source, interval, &is_paused, &received, &readings)
    })?;
    thread::Builder::new()
        .name("keys".into())
        .spawn(move || read_keys(&sender))?;
    let mut model = Model::new(settings.interval, settings.without_tunnels);
    model.show(settings.screen);
    let outcome = follow(
        &mut terminal,
        &mut model,
        settings.palette,
        &events,
        &Orders {
            sender: orders,
            is_paused,
        },
        &stop,
    );
    drop(terminal);
    drop(screen);
    outcome?;
    Ok(model.is_busy.then(|| last_result(&events)).flatten())
}

/// Waits for the result of a change. `None` if a signal ends the wait.
fn last_result(events: &Receiver<Event>) -> Option<Result<Text, Text>> {
    events.iter().find_map(|event| match event {
        Event::Changed(result) => Some(Some(result)),
        Event::Signal(Signal::End) => Some(None),
        _ => None,
    })?
}

/// The loop of events.
fn follow(
    terminal: &mut Terminal<Output>,
    model: &mut Model,
    palette: Palette,
    events: &Receiver<Event>,
    orders: &Orders,
    stop: &impl Fn(),
) -> io::Result<()> {
    loop {
        terminal.draw(|frame| draw(frame, model, palette))?;
        let Ok(event) = events.recv() else {
            return Ok(());
        };
        match event {
            Event::Reading(reading) => model.update(reading),
            Event::Changed(result) => model.changed(result),
            Event::Resized => {}
            Event::Signal(Signal::End) => return Ok(()),
            Event::Signal(Signal::Stop) => suspend(terminal, stop)?,
            Event::Signal(Signal::Continue) => {
                // A shell may have left raw mode meanwhile.
                raw_mode()?;
                terminal.clear()?;
            }
            Event::Key(key) => {
                let Some(action) = action(key, &model.mode) else {
                    continue;
                };
                match model.act(action) {
                    Effect::None => {}
                    Effect::Quit => return Ok(()),
                    Effect::Suspend => suspend(terminal, stop)?,
                    Effect::Redraw => terminal.clear()?,
                    Effect::Pause(is_paused) => orders.pause(is_paused)?,
                    Effect::Apply(change) => {
                        if !orders.send(Order::Change(change))? {
                            let text = "still busy: nothing was changed, try again";
                            model.changed(Err(Text::new(text)));
                        }
                    }
                }
            }
        }
    }
}

fn suspend(terminal: &mut Terminal<Output>, stop: &impl Fn()) -> io::Result<()> {
    AlternateScreen::leave();
    stop();
    AlternateScreen::resume()?;
    terminal.clear()
}

/// The way to the thread of readings.
struct Orders {
    sender: SyncSender<Order>,
    is_paused: Arc<AtomicBool>,
}

impl Orders {
    /// Passes an order. Returns false if too many orders wait.
    fn send(&self, order: Order) -> io::Result<bool> {
        match self.sender.try_send(order) {
            Ok(()) => Ok(true),
            Err(TrySendError::Full(_)) => Ok(false),
            Err(TrySendError::Disconnected(_)) => Err(io::Error::other("the readings have ended")),
        }
    }

    /// Pauses the readings, or lets them continue.
    fn pause(&self, is_paused: bool) -> io::Result<()> {
        self.is_paused.store(is_paused, Ordering::Relaxed);
        // If too many orders wait, the thread looks after each of them.
        self.send(Order::Pause).map(drop)
    }
}

/// Ends the loop if the thread that has it panics. With `panic = "abort"` the process ends before.
struct EndOnPanic<'a>(&'a SyncSender<Event>);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let _ = self.0.send(Event::Signal(Signal::End));
        }
    }
}

/// Reads the facts once in each interval and after each change, until the loop ends.
fn serve(
    mut source: impl Source,
    interval: Duration,
    is_paused: &AtomicBool,
    orders: &Receiver<Order>,
    events: &SyncSender<Event>,
) {
    let _end = EndOnPanic(events);
    let mut next = Instant::now();
    loop {
        let now = Instant::now();
        let is_paused = is_paused.load(Ordering::Relaxed);
        if !is_paused && now >= next {
            if events.send(Event::Reading(source.read())).is_err() {
                return;
            }
            next = now + interval;
        }
        let order = match is_paused {
            true => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => orders.recv_timeout(next.saturating_duration_since(Instant::now())),
        };
        match order {
            Ok(Order::Change(change)) => {
                let changed = source.change(&change);
                if events.send(Event::Changed(changed)).is_err() {
                    return;
                }
                next = Instant::now();
            }
            Ok(Order::Pause) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Reads keys until the terminal is gone or the loop has ended.
fn read_keys(events: &SyncSender<Event>) {
    let _end = EndOnPanic(events);
    loop {
        let event = match event::read() {
            Ok(event::Event::Key(key)) => Event::Key(key),
            Ok(event::Event::Resize(..)) => Event::Resized,
            Ok(_) => continue,
            Err(_) => Event::Signal(Signal::End),
        };
        let is_end = matches!(event, Event::Signal(_));
        if events.send(event).is_err() || is_end {
            return;
        }
    }
}

/// True while the terminal is in raw mode on its alternate screen.
static IS_ENTERED: AtomicBool = AtomicBool::new(false);

/// The alternate screen, in raw mode. Dropped, it restores the terminal.
struct AlternateScreen;

impl AlternateScreen {
    fn enter() -> io::Result<Self> {
        // Restores what was done, if the rest fails.
        let screen = Self;
        Self::resume()?;
        Ok(screen)
    }

    fn resume() -> io::Result<()> {
        IS_ENTERED.store(true, Ordering::SeqCst);
        raw_mode()?;
        execute!(stdout(), EnterAlternateScreen)
    }

    /// Restores the terminal. There is nobody to tell if that fails.
    fn leave() {
        if IS_ENTERED.swap(false, Ordering::SeqCst) {
            let _ = execute!(stdout(), LeaveAlternateScreen, Show);
            let _ = disable_raw_mode();
        }
    }
}

/// Sets raw mode, also if crossterm believes that it is set.
fn raw_mode() -> io::Result<()> {
    disable_raw_mode()?;
    enable_raw_mode()
}

impl Drop for AlternateScreen {
    fn drop(&mut self) {
        Self::leave();
    }
}

/// Has a panic restore the terminal before it prints its message.
fn restore_after_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            AlternateScreen::leave();
            usual(panic);
        }));
    });
}
