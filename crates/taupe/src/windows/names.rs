//! Endpoints that a file gives by name: their first addresses, which are looked up while what is
//! chosen is held back already, again and again until they have one.

use std::time::Duration;
use taupe_config::file::{Endpoint, File};
use taupe_protocol::time::Instant;
use taupe_protocol::update::EndpointName;
use taupe_runtime::names::Question;

/// From a look-up without an answer to the next: the first time, and at most, each twice as
/// long as the one before.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The names that have no address yet.
pub(super) struct Names(Vec<Named>);

struct Named {
    question: Question,
    /// Of its `[Peer]`.
    line: usize,
    /// When to ask; `None` while it is asked for.
    ask_at: Option<Instant>,
    wait: Duration,
    has_failed: bool,
}

impl Names {
    /// Those of a file.
    pub(super) fn of(file: &File) -> Self {
        let named = file.peers.iter().filter_map(|peer| {
            let Some(Endpoint::Name { host, port }) = &peer.endpoint else {
                return None;
            };
            Some(Named {
                question: Question {
                    public_key: peer.public_key,
                    name: EndpointName::new(host, *port)?,
                },
                line: peer.line,
                ask_at: Some(Instant::default()),
                wait: FIRST_WAIT,
                has_failed: false,
            })
        });
        Self(named.collect())
    }

    /// The next to be asked for now; it is not due again before [`Self::fail`].
    pub(super) fn due(&mut self, now: Instant) -> Option<Question> {
        let is_due = |named: &&mut Named| named.ask_at.is_some_and(|at| at <= now);
        let named = self.0.iter_mut().find(is_due)?;
        named.ask_at = None;
        Some(named.question.clone())
    }

    /// Whether none is left.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it is one of them.
    pub(super) fn has(&self, question: &Question) -> bool {
        self.0.iter().any(|named| named.question == *question)
    }

    /// It has an address, or needs none any more.
    pub(super) fn forget(&mut self, question: &Question) {
        self.0.retain(|named| named.question != *question);
    }

    /// It has no address now. The line of its `[Peer]`, the first time.
    pub(super) fn fail(&mut self, now: Instant, question: &Question) -> Option<usize> {
        let mut all = self.0.iter_mut();
        let named = all.find(|named| named.question == *question)?;
        named.ask_at = Some(now + named.wait);
        named.wait = (named.wait * 2).min(LONGEST_WAIT);
        let is_news = !std::mem::replace(&mut named.has_failed, true);
        is_news.then_some(named.line)
    }

    /// The network has changed: what has failed is worth another try.
    pub(super) fn hurry(&mut self) {
        for named in &mut self.0 {
            named.ask_at = named.ask_at.map(|_| Instant::default());
            named.wait = FIRST_WAIT;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FIRST_WAIT, LONGEST_WAIT, Names};
    use std::time::Duration;
    use taupe_config::file::{Dialect, parse};
    use taupe_protocol::time::Instant;

    #[test]
    fn a_name_is_asked_for_until_it_has_an_address() {
        let text = "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n\
                    [Peer]\nPublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\n\
                    AllowedIPs = ::/0\nEndpoint = one.example:51820\n\
                    [Peer]\nPublicKey = HIgo9xNzJMWLKASShiTqIybxZ0U3wGLiUeJ1PKf8ykw=\n\
                    AllowedIPs = 10.0.0.0/8\nEndpoint = 192.0.2.1:51820\n";
        let file = parse(text.as_bytes(), Dialect::Taupe).file;
        let mut names = Names::of(&file.expect("a file"));
        let mut now = Instant::default();
        let question = names.due(now).expect("a name");
        assert_eq!(question.name.host(), "one.example");
        assert!(
            names.due(now).is_none(),
            "it is asked for, and there is no other"
        );

        assert_eq!(names.fail(now, &question), Some(3));
        let mut wait = FIRST_WAIT;
        for _ in 0..10 {
            assert!(names.due(now + (wait - Duration::from_millis(1))).is_none());
            now += wait;
            assert!(names.due(now).is_some());
            assert_eq!(names.fail(now, &question), None, "it is known");
            wait = (wait * 2).min(LONGEST_WAIT);
        }
        assert_eq!(wait, LONGEST_WAIT);
        names.hurry();
        assert!(names.due(now).is_some());
        names.hurry();
        assert!(names.due(now).is_none(), "it is asked for");

        assert!(names.has(&question));
        names.forget(&question);
        assert!(!names.has(&question));
        assert_eq!(names.fail(now, &question), None);
        assert!(names.due(now + LONGEST_WAIT).is_none());
    }
}
