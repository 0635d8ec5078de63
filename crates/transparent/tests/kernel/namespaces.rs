//! A tunnel that is brought up from namespaces other than the machine's own.

use crate::application::{Application, install};
use crate::daemon::daemon_words;
use crate::identity::Hierarchy;
use crate::processes::oracle;
use crate::scene::{REMOTE, Scene, at};
use taupe_lab::sandbox::{SystemTest, step};
use taupe_lab::{Result, ensure};

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![
        SystemTest::new("from_a_cgroup_namespace", from_a_cgroup_namespace),
        SystemTest::new("from_a_pid_namespace", from_a_pid_namespace),
    ]
}

/// The root of the cgroup namespace is a group without any application of this test.
fn from_a_cgroup_namespace() -> Result<()> {
    let hierarchy = Hierarchy::mount()?;
    let group = hierarchy.group("taupe-test-container")?;
    let scene = Scene::new()?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let daemon = daemon_words(&scene, "chosen")?;
    let script = format!("echo 0 > {group}/cgroup.procs && exec unshare --cgroup \"$@\"");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script, "sh"]).args(daemon);
    let daemon = Application::start(command)?;
    for remote in REMOTE {
        let to = at(remote, 80);
        for words in [["tcp", &to], ["udp", &to], ["connected-udp", &to]] {
            scene.expect(&chosen, &words, "beyond")?;
            scene.expect(&other, &words, "far")?;
        }
    }
    // The group can be removed when it is empty.
    drop(daemon);
    Ok(())
}

/// Files of processes outside the PID namespace cannot be listed from inside. The gap is reported
/// only if there are such processes.
fn from_a_pid_namespace() -> Result<()> {
    const GAP: &str = "PidNamespaces";
    let scene = Scene::new()?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let start = |words: &[&str]| -> Result<(Application, String)> {
        let daemon = daemon_words(&scene, "chosen")?;
        let mut words = words.iter().map(|word| (*word).to_owned()).chain(daemon);
        let mut command = std::process::Command::new(words.next().unwrap_or_default());
        command.args(words);
        let mut daemon = Application::start(command)?;
        let missing_features = daemon.line()?;
        Ok((daemon, missing_features))
    };
    step("nobody is outside");
    let (daemon, missing_features) = start(&inside)?;
    ensure!(!missing_features.contains(GAP), "{missing_features}");
    drop(daemon);
    step("an application is");
    let held = scene.start(&other, &["hold", &at(REMOTE[0], 80)])?;
    let mut started = oracle(&scene, &chosen, &["launch", &other])?;
    let (_daemon, missing_features) = start(&inside)?;
    ensure!(missing_features.contains(GAP), "{missing_features}");
    scene.expect(&chosen, &["tcp", &at(REMOTE[0], 80)], "beyond")?;
    step("what an application had started there, by new sockets");
    started.says("tunnel")?;
    drop(held);
    Ok(())
}
