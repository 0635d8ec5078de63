//! Streams of events: the content of the page, at most once a second.

use crate::live::Live;
use axum::body::Bytes;
use http_body::Frame;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use taupe_web_link::Secret;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Streams at once.
pub(crate) const MAX_STREAMS: usize = 16;

/// The body of an answer that ends with the session of its browser. When it is dropped, its stream ends.
pub(crate) struct Events {
    events: Receiver<Bytes>,
    _place: OwnedSemaphorePermit,
}

impl Events {
    /// Begins a stream. Returns `None` if there are too many.
    pub(crate) fn begin(
        live: &Arc<Live>,
        places: &Arc<Semaphore>,
        session: Secret,
    ) -> Option<Self> {
        let place = Arc::clone(places).try_acquire_owned().ok()?;
        // A browser that does not read gets the newest state later, and no queue.
        let (sender, events) = channel(1);
        let live = Arc::clone(live);
        tokio::spawn(async move { feed(&live, &session, &sender).await });
        Some(Self {
            events,
            _place: place,
        })
    }
}

/// Returns the places of all streams.
pub(crate) fn places() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MAX_STREAMS))
}

async fn feed(live: &Live, session: &Secret, sender: &Sender<Bytes>) {
    let mut views = live.views();
    while let Some(view) = live.next(&mut views).await {
        if !live.sessions().admits(session) || sender.send(view.event).await.is_err() {
            return;
        }
    }
}

impl http_body::Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let event = self.events.poll_recv(context);
        event.map(|event| event.map(|event| Ok(Frame::data(event))))
    }
}
