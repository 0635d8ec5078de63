//! Endpoints with a name and no address yet. Each name is looked up repeatedly until it has an
//! address.

use std::time::Duration;

use taupe_protocol::time::Instant;

use crate::names::Question;

/// Wait after the first failed look-up. Each further wait is twice as long.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The endpoints of a device that have no address yet.
#[derive(Default)]
pub struct UnresolvedEndpoints(Vec<Unresolved>);

struct Unresolved {
    question: Question,
    /// The line of its `[Peer]`.
    line: usize,
    /// The time of the next look-up; `None` while one is under way.
    ask_at: Option<Instant>,
    wait: Duration,
    has_failed: bool,
}

impl UnresolvedEndpoints {
    /// Returns the given endpoints. Each has the line of its `[Peer]` in the configuration file.
    pub fn new(endpoints: impl Iterator<Item = (Question, usize)>) -> Self {
        let unresolved = endpoints.map(|(question, line)| Unresolved {
            question,
            line,
            ask_at: Some(Instant::default()),
            wait: FIRST_WAIT,
            has_failed: false,
        });
        Self(unresolved.collect())
    }

    /// Returns true if every endpoint has an address.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a name to look up now. It is due again only after that look-up has failed.
    pub fn due(&mut self, now: Instant) -> Option<Question> {
        let is_due = |it: &&mut Unresolved| it.ask_at.is_some_and(|at| at <= now);
        let unresolved = self.0.iter_mut().find(is_due)?;
        unresolved.ask_at = None;
        Some(unresolved.question.clone())
    }

    /// Checks whether the endpoint of a question has no address yet.
    pub(crate) fn contains(&self, question: &Question) -> bool {
        self.0.iter().any(|it| it.question == *question)
    }

    /// Removes an endpoint that has an address or no longer needs one.
    pub(crate) fn remove(&mut self, question: &Question) {
        self.0.retain(|it| it.question != *question);
    }

    /// Records that a look-up has failed. Returns the line of its `[Peer]`, the first time only.
    pub(crate) fn fail(&mut self, now: Instant, question: &Question) -> Option<usize> {
        let mut all = self.0.iter_mut();
        let unresolved = all.find(|it| it.question == *question)?;
        unresolved.ask_at = Some(now + unresolved.wait);
        unresolved.wait = (unresolved.wait * 2).min(LONGEST_WAIT);
        let is_first = !std::mem::replace(&mut unresolved.has_failed, true);
        is_first.then_some(unresolved.line)
    }

    /// Makes all look-ups due now, after the network has changed.
    pub(crate) fn retry_now(&mut self) {
        for unresolved in &mut self.0 {
            unresolved.ask_at = unresolved.ask_at.map(|_| Instant::default());
            unresolved.wait = FIRST_WAIT;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FIRST_WAIT, LONGEST_WAIT, UnresolvedEndpoints};
    use crate::names::Question;
    use std::time::Duration;
    use taupe_protocol::key::PublicKey;
    use taupe_protocol::time::Instant;
    use taupe_protocol::update::EndpointName;

    #[test]
    fn a_name_is_looked_up_until_it_has_an_address() {
        let one = Question {
            public_key: PublicKey([1; 32]),
            name: EndpointName::new("one.example", 51820).expect("a name"),
        };
        let mut names = UnresolvedEndpoints::new(std::iter::once((one, 3)));
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
        names.retry_now();
        assert!(names.due(now).is_some());
        names.retry_now();
        assert!(names.due(now).is_none(), "it is asked for");

        assert!(names.contains(&question));
        names.remove(&question);
        assert!(!names.contains(&question));
        assert_eq!(names.fail(now, &question), None);
        assert!(names.due(now + LONGEST_WAIT).is_none());
    }
}
