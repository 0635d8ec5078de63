//! Connections of browsers, and their limits: each has one request, a limited size and a limited time.

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// Connections at once. Others are closed.
const MAX_CONNECTIONS: usize = 64;

/// Bytes of a request line with its headers, and headers, at most.
const MAX_REQUEST: usize = 16 << 10;
const MAX_HEADERS: usize = 64;

/// Time in which a request must have arrived.
const REQUEST_TIME: Duration = Duration::from_secs(3);

/// Time of a connection: with a usual answer, and with a stream of events. A browser opens the next
/// stream by itself.
const ANSWER_TIME: Duration = Duration::from_secs(15);
const STREAM_TIME: Duration = Duration::from_secs(3600);

/// Marks a connection whose answer is a stream of events.
#[derive(Clone, Default)]
pub(crate) struct IsStream(Arc<AtomicBool>);

impl IsStream {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the places of all connections.
pub(crate) fn places() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MAX_CONNECTIONS))
}

/// Serves connections until no more can be accepted.
pub(crate) async fn serve<C: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    mut accept: impl FnMut(&mut Context<'_>) -> Poll<io::Result<C>>,
    router: Router,
    places: Arc<Semaphore>,
) -> io::Error {
    loop {
        let connection = match poll_fn(&mut accept).await {
            Ok(connection) => connection,
            Err(error) if is_final(&error) => return error,
            Err(_) => {
                // Descriptors may be short for a while.
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            continue;
        };
        let router = router.clone();
        tokio::spawn(async move {
            handle(connection, router).await;
            drop(place);
        });
    }
}

/// Returns true if the socket itself is unusable. Other errors concern one connection, or end.
fn is_final(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::BADF | Errno::INVAL | Errno::NOTSOCK))
}

async fn handle(connection: impl AsyncRead + AsyncWrite + Unpin, router: Router) {
    let is_stream = IsStream::default();
    let service = TowerToHyperService::new(router.layer(Extension(is_stream.clone())));
    let answering = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIME)
        .max_buf_size(MAX_REQUEST)
        .max_headers(MAX_HEADERS)
        .keep_alive(false)
        .serve_connection(TokioIo::new(connection), service);
    let mut answering = pin!(answering);
    let first = timeout(ANSWER_TIME, answering.as_mut()).await;
    if first.is_err() && is_stream.0.load(Ordering::Relaxed) {
        // The client is gone, or the time is over.
        let _ = timeout(STREAM_TIME, answering).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    /// Returns the answer to these bytes, of which the server has read as many as it wants.
    async fn exchange(bytes: &[u8]) -> String {
        let router = Router::new().route("/", get(async || "page"));
        let (mut client, server) = duplex(1 << 20);
        client.write_all(bytes).await.expect("sent");
        handle(server, router).await;
        let mut text = String::new();
        let _ = client.read_to_string(&mut text).await;
        text
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_has_a_limited_size_and_time() {
        let answer = exchange(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("connection: close\r\n"), "{answer}");
        let large = format!("GET / HTTP/1.1\r\nA: {}\r\n\r\n", "b".repeat(MAX_REQUEST));
        let answer = exchange(large.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
        let many = format!(
            "GET / HTTP/1.1\r\n{}\r\n",
            "a: b\r\n".repeat(MAX_HEADERS + 1)
        );
        let answer = exchange(many.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
        let answer = exchange(b"nonsense\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        let (mut client, server) = duplex(100);
        client.write_all(b"GET / HT").await.expect("sent");
        let begun = tokio::time::Instant::now();
        handle(server, Router::new()).await;
        assert_eq!(begun.elapsed().as_secs(), REQUEST_TIME.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_has_a_limited_time_and_a_stream_a_longer_one() {
        for (marks, expected) in [(false, ANSWER_TIME), (true, ANSWER_TIME + STREAM_TIME)] {
            let slow = async move |Extension(is_stream): Extension<IsStream>| {
                if marks {
                    is_stream.set();
                }
                std::future::pending::<()>().await;
            };
            let (mut client, server) = duplex(100);
            client
                .write_all(b"GET / HTTP/1.1\r\n\r\n")
                .await
                .expect("sent");
            let begun = tokio::time::Instant::now();
            handle(server, Router::new().route("/", get(slow))).await;
            assert_eq!(begun.elapsed().as_secs(), expected.as_secs());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connections_are_limited() {
        let (sender, mut receiver) = tokio::sync::mpsc::channel(1);
        let accept = move |context: &mut Context<'_>| {
            let accepted = receiver.poll_recv(context);
            accepted.map(|it| it.ok_or_else(|| rustix::io::Errno::BADF.into()))
        };
        let served = tokio::spawn(async move { serve(accept, Router::new(), places()).await });
        let mut idle = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            let (client, server) = duplex(100);
            sender.send(server).await.expect("accepted");
            idle.push(client);
        }
        let (mut client, server) = duplex(100);
        sender.send(server).await.expect("accepted");
        let closed = client.read(&mut [0]).await;
        assert_eq!(closed.expect("closed"), 0);
        drop(sender);
        let error = served.await.expect("it ends");
        assert!(is_final(&error));
        drop(idle);
    }
}
