//! The rules of processes, while files are renamed, programs start others, and rules change.

use crate::application::{Application, install};
use crate::client;
use crate::scene::{REMOTE, Scene, at, everything_but, rules, unmet};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use taupe_config::application::{AppRules, Children};
use taupe_lab::sandbox::{SystemTest, step};
use taupe_lab::{Error, Result, ensure};

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![
        SystemTest::new(
            "renamed_executables_keep_their_verdict",
            renamed_executables_keep_their_verdict,
        ),
        SystemTest::new(
            "children_inherit_across_fork_and_exec",
            children_inherit_across_fork_and_exec,
        ),
        SystemTest::new("children_of_launchers", children_of_launchers),
        SystemTest::new(
            "processes_older_than_the_rules",
            processes_older_than_the_rules,
        ),
        SystemTest::new("children_without_inheritance", children_without_inheritance),
        SystemTest::new("children_while_rules_change", children_while_rules_change),
        SystemTest::new(
            "exec_without_rules_about_executables",
            exec_without_rules_about_executables,
        ),
    ]
}

/// Starts a program that tells if it is selected.
pub(crate) fn oracle(scene: &Scene, program: &str, how: &[&str]) -> Result<Oracle> {
    let words = [how, &["oracle"]].concat();
    let mut application = scene.start(program, &words)?;
    let id = application.line()?;
    Ok(Oracle {
        name: format!("{program} {how:?}"),
        id,
        application,
    })
}

/// Makes a process execute this program, which tells if it is selected.
pub(crate) fn go_on(mut later: Application, program: &str) -> Result<Oracle> {
    let said = later.ask()?;
    ensure!(said == "ready", "{said}");
    Ok(Oracle {
        name: program.to_owned(),
        id: later.line()?,
        application: later,
    })
}

pub(crate) struct Oracle {
    name: String,
    id: String,
    application: Application,
}

impl Oracle {
    /// Returns the PID of the program that tells.
    pub(crate) fn id(&self) -> Result<u32> {
        self.id.parse().map_err(unmet)
    }

    pub(crate) fn says(&mut self, expected: &str) -> Result<()> {
        let said = self.application.ask()?;
        ensure!(
            said == expected,
            "{} (process {}): {said}, not {expected}",
            self.name,
            self.id
        );
        Ok(())
    }
}

/// Returns a path in the test's folder. The file need not exist.
fn place(name: &str) -> String {
    taupe_lab::sandbox::scratch(name).display().to_string()
}

fn rename(from: &str, to: &str) -> Result<()> {
    fs::rename(from, to).map_err(Error::io(from))
}

pub(crate) fn replace(scene: &mut Scene, rules: &AppRules) -> Result<()> {
    let home = scene.home.clone();
    let programs = scene.programs()?;
    home.enter(|| {
        let replaced = programs.replace(rules, &everything_but(&[]));
        replaced.map_err(unmet)
    })
}

fn renamed_executables_keep_their_verdict() -> Result<()> {
    let (mole, other) = (install("bin/mole")?, install("bin/bird")?);
    let (folder, exact) = (install("app/one/tool")?, install("c/exact")?);
    let (bin, app) = (place("bin/"), place("app/"));
    let chosen = ["mole", &app, &exact];
    let mut scene = Scene::with(&chosen, &[])?;
    let mut by_name = oracle(&scene, &mole, &[])?;
    let mut by_folder = oracle(&scene, &folder, &[])?;
    let mut by_path = oracle(&scene, &exact, &[])?;
    let mut unchosen = oracle(&scene, &other, &[])?;
    let mut all = |expected| -> Result<()> {
        by_name.says(expected)?;
        by_folder.says(expected)?;
        by_path.says(expected)?;
        unchosen.says("bypass")
    };
    all("tunnel")?;
    step("renamed");
    let old = format!("{mole}.old");
    rename(&mole, &old)?;
    rename(&place("app"), &place("gone"))?;
    fs::remove_file(&exact).map_err(Error::io("remove"))?;
    all("tunnel")?;
    step("an executable that gets a chosen one's name");
    rename(&other, &mole)?;
    all("tunnel")?;
    let to = at(REMOTE[0], 80);
    scene.expect(&mole, &["tcp", &to], "beyond")?;
    scene.expect(&old, &["tcp", &to], "far")?;
    rename(&mole, &other)?;
    step("other rules, and these still");
    replace(&mut scene, &rules(&[&chosen[..], &["cat"]].concat(), &[]))?;
    all("tunnel")?;
    replace(&mut scene, &rules(&["bird"], &["mole"]))?;
    let mut renamed = oracle(&scene, &other, &[])?;
    renamed.says("tunnel")?;
    step("other rules without these");
    replace(&mut scene, &rules(&["nobody"], &[]))?;
    all("bypass")?;
    renamed.says("bypass")?;
    step("everything but one, which is renamed");
    replace(&mut scene, &rules(&[], &["bird"]))?;
    let mut direct = oracle(&scene, &other, &[])?;
    direct.says("bypass")?;
    rename(&other, &format!("{bin}robin"))?;
    direct.says("bypass")?;
    let mut renamed = oracle(&scene, &format!("{bin}robin"), &[])?;
    renamed.says("tunnel")
}

