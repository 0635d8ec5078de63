//! Connections of browsers, and their limits: each has one request, a limited size and a limited time.

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Connections of a listening socket at once.
const MAX_CONNECTIONS: usize = 64;

/// Bytes of a request line with its headers, and headers, at most.
const MAX_REQUEST: usize = 16 << 10;
const MAX_HEADERS: usize = 64;

/// Time in which a request must have arrived.
const REQUEST_TIME: Duration = Duration::from_secs(3);

/// Time after which a connection is closed if no byte was sent or received. The wait for the state of
/// tunnels is shorter.
const IDLE_TIME: Duration = Duration::from_secs(15);

/// Time of a connection. A browser opens the next stream by itself.
const MAX_TIME: Duration = Duration::from_secs(3600);

/// Mark of a connection whose browser has a session.
#[derive(Clone, Default)]
pub(crate) struct Admission(Arc<AtomicBool>);

impl Admission {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connection that is served.
struct Open {
    admission: Admission,
    task: JoinHandle<()>,
}

/// Serves connections until no more can be accepted. If there are too many, the oldest one without a
/// session is closed: another user of this machine must not be able to take all places.
pub(crate) async fn serve<C: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    mut accept: impl FnMut(&mut Context<'_>) -> Poll<io::Result<C>>,
    router: Router,
) -> io::Error {
    let mut open: Vec<Open> = Vec::new();
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
        open.retain(|it| !it.task.is_finished());
        if open.len() >= MAX_CONNECTIONS {
            let Some(oldest) = open.iter().position(|it| !it.admission.is_set()) else {
                continue;
            };
            open.remove(oldest).task.abort();
        }
        let admission = Admission::default();
        let task = tokio::spawn(handle(connection, router.clone(), admission.clone()));
        open.push(Open { admission, task });
    }
}

/// Returns true if the socket itself is unusable. Other errors concern one connection, or end.
fn is_final(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::BADF | Errno::INVAL | Errno::NOTSOCK))
}

async fn handle(
    connection: impl AsyncRead + AsyncWrite + Unpin,
    router: Router,
    admission: Admission,
) {
    let activity = Activity::begin();
    let connection = Watched {
        connection,
        activity: activity.clone(),
    };
    let service = TowerToHyperService::new(router.layer(Extension(admission)));
    let answering = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIME)
        .max_buf_size(MAX_REQUEST)
        .max_headers(MAX_HEADERS)
        .keep_alive(false)
        .serve_connection(TokioIo::new(connection), service);
    let mut answering = pin!(answering);
    let mut idle = pin!(activity.idle());
    let ended = poll_fn(|context| match answering.as_mut().poll(context) {
        // An error of the connection is its end.
        Poll::Ready(_) => Poll::Ready(()),
        Poll::Pending => idle.as_mut().poll(context),
    });
    let _ = timeout(MAX_TIME, ended).await;
}

/// Time of the last byte, in milliseconds since the beginning.
#[derive(Clone)]
struct Activity {
    begun: Instant,
    last: Arc<AtomicU64>,
}

impl Activity {
    fn begin() -> Self {
        Self {
            begun: Instant::now(),
            last: Arc::default(),
        }
    }

    fn note(&self) {
        let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Relaxed);
    }

    /// Waits until there was no byte for a while.
    async fn idle(&self) {
        loop {
            let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
            let end = self.begun + last + IDLE_TIME;
            if end <= Instant::now() {
                return;
            }
            sleep_until(end).await;
        }
    }
}

/// A connection whose bytes are noted.
struct Watched<C> {
    connection: C,
    activity: Activity,
}

impl<C: AsyncRead + Unpin> AsyncRead for Watched<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.connection).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.activity.note();
        }
        read
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for Watched<C> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.connection).poll_write(context, bytes);
        if matches!(written, Poll::Ready(Ok(1..))) {
            self.activity.note();
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::sync::mpsc::{Sender, channel};

    /// Returns the answer to these bytes, of which the server has read as many as it wants.
    async fn exchange(bytes: &[u8]) -> String {
        let router = Router::new().route("/", get(async || "page"));
        let (mut client, server) = duplex(1 << 20);
        client.write_all(bytes).await.expect("sent");
        handle(server, router, Admission::default()).await;
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
        let begun = Instant::now();
        handle(server, Router::new(), Admission::default()).await;
        assert_eq!(begun.elapsed().as_secs(), REQUEST_TIME.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_progress_is_closed() {
        let never = async || std::future::pending::<()>().await;
        let (mut client, server) = duplex(100);
        client
            .write_all(b"GET / HTTP/1.1\r\n\r\n")
            .await
            .expect("sent");
        let begun = Instant::now();
        let router = Router::new().route("/", get(never));
        handle(server, router, Admission::default()).await;
        assert_eq!(begun.elapsed().as_secs(), IDLE_TIME.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_client_gets_all_of_an_answer() {
        let (mut client, server) = duplex(100);
        client
            .write_all(b"GET / HTTP/1.1\r\n\r\n")
            .await
            .expect("sent");
        let router = Router::new().route("/", get(async || "x".repeat(1000)));
        let handled = tokio::spawn(handle(server, router, Admission::default()));
        let begun = Instant::now();
        let (mut text, mut part) = (Vec::new(), [0; 100]);
        loop {
            sleep(IDLE_TIME - Duration::from_secs(1)).await;
            match client.read(&mut part).await.expect("open") {
                0 => break,
                count => text.extend_from_slice(&part[..count]),
            }
        }
        handled.await.expect("it ends");
        assert!(text.ends_with(b"x") && text.len() > 1000, "{}", text.len());
        assert!(begun.elapsed() > 2 * IDLE_TIME);
    }

    async fn connect(sender: &Sender<DuplexStream>) -> DuplexStream {
        let (client, server) = duplex(1000);
        sender.send(server).await.expect("accepted");
        client
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_connection_without_a_session_makes_room() {
        let (sender, mut receiver) = channel(1);
        let accept = move |context: &mut Context<'_>| {
            let accepted = receiver.poll_recv(context);
            accepted.map(|it| it.ok_or_else(|| rustix::io::Errno::BADF.into()))
        };
        // This request belongs to a session, and its answer never ends.
        let admitted = async |Extension(admission): Extension<Admission>| {
            admission.set();
            std::future::pending::<()>().await;
        };
        let router = Router::new().route("/", get(admitted));
        let served = tokio::spawn(serve(accept, router));
        let mut first = connect(&sender).await;
        let request = b"GET / HTTP/1.1\r\n\r\n";
        first.write_all(request).await.expect("sent");
        tokio::task::yield_now().await;
        let mut idle = Vec::new();
        for _ in 1..MAX_CONNECTIONS {
            idle.push(connect(&sender).await);
        }
        let mut latest = connect(&sender).await;
        let closed = idle[0].read(&mut [0]).await;
        assert_eq!(closed.expect("closed"), 0);
        let moment = Duration::from_millis(1);
        for open in [&mut first, &mut latest, &mut idle[1]] {
            let read = timeout(moment, open.read(&mut [0])).await;
            assert!(read.is_err(), "{read:?}");
        }
        // Those with a session stay when there is no other.
        latest.write_all(request).await.expect("sent");
        for client in &mut idle[1..] {
            client.write_all(request).await.expect("sent");
        }
        sleep(moment).await;
        let mut late = connect(&sender).await;
        assert_eq!(late.read(&mut [0]).await.expect("closed"), 0);
        drop(sender);
        let error = served.await.expect("it ends");
        assert!(is_final(&error));
    }
}
