//! The newest state, which all windows share. The parent reads it when a window waits for it.

use crate::facts::Facts;
use crate::history::History;
use crate::page::{self, Controls};
use crate::sessions::Sessions;
use crate::switches::Switches;
use crate::text::Text;
use axum::body::Bytes;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use taupe_web_link::{Outcome, Secret};
use tokio::sync::{Notify, watch};

/// Shortest time between two readings.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

/// Time for which a page waits for the state.
const PATIENCE: Duration = Duration::from_secs(8);

/// The content of the page at one time.
#[derive(Clone)]
pub(crate) struct View {
    at: Instant,
    pub(crate) content: Arc<str>,
    /// The content as an event of a stream.
    pub(crate) event: Bytes,
}

/// Parts that all connections share.
pub(crate) struct Live {
    /// Value that each event repeats. Requests do not contain it, so another program that later listens
    /// at the same address does not know it.
    run: Secret,
    has_switches: bool,
    switches: Switches,
    sessions: Mutex<Sessions>,
    history: Mutex<History>,
    view: watch::Sender<Option<View>>,
    wanted: Notify,
    /// Number of the token that has admitted the latest browser.
    admitted: watch::Sender<u32>,
}

impl Live {
    pub(crate) fn new(sessions: Sessions, run: Secret, has_switches: bool) -> Self {
        Self {
            run,
            has_switches,
            switches: Switches::new(),
            sessions: Mutex::new(sessions),
            history: Mutex::default(),
            view: watch::Sender::new(None),
            wanted: Notify::new(),
            admitted: watch::Sender::new(0),
        }
    }

    /// Returns the value that each event repeats.
    pub(crate) fn run(&self) -> String {
        self.run.reveal()
    }

    /// Returns true if the page may change the applications of tunnels.
    pub(crate) fn has_switches(&self) -> bool {
        self.has_switches
    }

    pub(crate) fn switches(&self) -> &Switches {
        &self.switches
    }

    pub(crate) fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Exchanges the token of a browser for a session.
    pub(crate) fn admit(&self, token: &str) -> Option<Secret> {
        let (session, number) = self.sessions().exchange(token, Instant::now())?;
        self.admitted.send_replace(number);
        // Its forms have the value of another session.
        self.expire();
        Some(session)
    }

    /// Returns the numbers of tokens that admit browsers.
    pub(crate) fn admissions(&self) -> watch::Receiver<u32> {
        self.admitted.subscribe()
    }

    /// Waits until a window wants a state that is not there.
    pub(crate) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Shows a state in all windows.
    pub(crate) fn publish(&self, facts: &Facts) {
        let now = Instant::now();
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.add(facts, now);
        let form = self.sessions().form().map(Secret::reveal);
        let controls = form.filter(|_| self.has_switches).map(|form| Controls {
            form,
            latest: self.switches.latest(),
        });
        self.show(page::content(facts, &history, controls.as_ref()), now);
    }

    /// Notes the result of a change, which the next state shows.
    pub(crate) fn finish_switch(&self, outcome: Outcome) {
        self.expire();
        self.switches.finish(outcome);
    }

    /// Makes the view too old for pages that are loaded from now on.
    fn expire(&self) {
        self.view.send_if_modified(|view| {
            let old = Instant::now().checked_sub(INTERVAL);
            if let (Some(view), Some(old)) = (view, old) {
                view.at = old;
            }
            false
        });
    }

    /// Shows in all windows the reason why there is no state.
    pub(crate) fn publish_error(&self, reason: &Text) {
        self.show(page::unreadable(reason), Instant::now());
    }

    fn show(&self, content: maud::Markup, at: Instant) {
        let content = content.into_string();
        // The content has no line feeds, which would end the line.
        let event = format!("event: state\ndata: {}\ndata: {content}\n\n", self.run());
        self.view.send_replace(Some(View {
            at,
            content: content.into(),
            event: event.into(),
        }));
    }

    /// Returns a state that is no older than a second, or none if the parent takes too long.
    pub(crate) async fn fresh(&self) -> Option<View> {
        let mut views = self.view.subscribe();
        let current = views.borrow_and_update().clone();
        if let Some(view) = current.filter(|view| view.at.elapsed() < INTERVAL) {
            return Some(view);
        }
        tokio::time::timeout(PATIENCE, self.next(&mut views))
            .await
            .ok()?
    }

    /// Returns the views that follow.
    pub(crate) fn views(&self) -> watch::Receiver<Option<View>> {
        self.view.subscribe()
    }

    /// Waits for the next view.
    pub(crate) async fn next(&self, views: &mut watch::Receiver<Option<View>>) -> Option<View> {
        self.wanted.notify_one();
        views.changed().await.ok()?;
        views.borrow_and_update().clone()
    }
}
