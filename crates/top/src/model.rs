//! State of the view: the tables of the latest reading, and what the user has selected.

mod order;
mod prompt;
mod rates;
mod tables;

use crate::history::Histories;
use crate::reading::Reading;
use crate::text::Text;
use rates::Meters;
use std::collections::BTreeSet;
use std::time::Duration;

pub(crate) use prompt::Mode;
pub use prompt::{Change, Place};
pub(crate) use tables::{ApplicationRow, ConnectionRow, DropRow, PeerRow, Tables, TunnelRow};

/// A session ends after this time without a new handshake (`REJECT_AFTER_TIME`, whitepaper section
/// 6.1).
pub(crate) const SESSION_LIFETIME: Duration = Duration::from_secs(180);

/// Characters of a filter, at most.
const MAX_FILTER: usize = 64;

/// A screen of the view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Screen {
    /// Tunnels, the busiest applications, and drops.
    Overview,
    /// Peers of all tunnels.
    Peers,
    /// Applications with connections or rules.
    Applications,
    /// Dropped packets by reasons.
    Drops,
    /// Connections.
    Connections,
}

impl Screen {
    /// All screens, in the order of their keys.
    pub const ALL: [Self; 5] = [
        Self::Overview,
        Self::Peers,
        Self::Applications,
        Self::Drops,
        Self::Connections,
    ];

    pub(crate) const fn index(self) -> usize {
        self as usize
    }

    fn after(self, steps: usize) -> Self {
        let next = (self.index() + steps) % Self::ALL.len();
        Self::ALL.get(next).copied().unwrap_or(self)
    }

    /// Returns the title.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Peers => "Peers",
            Self::Applications => "Applications",
            Self::Drops => "Drops",
            Self::Connections => "Connections",
        }
    }
}

/// Action of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Quit,
    Suspend,
    Redraw,
    Show(Screen),
    NextScreen,
    PreviousScreen,
    Step(Step),
    Move(Place),
    Sort,
    Reverse,
    BeginFilter,
    Pause,
    Help,
    Type(char),
    Erase,
    Accept,
    Cancel,
}

/// A step of the selection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
}

/// Work for the terminal loop after an action.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    None,
    Quit,
    Suspend,
    /// Draw everything again.
    Redraw,
    Pause(bool),
    Apply(Change),
}

/// Result of a change, or another sentence for the user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Notice {
    pub(crate) text: Text,
    pub(crate) is_error: bool,
}

/// A selected row. It is known by its key, so that it stays selected when the order changes.
#[derive(Clone, Default, Debug)]
struct Cursor {
    key: Option<String>,
    index: usize,
}

/// State of the view.
#[derive(Debug)]
pub struct Model {
    pub(crate) tables: Option<Tables>,
    pub(crate) applications: Histories,
    pub(crate) tunnels: Histories,
    meters: Meters,
    pub(crate) screen: Screen,
    cursors: [Cursor; 5],
    sorts: [usize; 5],
    reversed: [bool; 5],
    pub(crate) filter: String,
    pub(crate) mode: Mode,
    pub(crate) is_paused: bool,
    pub(crate) is_busy: bool,
    pub(crate) notice: Option<Notice>,
    /// Reason why the latest reading failed.
    pub(crate) fault: Option<Text>,
    /// Time between two readings.
    pub(crate) interval: Duration,
    /// Sentence for the case that there are no tunnels.
    pub(crate) without_tunnels: Text,
    /// Rows of the table in the latest frame, for steps of a page.
    pub(crate) page: usize,
    /// First row of each table in the latest frame.
    pub(crate) first: [usize; 5],
    /// Lines of the overview that did not fit into the latest frame.
    pub(crate) overflow: usize,
}