/// The ways in which a program can start another: it waits for it, ends before it, or becomes it.
const WAYS: [&str; 3] = ["launch", "leave", "become"];

fn children_inherit_across_fork_and_exec() -> Result<()> {
    let (mole, bird, dog) = (install("mole")?, install("bird")?, install("dog")?);
    let mut scene = Scene::with(&["mole"], &["dog"])?;
    let mut running = Vec::new();
    for way in WAYS {
        step(way);
        for (how, expected) in [
            (&[&*mole, way, &bird][..], "tunnel"),
            (&[&*bird, way, &bird], "bypass"),
            (&[&*bird, way, &mole], "tunnel"),
            (&[&*mole, way, &dog], "bypass"),
            // A program with a rule of its own passes that rule on.
            (&[&*mole, way, &bird, way, &bird], "tunnel"),
            (&[&*mole, way, &dog, way, &bird], "bypass"),
            (&[&*dog, way, &mole, way, &bird], "tunnel"),
        ] {
            let [program, how @ ..] = how else { continue };
            let mut oracle = oracle(&scene, program, how)?;
            oracle.says(expected)?;
            running.push((oracle, expected));
        }
    }
    step("by threads");
    let to = at(REMOTE[0], 80);
    scene.expect(&mole, &["thread", "child", &bird, "tcp", &to], "beyond")?;
    scene.expect(&mole, &["child", &bird, "thread", "tcp", &to], "beyond")?;
    step("other rules, and these still");
    for allowed in [&["mole", "cat"][..], &["mole"]] {
        replace(&mut scene, &rules(allowed, &["dog"]))?;
        for (oracle, expected) in &mut running {
            oracle.says(expected)?;
        }
    }
    step("without the rule of who has started them");
    replace(&mut scene, &rules(&["nobody"], &[]))?;
    for (oracle, _) in &mut running {
        oracle.says("bypass")?;
    }
    Ok(())
}

fn children_of_launchers() -> Result<()> {
    let bird = install("bird")?;
    let mut scene = Scene::with(&["mole"], &[])?;
    let to = at(REMOTE[0], 80);
    let command = [
        "env",
        "A=1",
        "setsid",
        "-w",
        &bird,
        client::WORD,
        "tcp",
        &to,
    ];
    for (allowed, who) in [("mole", "far"), ("env", "beyond"), ("setsid", "beyond")] {
        replace(&mut scene, &rules(&[allowed], &[]))?;
        let said = scene.home.run(&command)?;
        ensure!(said.text() == who, "{allowed}: {}", said.text());
    }
    Ok(())
}

