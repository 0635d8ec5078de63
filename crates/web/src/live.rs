//! The newest state, which all browsers share. The parent reads it when a browser waits for it.

use crate::facts::Facts;
use crate::history::History;
use crate::page;
use crate::sessions::Sessions;
use crate::text::Text;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
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
}

/// Parts that the connections of all browsers share.
pub(crate) struct Live {
    sessions: Mutex<Sessions>,
    history: Mutex<History>,
    view: watch::Sender<Option<View>>,
    wanted: Notify,
}

impl Live {
    pub(crate) fn new(sessions: Sessions) -> Self {
        Self {
            sessions: Mutex::new(sessions),
            history: Mutex::default(),
            view: watch::Sender::new(None),
            wanted: Notify::new(),
        }
    }

    pub(crate) fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a browser wants a state that is not there.
    pub(crate) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Shows a state to all browsers.
    pub(crate) fn publish(&self, facts: &Facts) {
        let now = Instant::now();
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.add(facts, now);
        self.show(page::content(facts, &history), now);
    }

    /// Shows all browsers why there is no state.
    pub(crate) fn publish_error(&self, reason: &Text) {
        self.show(page::unreadable(reason), Instant::now());
    }

    fn show(&self, content: maud::Markup, at: Instant) {
        let content = content.into_string().into();
        self.view.send_replace(Some(View { at, content }));
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
