//! Sessions of browsers: a token admits one browser once, which then has a session.

use std::collections::VecDeque;
use std::time::{Duration, Instant};
use taupe_web_link::Secret;

/// Time in which a token must be used.
pub(crate) const TOKEN_TIME: Duration = Duration::from_secs(60);

/// Sessions at once. The oldest ends when there are more.
const MAX_SESSIONS: usize = 8;

/// The token that is valid, and the sessions of this process.
#[derive(Default)]
pub(crate) struct Sessions {
    token: Option<(Secret, Instant)>,
    sessions: VecDeque<Secret>,
}

impl Sessions {
    /// Makes a token valid, in place of the one before.
    pub(crate) fn offer(&mut self, token: Secret, now: Instant) {
        self.token = Some((token, now));
    }

    /// Exchanges the token for a new session. A wrong token does not end the right one, so that nobody
    /// can lock the user out.
    pub(crate) fn exchange(&mut self, token: &str, now: Instant) -> Option<Secret> {
        let token = Secret::parse(token)?;
        let is_valid = |(valid, since): &mut (Secret, Instant)| {
            now.saturating_duration_since(*since) < TOKEN_TIME && valid.is_equal(&token)
        };
        self.token.take_if(is_valid)?;
        let session = Secret::random().ok()?;
        self.sessions.truncate(MAX_SESSIONS - 1);
        self.sessions.push_front(session.clone());
        Some(session)
    }

    /// Checks a session. The time does not depend on which digits differ.
    pub(crate) fn admits(&self, session: &str) -> bool {
        let Some(session) = Secret::parse(session) else {
            return false;
        };
        let equal = self.sessions.iter().filter(|one| one.is_equal(&session));
        equal.count() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_token() -> (Sessions, String, Instant) {
        let (mut sessions, now) = (Sessions::default(), Instant::now());
        let token = Secret::random().expect("randomness");
        sessions.offer(token.clone(), now);
        (sessions, token.reveal(), now)
    }

    #[test]
    fn a_token_admits_once() {
        let (mut sessions, token, now) = with_token();
        let session = sessions.exchange(&token, now).expect("valid");
        assert!(sessions.admits(&session.reveal()));
        assert!(sessions.exchange(&token, now).is_none());
        assert!(!sessions.admits(&token));
    }

    #[test]
    fn a_token_expires() {
        let (mut sessions, token, now) = with_token();
        assert!(sessions.exchange(&token, now + TOKEN_TIME).is_none());
        let last = now + TOKEN_TIME - Duration::from_millis(1);
        assert!(sessions.exchange(&token, last).is_some());
    }

    #[test]
    fn a_wrong_token_admits_nobody_and_the_right_one_stays() {
        let (mut sessions, token, now) = with_token();
        let other = Secret::random().expect("randomness").reveal();
        for wrong in ["", "0", &other, &token.to_uppercase(), &format!("{token}0")] {
            assert!(sessions.exchange(wrong, now).is_none(), "{wrong}");
            assert!(!sessions.admits(wrong), "{wrong}");
        }
        assert!(sessions.exchange(&token, now).is_some());
    }

    #[test]
    fn another_token_replaces_the_one_before_and_sessions_are_few() {
        let (mut sessions, token, now) = with_token();
        let mut cookies = Vec::new();
        for _ in 0..=MAX_SESSIONS {
            let next = Secret::random().expect("randomness");
            sessions.offer(next.clone(), now);
            cookies.extend(sessions.exchange(&next.reveal(), now));
        }
        assert!(sessions.exchange(&token, now).is_none());
        let admitted: Vec<_> = cookies
            .iter()
            .map(|it| sessions.admits(&it.reveal()))
            .collect();
        assert_eq!(
            admitted,
            [[false].as_slice(), &[true; MAX_SESSIONS]].concat()
        );
    }
}