impl Model {
    /// Returns a model without a reading.
    #[must_use]
    pub fn new(interval: Duration, without_tunnels: Text) -> Self {
        Self {
            tables: None,
            applications: Histories::default(),
            tunnels: Histories::default(),
            meters: Meters::default(),
            screen: Screen::Overview,
            cursors: Default::default(),
            sorts: [0; 5],
            reversed: [false; 5],
            filter: String::new(),
            mode: Mode::Browse,
            is_paused: false,
            is_busy: false,
            notice: None,
            fault: None,
            interval,
            without_tunnels,
            page: 1,
            first: [0; 5],
            overflow: 0,
        }
    }

    /// Takes the next reading, or the reason why there is none. The tables then stay as they are.
    pub fn update(&mut self, reading: Result<Reading, Text>) {
        if self.is_paused {
            return;
        }
        let reading = match reading {
            Ok(reading) => reading,
            Err(fault) => {
                self.fault = Some(fault);
                return;
            }
        };
        self.fault = None;
        let tables = Tables::new(reading, &mut self.meters);
        let samples = tables.applications.iter();
        self.applications
            .push(samples.map(|row| (row.key.as_str(), row.rate.map_or(0, rates::sum))));
        let samples = tables.tunnels.iter();
        self.tunnels
            .push(samples.map(|row| (row.name.as_str(), row.rate.map_or(0, rates::sum))));
        self.tables = Some(tables);
    }

    /// Selects a screen.
    pub fn show(&mut self, screen: Screen) {
        self.screen = screen;
    }

    /// Takes the result of a change: sentences about it, or the reason why it failed.
    pub(crate) fn changed(&mut self, result: Result<Text, Text>) {
        self.is_busy = false;
        let is_error = result.is_err();
        let text = result.unwrap_or_else(|error| error);
        self.notice = Some(Notice { text, is_error });
    }

    /// Executes the action of a key.
    pub(crate) fn act(&mut self, action: Action) -> Effect {
        if !self.is_busy {
            self.notice = None;
        }
        match action {
            Action::Quit => return Effect::Quit,
            Action::Suspend => return Effect::Suspend,
            Action::Redraw => return Effect::Redraw,
            Action::Show(screen) => self.screen = screen,
            Action::NextScreen => self.screen = self.screen.after(1),
            Action::PreviousScreen => self.screen = self.screen.after(Screen::ALL.len() - 1),
            Action::Step(step) => self.step(step),
            Action::Move(place) => self.begin_move(place),
            Action::Sort => {
                let at = self.screen.index();
                let count = order::names(self.screen).len().max(1);
                if let Some(sort) = self.sorts.get_mut(at) {
                    *sort = (*sort + 1) % count;
                }
            }
            Action::Reverse => {
                if let Some(is_reversed) = self.reversed.get_mut(self.screen.index()) {
                    *is_reversed = !*is_reversed;
                }
            }
            Action::BeginFilter => self.mode = Mode::Filter,
            Action::Pause => {
                self.is_paused = !self.is_paused;
                return Effect::Pause(self.is_paused);
            }
            Action::Help => self.mode = Mode::Help,
            Action::Type(c) => return self.type_character(c),
            Action::Erase => {
                self.filter.pop();
            }
            Action::Accept => return self.accept(),
            Action::Cancel => self.cancel(),
        }
        Effect::None
    }

    fn type_character(&mut self, c: char) -> Effect {
        match &self.mode {
            Mode::Filter if self.filter.chars().count() < MAX_FILTER => self.filter.push(c),
            Mode::Choose { .. } => self.choose(c),
            _ => {}
        }
        Effect::None
    }

    fn cancel(&mut self) {
        match std::mem::replace(&mut self.mode, Mode::Browse) {
            Mode::Filter | Mode::Browse => self.filter.clear(),
            Mode::Help | Mode::Choose { .. } | Mode::Confirm(_) => {}
        }
    }

