use super::tests::{admitted, ask_with, below, secret, text, with_switches};
use super::*;
use crate::facts::Facts;
use crate::form::MAX_FORM;
use std::time::{Duration, Instant};
use taupe_web_link::{Outcome, Place, Switch};

const FORM_TYPE: &str = "application/x-www-form-urlencoded";

/// A site with switches, its answers, and the cookie of its browser.
async fn site() -> (Arc<Site>, Router, String) {
    let (site, answers, token) = with_switches(true);
    let cookie = admitted(&site, &answers, &token).await;
    (site, answers, cookie)
}

fn form_value(site: &Site) -> String {
    let sessions = site.live.sessions();
    sessions.form().map(Secret::reveal).unwrap_or_default()
}

fn form(value: &str) -> String {
    format!("form={value}&tunnel=home&application=%2Fusr%2Fbin%2Fcurl&place=allowed")
}

async fn send(
    site: &Site,
    answers: &Router,
    headers: &[(&str, &str)],
    body: &str,
) -> axum::http::StatusCode {
    let target = format!("{}switch", site.path);
    let kind = ("content-type", FORM_TYPE);
    let headers = [headers, &[kind]].concat();
    ask_with(answers, "POST", &target, &headers, body.to_owned())
        .await
        .status()
}

const OWN: (&str, &str) = ("origin", "http://127.0.0.1:9587");

/// Answers the next change.
fn parent(site: &Arc<Site>, outcome: Outcome) -> tokio::task::JoinHandle<Switch> {
    let live = Arc::clone(&site.live);
    tokio::spawn(async move {
        let switch = live.switches().next().await;
        live.finish_switch(outcome);
        switch
    })
}

fn outcome(sentence: &str) -> Outcome {
    Outcome::new(true, &[sentence.to_owned()])
}

#[tokio::test]
async fn a_form_of_the_page_is_passed_on_and_its_result_is_shown() {
    let (site, answers, cookie) = site().await;
    let value = form_value(&site);
    let made = parent(&site, outcome("curl <may> use it"));
    let headers = [("cookie", &*cookie), OWN];
    assert_eq!(send(&site, &answers, &headers, &form(&value)).await, 303);
    let expected = Switch {
        tunnel: "home".to_owned(),
        application: "/usr/bin/curl".to_owned(),
        place: Place::Allowed,
    };
    assert_eq!(made.await.expect("a change"), expected);
    site.live.publish(&Facts::default());
    let page = below(&site, &answers, "GET", "", &headers[..1]).await;
    let page = text(page).await;
    assert!(page.contains("Changed: /usr/bin/curl and home"), "{page}");
    assert!(page.contains("curl &lt;may&gt; use it"), "{page}");
}

#[tokio::test]
async fn forms_of_others_change_nothing() {
    let (site, answers, cookie) = site().await;
    let value = form_value(&site);
    let cookie = ("cookie", &*cookie);
    let wrong = secret().reveal();
    let right = form(&value);
    for (headers, body, status) in [
        (&[OWN][..], &*right, 403),
        (&[cookie], &right, 403),
        (&[cookie, ("origin", "null")], &right, 403),
        (&[cookie, ("origin", "http://127.0.0.1:9588")], &right, 403),
        (&[cookie, ("origin", "http://evil.example")], &right, 403),
        (&[cookie, OWN, ("sec-fetch-site", "same-site")], &right, 403),
        (
            &[cookie, OWN, ("sec-fetch-site", "cross-site")],
            &right,
            403,
        ),
        (&[cookie, OWN, ("sec-fetch-site", "none")], &right, 403),
        (&[cookie, OWN, OWN], &right, 403),
        (&[cookie, OWN], &form(&wrong), 403),
        (&[cookie, OWN], &form("0"), 403),
        (
            &[cookie, OWN],
            "tunnel=home&application=a&place=allowed",
            400,
        ),
        (&[cookie, OWN], &format!("{right}&place=nowhere"), 400),
        (&[cookie, OWN], &right.replace("allowed", "elsewhere"), 400),
        (&[cookie, OWN], &right.replace("home", ""), 400),
        (&[cookie, OWN], &right.replace("%2Fusr", "%zz"), 400),
        (
            &[cookie, OWN],
            &format!("{right}&x={}", "x".repeat(MAX_FORM)),
            413,
        ),
    ] {
        let answered = send(&site, &answers, headers, body).await;
        assert_eq!(answered, status, "{headers:?} {body}");
    }
    let target = format!("{}switch", site.path);
    let json = [cookie, OWN, ("content-type", "text/plain")];
    let answer = ask_with(&answers, "POST", &target, &json, right.clone()).await;
    assert_eq!(answer.status(), 400);
    for method in ["GET", "HEAD", "PUT", "DELETE"] {
        let query = format!("switch?{right}");
        let answer = below(&site, &answers, method, &query, &[cookie, OWN]).await;
        assert_eq!(answer.status(), 405, "{method}");
    }
    let answer = ask_with(&answers, "POST", &site.path, &[cookie, OWN], right.clone()).await;
    assert_eq!(answer.status(), 405);
    // The value of an ended session is not valid in the next one.
    let token = taupe_web_link::Token {
        number: 2,
        secret: secret(),
    };
    site.live.sessions().offer(token.clone(), Instant::now());
    let next = admitted(&site, &answers, &token.secret.reveal()).await;
    let headers = [("cookie", &*next), OWN];
    assert_eq!(send(&site, &answers, &headers, &right).await, 403);
    let waited = tokio::time::timeout(Duration::from_millis(1), site.live.switches().next());
    assert!(waited.await.is_err(), "the parent gets a change");
}

#[tokio::test(start_paused = true)]
async fn changes_are_made_one_after_the_other() {
    let (site, answers, cookie) = site().await;
    let body = form(&form_value(&site));
    let headers = [("cookie", &*cookie), OWN];
    // The parent does not answer.
    assert_eq!(send(&site, &answers, &headers, &body).await, 303);
    assert_eq!(send(&site, &answers, &headers, &body).await, 409);
    site.live.switches().next().await;
    assert_eq!(send(&site, &answers, &headers, &body).await, 409);
    site.live.finish_switch(outcome("late"));
    let made = parent(&site, outcome("second"));
    assert_eq!(send(&site, &answers, &headers, &body).await, 303);
    made.await.expect("a change");
}

#[tokio::test]
async fn a_page_that_only_shows_has_no_forms() {
    let (site, answers, token) = with_switches(false);
    let cookie = admitted(&site, &answers, &token).await;
    let body = form(&form_value(&site));
    let headers = [("cookie", &*cookie), OWN];
    assert_eq!(send(&site, &answers, &headers, &body).await, 405);
}
