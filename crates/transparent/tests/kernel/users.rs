//! Rules about the applications of one user: other users' processes are never selected.

use crate::application::install;
use crate::processes::{Oracle, oracle, replace};
use crate::scene::{REMOTE, Scene, TUNNEL, at, everything_but, rules, unmet};
use std::net::TcpListener;
use taupe_config::application::{AppRules, AppsOfUser, Children, Decision, User};
use taupe_lab::sandbox::{SystemTest, step};
use taupe_lab::{Error, Result, ensure};
use taupe_transparent::capture;
use taupe_transparent::programs::{CaptureMode, Programs};

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![
        SystemTest::new("applications_of_one_user", applications_of_one_user),
        SystemTest::new(
            "processes_that_change_their_user",
            processes_that_change_their_user,
        ),
        SystemTest::new(
            "rules_inherited_from_another_user",
            rules_inherited_from_another_user,
        ),
        SystemTest::new("reload_for_another_user", reload_for_another_user),
        SystemTest::new(
            "applications_of_one_user_by_marks",
            applications_of_one_user_by_marks,
        ),
    ]
}

const ALICE: u32 = 4711;
const BOB: u32 = 4712;

/// Restricts rules to a user.
pub(crate) fn of_user(user: u32, rules: AppRules) -> AppRules {
    let user = User::Id(user);
    AppRules {
        of_user: Some(AppsOfUser { user, line: 0 }),
        ..rules
    }
}

fn with(rules: &AppRules) -> Result<Scene> {
    let mut scene = Scene::new()?;
    scene.set_up(rules, &everything_but(&[]))?;
    Ok(scene)
}

/// Runs a program that becomes a user's.
fn run_as(scene: &Scene, user: u32, program: &str, words: &[&str]) -> Result<String> {
    scene.run(program, &[&["user", &user.to_string()], words].concat())
}

/// Checks for each user and program the machine that answers.
fn are_answered(scene: &Scene, expected: &[(u32, &str, &str)]) -> Result<()> {
    for (user, program, who) in expected {
        for remote in REMOTE {
            for way in ["tcp", "udp", "connected-udp"] {
                let said = run_as(scene, *user, program, &[way, &at(remote, 80)])?;
                ensure!(
                    said == *who,
                    "{program} of {user} by {way}: {said}, not {who}"
                );
            }
        }
    }
    Ok(())
}

fn applications_of_one_user() -> Result<()> {
    let (mole, bird) = (install("mole")?, install("bird")?);
    let mut scene = with(&of_user(ALICE, rules(&["mole"], &[])))?;
    let (far, beyond) = ("far", "beyond");
    are_answered(
        &scene,
        &[
            (ALICE, &mole, beyond),
            (ALICE, &bird, far),
            (BOB, &mole, far),
            (BOB, &bird, far),
            (0, &mole, far),
        ],
    )?;
    step("everything but one");
    replace(&mut scene, &of_user(ALICE, rules(&[], &["bird"])))?;
    are_answered(
        &scene,
        &[
            (ALICE, &mole, beyond),
            (ALICE, &bird, far),
            (BOB, &mole, far),
            (0, &mole, far),
        ],
    )?;
    step("rules about everything, and about another user");
    for allowed in [&["/"][..], &["/", "uid:4712", "uid:0", "cgroup:/"]] {
        replace(&mut scene, &of_user(ALICE, rules(allowed, &[])))?;
        are_answered(
            &scene,
            &[(ALICE, &bird, beyond), (BOB, &mole, far), (0, &mole, far)],
        )?;
    }
    step("a user like any other");
    replace(&mut scene, &of_user(0, rules(&["mole"], &[])))?;
    are_answered(&scene, &[(ALICE, &mole, far), (0, &mole, beyond)])?;
    step("down: only this user is blocked");
    replace(&mut scene, &of_user(ALICE, rules(&["mole"], &[])))?;
    scene.programs()?.set_down();
    are_answered(&scene, &[(BOB, &mole, far), (0, &mole, far)])?;
    let said = run_as(&scene, ALICE, &mole, &["tcp", &at(REMOTE[0], 80)])?;
    ensure!(said == "failed 101 at once", "{said}");
    Ok(())
}

/// New sockets follow the user. A socket that a selected process has used stays in the tunnel.
fn processes_that_change_their_user() -> Result<()> {
    let mole = install("mole")?;
    let mut scene = with(&of_user(ALICE, rules(&["mole"], &[])))?;
    let (alice, bob) = (ALICE.to_string(), BOB.to_string());
    let to = at(REMOTE[0], 80);
    for (users, expected) in [
        (
            [&*alice, &bob, &alice],
            "beyond beyond far beyond beyond beyond",
        ),
        // The verdict on the common socket is cached for the second user.
        ([&bob, &alice, &bob], "far far beyond beyond far beyond"),
        ([&bob, "0", &alice], "far far far far beyond beyond"),
    ] {
        let words = [&["users", &*to][..], &users].concat();
        scene.expect(&mole, &words, expected)?;
    }
    step("everything but one");
    replace(&mut scene, &of_user(ALICE, rules(&[], &["bird"])))?;
    let words = ["users", &to, &bob, &alice, &bob];
    scene.expect(&mole, &words, "far far beyond beyond far beyond")
}