    fn step(&mut self, step: Step) {
        let (rows, page) = (self.rows(), self.page.max(1));
        let (from, last) = match self.screen {
            Screen::Overview => (self.cursor().index.min(self.overflow), self.overflow),
            _ => (
                self.position(&rows).unwrap_or_default(),
                rows.len().saturating_sub(1),
            ),
        };
        let to = match step {
            Step::Up => from.saturating_sub(1),
            Step::Down => from.saturating_add(1),
            Step::PageUp => from.saturating_sub(page),
            Step::PageDown => from.saturating_add(page),
            Step::First => 0,
            Step::Last => usize::MAX,
        };
        let to = to.min(last);
        let key = rows
            .get(to)
            .and_then(|row| self.key(*row))
            .map(str::to_owned);
        if let Some(cursor) = self.cursors.get_mut(self.screen.index()) {
            *cursor = Cursor { key, index: to };
        }
    }

    /// Returns the first line of the overview to be shown.
    pub(crate) fn scrolled(&self) -> usize {
        self.cursor().index.min(self.overflow)
    }

    fn cursor(&self) -> Cursor {
        let cursor = self.cursors.get(self.screen.index());
        cursor.cloned().unwrap_or_default()
    }

    /// Returns the key of a row of the screen's table.
    fn key(&self, row: usize) -> Option<&str> {
        let tables = self.tables.as_ref()?;
        let key = match self.screen {
            Screen::Overview => return None,
            Screen::Peers => &tables.peers.get(row)?.key,
            Screen::Applications => &tables.applications.get(row)?.key,
            Screen::Drops => &tables.drops.get(row)?.key,
            Screen::Connections => &tables.connections.get(row)?.key,
        };
        Some(key)
    }

    /// Returns the position of the selected row among `rows`, which are those of the screen.
    pub(crate) fn position(&self, rows: &[usize]) -> Option<usize> {
        let cursor = self.cursor();
        let last = rows.len().checked_sub(1)?;
        let key = cursor.key.as_deref();
        let by_key = key.and_then(|key| rows.iter().position(|row| self.key(*row) == Some(key)));
        Some(by_key.unwrap_or(cursor.index).min(last))
    }

    /// Returns the rows of the screen's table that match the filter, in their order.
    pub(crate) fn rows(&self) -> Vec<usize> {
        let Some(tables) = &self.tables else {
            return Vec::new();
        };
        let at = self.screen.index();
        let sort = self.sorts.get(at).copied().unwrap_or_default();
        let mut rows = order::sorted(tables, self.screen, sort, &self.filter.to_lowercase());
        if self
            .reversed
            .get(at)
            .is_some_and(|is_reversed| *is_reversed)
        {
            rows.reverse();
        }
        rows
    }

    /// Returns the applications, the busiest first.
    pub(crate) fn busiest(&self) -> Vec<&ApplicationRow> {
        let Some(tables) = &self.tables else {
            return Vec::new();
        };
        let filter = self.filter.to_lowercase();
        let rows = order::sorted(tables, Screen::Applications, 0, &filter);
        let rows = rows.into_iter();
        rows.filter_map(|row| tables.applications.get(row))
            .collect()
    }

    /// Returns the name of the order, and says if it is reversed. `None` without a table.
    pub(crate) fn order(&self) -> Option<String> {
        let at = self.screen.index();
        let sort = self.sorts.get(at).copied().unwrap_or_default();
        let name = order::names(self.screen).get(sort)?;
        let is_reversed = self
            .reversed
            .get(at)
            .is_some_and(|is_reversed| *is_reversed);
        Some(if is_reversed {
            format!("{name}, reversed")
        } else {
            (*name).to_owned()
        })
    }

    fn selected_application(&self) -> Option<&ApplicationRow> {
        if self.screen != Screen::Applications {
            return None;
        }
        let rows = self.rows();
        let row = rows.get(self.position(&rows)?)?;
        self.tables.as_ref()?.applications.get(*row)
    }

    /// Returns the names of tunnels that select applications.
    fn selecting_tunnels(&self) -> BTreeSet<Text> {
        let tunnels = self.tables.iter().flat_map(|tables| &tables.tunnels);
        let selecting = tunnels.filter(|tunnel| tunnel.selects);
        selecting.map(|tunnel| tunnel.name.clone()).collect()
    }
}
