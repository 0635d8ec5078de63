//! The session of a browser: a token admits one browser once, which then has the session.

use std::time::{Duration, Instant};
use taupe_web_link::{Secret, Token};

/// Time in which a token must be used.
pub(crate) const TOKEN_TIME: Duration = Duration::from_secs(60);

/// The token that is valid, and the session of this process.
#[derive(Default)]
pub(crate) struct Sessions {
    token: Option<(Token, Instant)>,
    session: Option<Session>,
}

/// The session of a browser.
struct Session {
    /// Value of its cookie.
    cookie: Secret,
    /// Value in the forms of its pages, which pages of other sites cannot read.
    form: Secret,
}

impl Sessions {
    /// Makes a token valid, in place of the one before. Ends the session: the user has asked for a token
    /// because another user may have it.
    pub(crate) fn offer(&mut self, token: Token, now: Instant) {
        (self.token, self.session) = (Some((token, now)), None);
    }

    /// Exchanges the token for a session. Returns the number of the token too. A wrong token does not end
    /// the right one, so that nobody can lock the user out.
    pub(crate) fn exchange(&mut self, token: &str, now: Instant) -> Option<(Secret, u32)> {
        let token = Secret::parse(token)?;
        let is_valid = |(valid, since): &mut (Token, Instant)| {
            now.saturating_duration_since(*since) < TOKEN_TIME && valid.secret.is_equal(&token)
        };
        let (used, _) = self.token.take_if(is_valid)?;
        let (cookie, form) = (Secret::random().ok()?, Secret::random().ok()?);
        self.session = Some(Session {
            cookie: cookie.clone(),
            form,
        });
        Some((cookie, used.number))
    }

    /// Returns the value for forms of the session.
    pub(crate) fn form(&self) -> Option<&Secret> {
        self.session.as_ref().map(|it| &it.form)
    }

    /// Checks a session. The time does not depend on the digits that differ.
    pub(crate) fn admits(&self, session: &Secret) -> bool {
        let current = self.session.as_ref();
        current.is_some_and(|it| it.cookie.is_equal(session))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_token() -> (Sessions, String, Instant) {
        let (mut sessions, now) = (Sessions::default(), Instant::now());
        let secret = Secret::random().expect("randomness");
        let text = secret.reveal();
        sessions.offer(Token { number: 1, secret }, now);
        (sessions, text, now)
    }

    fn admits(sessions: &Sessions, text: &str) -> bool {
        Secret::parse(text).is_some_and(|it| sessions.admits(&it))
    }

    #[test]
    fn a_token_admits_once() {
        let (mut sessions, token, now) = with_token();
        let (session, number) = sessions.exchange(&token, now).expect("valid");
        assert_eq!(number, 1);
        assert!(sessions.admits(&session));
        assert!(sessions.exchange(&token, now).is_none());
        assert!(!admits(&sessions, &token) && sessions.admits(&session));
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
            assert!(!admits(&sessions, wrong), "{wrong}");
        }
        assert!(sessions.exchange(&token, now).is_some());
    }

    #[test]
    fn another_token_ends_the_session_and_the_token_before() {
        let (mut sessions, token, now) = with_token();
        let next = |number| Token {
            number,
            secret: Secret::random().expect("randomness"),
        };
        let second = next(2);
        sessions.offer(second.clone(), now);
        assert!(sessions.exchange(&token, now).is_none());
        let text = second.secret.reveal();
        let (session, number) = sessions.exchange(&text, now).expect("valid");
        assert!(sessions.admits(&session) && number == 2);
        sessions.offer(next(3), now);
        assert!(!sessions.admits(&session));
    }
}