fn rules_inherited_from_another_user() -> Result<()> {
    let (mole, bird) = (install("mole")?, install("bird")?);
    let mut scene = with(&of_user(ALICE, rules(&["mole"], &[])))?;
    let (alice, bob) = (ALICE.to_string(), BOB.to_string());
    for way in ["launch", "leave", "become"] {
        step(way);
        for (how, expected) in [
            (&["user", &*alice, way, &bird][..], "tunnel"),
            (&["user", &alice, way, &bird, "user", &bob], "bypass"),
            (&["user", &alice, way, &bird, "user", "0"], "bypass"),
            (&["user", &bob, way, &bird], "bypass"),
            // Another user's process hands on the rule, too.
            (&["user", &bob, way, &bird, "user", &alice], "tunnel"),
            (
                &["user", &bob, way, &bird, way, &bird, "user", &alice],
                "tunnel",
            ),
        ] {
            oracle(&scene, &mole, how)?.says(expected)?;
        }
    }
    step("without inheritance");
    let rules = AppRules {
        children: Children::Own,
        ..rules(&["mole"], &[])
    };
    replace(&mut scene, &of_user(ALICE, rules))?;
    oracle(&scene, &mole, &["user", &alice])?.says("tunnel")?;
    oracle(&scene, &mole, &["user", &alice, "launch", &bird])?.says("bypass")
}

/// Checks what the kernel reports about a process.
fn is_reported(scene: &mut Scene, oracle: &Oracle, rules: &AppRules, is_own: bool) -> Result<()> {
    let id = oracle.id()?;
    let home = scene.home.clone();
    let programs = scene.programs()?;
    let verdicts = home.enter(|| programs.process_verdicts().map_err(unmet))?;
    let verdict = verdicts.verdict(id, rules);
    let verdict = verdict.ok_or_else(|| Error::unmet("the kernel does not know it"))?;
    let is_tunnel = verdict.decision == Decision::Tunnel;
    ensure!(
        is_tunnel == is_own
            && verdict.is_of_other_user != is_own
            && verdict.rule.is_some() == is_own,
        "{verdict:?}"
    );
    Ok(())
}

fn reload_for_another_user() -> Result<()> {
    let mole = install("mole")?;
    let [of_alice, of_bob] = [ALICE, BOB].map(|user| of_user(user, rules(&["mole"], &[])));
    let mut scene = with(&of_alice)?;
    let users = [ALICE, BOB].map(|id| id.to_string());
    let mut oracles = Vec::new();
    for id in [&*users[0], &users[1], "0"] {
        oracles.push(oracle(&scene, &mole, &["user", id])?);
    }
    let mut all = |expected: [&str; 3]| -> Result<()> {
        let mut oracles = oracles.iter_mut().zip(expected);
        oracles.try_for_each(|(oracle, expected)| oracle.says(expected))
    };
    all(["tunnel", "bypass", "bypass"])?;
    step("connections");
    let bind = || TcpListener::bind((REMOTE[0], 7000)).map_err(Error::io("listener"));
    let beyond = scene.beyond.enter(bind)?;
    let far = scene.far.enter(bind)?;
    let stay = |scene: &Scene, user: &str| {
        scene.start(&mole, &["user", user, "stay", &at(REMOTE[0], 7000)])
    };
    let mut in_tunnel = stay(&scene, &users[0])?;
    let mut outside = stay(&scene, "0")?;
    let _accepted = [&beyond, &far].map(TcpListener::accept);
    step("another user");
    replace(&mut scene, &of_bob)?;
    all(["bypass", "tunnel", "bypass"])?;
    let said = in_tunnel.go()?;
    ensure!(
        said.starts_with("failed 103"),
        "the connection says {said:?}"
    );
    let said = outside.go()?;
    ensure!(said == "sent", "an unselected one says {said:?}");
    step("reports of the kernel");
    let (mut alices, mut bobs) = (
        oracle(&scene, &mole, &["user", &users[0]])?,
        oracle(&scene, &mole, &["user", &users[1]])?,
    );
    is_reported(&mut scene, &alices, &of_bob, false)?;
    is_reported(&mut scene, &bobs, &of_bob, true)?;
    let only = scene
        .home
        .enter(|| capture::only_user(TUNNEL).map_err(unmet))?;
    ensure!(only == Some(BOB), "{only:?}");
    step("all users, and again one");
    replace(&mut scene, &rules(&["mole"], &[]))?;
    alices.says("tunnel")?;
    bobs.says("tunnel")?;
    let only = scene
        .home
        .enter(|| capture::only_user(TUNNEL).map_err(unmet))?;
    ensure!(only.is_none(), "{only:?}");
    replace(&mut scene, &of_alice)?;
    alices.says("tunnel")?;
    bobs.says("bypass")
}

fn applications_of_one_user_by_marks() -> Result<()> {
    const MARK: u32 = 0x5300_0000;
    let mole = install("mole")?;
    let scene = Scene::new()?;
    let _programs = scene.home.enter(|| {
        let mut marks = Programs::load(TUNNEL, CaptureMode::Fwmark).map_err(unmet)?;
        marks.set_mark(MARK);
        let rules = of_user(ALICE, rules(&["mole"], &[]));
        let replaced = marks.replace(&rules, &everything_but(&[]));
        let attached = replaced.and_then(|()| marks.attach([None, None]));
        attached.map_err(unmet).map(|_| marks)
    })?;
    for (user, is_blocked) in [(ALICE, true), (BOB, false), (0, false)] {
        let said = run_as(&scene, user, &mole, &["udp", &at(REMOTE[0], 80)])?;
        // No rule routes the mark, so marked packets are blocked.
        let expected = if is_blocked { "failed" } else { "far" };
        ensure!(said.starts_with(expected), "{user}: {said}");
    }
    Ok(())
}