fn processes_older_than_the_rules() -> Result<()> {
    let (mole, bird) = (install("mole")?, install("bird")?);
    let mut scene = Scene::new()?;
    let mut child = oracle(&scene, &mole, &["launch", &bird])?;
    let mut grandchild = oracle(&scene, &mole, &["launch", &bird, "launch", &bird])?;
    let mut other = oracle(&scene, &bird, &["launch", &bird])?;
    scene.set_up(&rules(&["mole"], &[]), &everything_but(&[]))?;
    child.says("tunnel")?;
    grandchild.says("tunnel")?;
    other.says("bypass")?;
    step("everything but these");
    replace(&mut scene, &rules(&[], &["mole"]))?;
    child.says("bypass")?;
    grandchild.says("bypass")?;
    other.says("tunnel")?;
    step("each for itself, and again not");
    for (children, expected) in [(Children::Own, "tunnel"), (Children::Inherit, "bypass")] {
        let rules = AppRules {
            children,
            ..rules(&[], &["mole"])
        };
        replace(&mut scene, &rules)?;
        child.says(expected)?;
        grandchild.says(expected)?;
    }
    Ok(())
}

fn children_without_inheritance() -> Result<()> {
    let (mole, bird) = (install("mole")?, install("bird")?);
    let mut scene = Scene::with(&["nobody"], &[])?;
    let rules = AppRules {
        children: Children::Own,
        ..rules(&["mole"], &[])
    };
    replace(&mut scene, &rules)?;
    for way in WAYS {
        step(way);
        oracle(&scene, &mole, &[way, &bird])?.says("bypass")?;
        oracle(&scene, &bird, &[way, &mole])?.says("tunnel")?;
    }
    step("renamed");
    let mut renamed = oracle(&scene, &mole, &[])?;
    rename(&mole, &format!("{mole}.old"))?;
    renamed.says("tunnel")?;
    step("what it would start");
    let id = renamed.id.parse().map_err(unmet)?;
    for (children, hands_on) in [(Children::Own, false), (Children::Inherit, true)] {
        let rules = AppRules {
            children,
            ..rules.clone()
        };
        replace(&mut scene, &rules)?;
        let home = scene.home.clone();
        let programs = scene.programs()?;
        let process_verdicts = home.enter(|| programs.process_verdicts().map_err(unmet))?;
        let said = process_verdicts.child_verdict(id, &rules);
        ensure!(said.is_some() == hands_on, "{children:?}: {said:?}");
    }
    Ok(())
}

/// A process executes another program while no rule is about executables. It does not get back the
/// rule that it had before.
fn exec_without_rules_about_executables() -> Result<()> {
    let (mole, bird) = (install("mole")?, install("bird")?);
    let mut scene = Scene::with(&["nobody"], &[])?;
    let own = |allowed: &[&str]| AppRules {
        children: Children::Own,
        ..rules(allowed, &[])
    };
    replace(&mut scene, &own(&["mole"]))?;
    let later = scene.start(&mole, &["later", "become", &bird, "oracle"])?;
    replace(&mut scene, &own(&["uid:54321"]))?;
    // It prints "ready" when it has become the other program.
    let mut oracle = go_on(later, &bird)?;
    replace(&mut scene, &own(&["mole"]))?;
    oracle.says("bypass")
}

/// Rules are replaced by rules that name the same application differently. A program that the
/// application has started never leaves the tunnel.
fn children_while_rules_change() -> Result<()> {
    const TIMES: usize = 24;
    let (mole, bird) = (install("mole")?, install("bird")?);
    let mut scene = Scene::with(&["mole"], &[])?;
    let mut oracle = oracle(&scene, &mole, &["launch", &bird])?;
    oracle.says("tunnel")?;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut count = 0_u32;
            while !is_over.load(Ordering::Relaxed) {
                oracle.says("tunnel")?;
                count += 1;
            }
            Ok(count)
        });
        let sets = [
            rules(&["mol*"], &[]),
            rules(&[&mole], &[]),
            rules(&["mole"], &[]),
            rules(&[], &["dog"]),
        ];
        let mut sets = sets.iter().cycle().take(TIMES);
        let replaced = sets.try_for_each(|rules| replace(&mut scene, rules));
        is_over.store(true, Ordering::Relaxed);
        let asked = asking.join().map_err(|_| Error::unmet("a panic"))?;
        replaced?;
        let asked: u32 = asked?;
        ensure!(asked > 0, "nothing was asked");
        Ok(())
    })
}
