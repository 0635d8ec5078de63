//! Selection of applications.

use crate::application::{Application, install};
use crate::client;
use crate::scene::{self, REMOTE, Scene, at, everything_but, nothing, rules};
use std::fs;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use taupe_config::application::{Decision, Process};
use taupe_lab::host::add_address;
use taupe_lab::sandbox::{SystemTest, step};
use taupe_lab::{Error, Result, ensure};

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![
        SystemTest::new("names_paths_and_directories", names_paths_and_directories),
        SystemTest::new("cgroups_and_users", cgroups_and_users),
        SystemTest::new("allowed_wins_over_disallowed", allowed_wins_over_disallowed),
        SystemTest::new("children_threads_and_copies", children_threads_and_copies),
        SystemTest::new(
            "same_verdicts_as_the_reference_matcher",
            same_verdicts_as_the_reference_matcher,
        ),
        SystemTest::new(
            "sockets_older_than_the_tunnel",
            sockets_older_than_the_tunnel,
        ),
        SystemTest::new("only_in_its_own_namespace", only_in_its_own_namespace),
    ]
}

/// Checks who answers an application by TCP.
fn is(scene: &Scene, program: &str, who: &str) -> Result<()> {
    scene.expect(program, &["tcp", &at(REMOTE[0], 80)], who)
}

fn names_paths_and_directories() -> Result<()> {
    let mut scene = Scene::new()?;
    let chosen = install("a/Chosen")?;
    let wild = install("b/wildcard-browser")?;
    let exe = install("c/game.exe")?;
    let exact = install("d/by-path")?;
    let other = install("e/by-path")?;
    let folder = install("f/deep/er/inside")?;
    let long = install(&format!("g/{}", "n".repeat(255)))?;
    let none = install("h/choseny")?;
    let deep = install(&format!("{}deep", "d/".repeat(27)))?;
    let allowed = [
        "chosen",
        "wild*",
        "game",
        &exact,
        &folder.replace("deep/er/inside", ""),
        &format!("{}*", "n".repeat(200)),
        &deep,
    ];
    scene.set_up(&rules(&allowed, &[]), &everything_but(&[]))?;
    for program in [&chosen, &wild, &exe, &exact, &folder, &long, &deep] {
        step(program);
        is(&scene, program, "beyond")?;
    }
    for program in [&none, &other] {
        step(program);
        is(&scene, program, "far")?;
    }
    step("another name of the same file");
    let link = format!("{none}-link");
    std::os::unix::fs::symlink(&chosen, &link).map_err(Error::io("link"))?;
    is(&scene, &link, "beyond")?;
    step("renamed while the rules hold");
    let renamed = chosen.replace("Chosen", "else");
    fs::rename(&chosen, &renamed).map_err(Error::io("rename"))?;
    is(&scene, &renamed, "far")?;
    step("replaced as an upgrade does");
    fs::remove_file(&exact).map_err(Error::io("remove"))?;
    install(&exact)?;
    is(&scene, &exact, "beyond")?;
    step("the name that it is called by");
    let mut command = Command::new("ip");
    let program = ["netns", "exec", "home", &none, client::WORD];
    command.args(program).args(["tcp", &at(REMOTE[0], 80)]);
    command.arg0("chosen");
    let output = command.output().map_err(Error::io("ip"))?;
    ensure!(output.stdout == b"far\n", "{output:?}");
    Ok(())
}

fn cgroups_and_users() -> Result<()> {
    let scene = Scene::with(
        &[
            "cgroup:taupe-test-app-*",
            "cgroup:/taupe-test-x/b",
            "uid:4711",
        ],
        &[],
    )?;
    let program = install("any")?;
    is(&scene, &program, "far")?;
    step("user");
    let to = at(REMOTE[0], 80);
    let run = |words: &[&str]| {
        let command = [words, &[&program, client::WORD, "tcp", &to]].concat();
        scene.home.run(&command).map(|said| said.text().to_owned())
    };
    let said = run(&["setpriv", "--reuid=4711", "--clear-groups"])?;
    ensure!(said == "beyond", "user: {said}");
    step("cgroups");
    let root = Hierarchy::mount()?;
    for (path, who) in [
        ("taupe-test-x", "far"),
        ("taupe-test-x/b", "beyond"),
        ("taupe-test-x/b/c", "beyond"),
        ("taupe-test-x/bc", "far"),
        ("taupe-test-app-1.scope", "beyond"),
        ("taupe-test-app-1.scope/d/e", "beyond"),
    ] {
        let group = root.group(path)?;
        let script = format!("echo 0 > {group}/cgroup.procs && exec \"$@\"");
        let said = run(&["sh", "-c", &script, "sh"])?;
        ensure!(said == who, "{path}: {said}");
    }
    Ok(())
}

/// A mounted cgroup2 hierarchy. Its groups are removed at the end, also after a panic. Groups of a
/// killed sandbox are empty.
pub(crate) struct Hierarchy {
    root: String,
    made: std::cell::RefCell<Vec<String>>,
}

impl Hierarchy {
    pub(crate) fn mount() -> Result<Self> {
        let root = taupe_lab::sandbox::scratch("cgroup").display().to_string();
        fs::create_dir_all(&root).map_err(Error::io("directory"))?;
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("none", &*root, "cgroup2", flags, None)
            .map_err(Error::io("cgroup2"))?;
        Ok(Self {
            root,
            made: Default::default(),
        })
    }

    pub(crate) fn group(&self, path: &str) -> Result<String> {
        let mut whole = self.root.clone();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            whole = format!("{whole}/{part}");
            if fs::create_dir(&whole).is_ok() {
                self.made.borrow_mut().push(whole.clone());
            }
        }
        Ok(whole)
    }
}

impl Drop for Hierarchy {
    fn drop(&mut self) {
        for group in self.made.borrow().iter().rev() {
            if let Err(error) = fs::remove_dir(group) {
                eprintln!("{group}: {error}");
            }
        }
    }
}

/// With random rules and processes of all kinds the kernel decides as the Rust matcher does.
fn same_verdicts_as_the_reference_matcher() -> Result<()> {
    const ROUNDS: usize = 150;
    let mut scene = Scene::with(&["nobody"], &[])?;
    let root = Hierarchy::mount()?;
    let mut processes = Vec::new();
    let names = [
        "m/Alpha",
        "m/n/alphabet",
        "m/n/o/beta.exe",
        "m/beta",
        "gamma",
    ];
    let groups = ["", "taupe-eq-a", "taupe-eq-a/app-x.scope"];
    for name in names {
        install(name)?;
    }
    for (i, (name, group)) in names
        .iter()
        .flat_map(|name| groups.map(|group| (name, group)))
        .enumerate()
    {
        let program = taupe_lab::sandbox::scratch(name).display().to_string();
        let user = if i % 2 == 0 { "0" } else { "4711" };
        let group = root.group(group)?;
        // Some are started by another program.
        let launcher = (i % 3 == 0).then(|| taupe_lab::sandbox::scratch(names[i % names.len()]));
        let launcher = launcher.map(|path| path.display().to_string());
        let word = client::WORD;
        let command = match &launcher {
            Some(launcher) => format!("{launcher} {word} launch {program} oracle"),
            None => format!("{program} {word} oracle"),
        };
        let script =
            format!("echo 0 > {group}/cgroup.procs && exec setpriv --reuid={user} {command}");
        let command = scene.home.command(&["sh", "-c", &script]);
        let mut application = Application::start(command)?;
        let id = application.line()?;
        let path = fs::read_link(format!("/proc/{id}/exe")).map_err(Error::io("exe"))?;
        let groups =
            fs::read_to_string(format!("/proc/{id}/cgroup")).map_err(Error::io("cgroup"))?;
        let group = groups.lines().find_map(|line| line.strip_prefix("0::"));
        let group = group.unwrap_or_default().to_owned();
        let user: u32 = user.parse().map_err(scene::unmet)?;
        processes.push((application, path, group, user, launcher));
    }
    let mut pool: Vec<String> = [
        "alpha",
        "ALPH*",
        "alphabet*",
        "beta",
        "b*",
        "gamm",
        "gamma",
        "*",
        "delta",
        "/",
        "/run/",
        "cgroup:taupe-eq-a",
        "cgroup:taupe*",
        "cgroup:app-x.scope",
        "cgroup:app*",
        "cgroup:/",
        "cgroup:/taupe-eq-a",
        "cgroup:/taupe-eq-a/app-x.scope",
        "cgroup:/taupe-eq",
        "uid:0",
        "uid:4711",
        "uid:1",
    ]
    .map(str::to_owned)
    .to_vec();
    let scratch = |name: &str| taupe_lab::sandbox::scratch(name).display().to_string();
    pool.extend(names.map(scratch));
    pool.extend(["m/", "m/n/", "m/n/o/", "x/"].map(scratch));
    let seed = fastrand::u64(..);
    step(&format!("seed {seed}"));
    let mut random = fastrand::Rng::with_seed(seed);
    let mut tunnelled = 0;
    for _ in 0..ROUNDS {
        let mut list = |most| {
            let count = random.usize(..=most);
            random
                .choose_multiple(&pool, count)
                .into_iter()
                .map(String::as_str)
                .collect::<Vec<_>>()
        };
        let (allowed, disallowed) = (list(2), list(3));
        let rules = rules(&allowed, &disallowed);
        scene
            .programs()?
            .replace(&rules, &everything_but(&[]))
            .map_err(scene::unmet)?;
        for (application, path, group, user, launcher) in &mut processes {
            let process = |path| Process {
                path,
                name: path.rsplit(|byte| *byte == b'/').next().unwrap_or_default(),
                cgroup: group.as_bytes(),
                uid: *user,
            };
            let ancestors = launcher.as_ref().map(|path| process(path.as_bytes()));
            let process = process(path.as_os_str().as_encoded_bytes());
            let expected = match rules.decide_with_ancestors(&process, ancestors).decision {
                Decision::Tunnel => "tunnel",
                Decision::Bypass => "bypass",
            };
            let said = application.ask()?;
            ensure!(
                said == expected,
                "{allowed:?} but {disallowed:?}: {said} and not {expected}: {process:?}"
            );
            tunnelled += usize::from(said == "tunnel");
        }
    }
    // Both verdicts are frequent.
    let all = ROUNDS * processes.len();
    ensure!(
        (all / 10..all * 9 / 10).contains(&tunnelled),
        "{tunnelled} of {all}"
    );
    Ok(())
}

fn allowed_wins_over_disallowed() -> Result<()> {
    let both = install("both")?;
    let never = install("never")?;
    let other = install("other")?;
    let mut scene = Scene::with(&["both"], &["both", "never"])?;
    for (program, who) in [(&both, "beyond"), (&never, "far"), (&other, "far")] {
        is(&scene, program, who)?;
    }
    for (allowed, disallowed, whose) in [
        (&[][..], &["never"][..], ["beyond", "far", "beyond"]),
        (&["both"], &[], ["beyond", "far", "far"]),
        (&[], &[], ["beyond", "beyond", "beyond"]),
        (&["/"], &["never"], ["beyond", "beyond", "beyond"]),
        (&["nobody"], &[], ["far", "far", "far"]),
    ] {
        step(&format!("{allowed:?} and {disallowed:?}"));
        let rules = rules(allowed, disallowed);
        let programs = scene.programs()?;
        programs
            .replace(&rules, &everything_but(&[]))
            .map_err(scene::unmet)?;
        for (program, who) in [&both, &never, &other].into_iter().zip(whose) {
            is(&scene, program, who)?;
        }
    }
    Ok(())
}

fn children_threads_and_copies() -> Result<()> {
    let scene = Scene::with(&["chosen"], &[])?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let to = at(REMOTE[0], 80);
    step("a thread");
    scene.expect(&chosen, &["thread", "tcp", &to], "beyond")?;
    step("children");
    scene.expect(&chosen, &["child", &other, "tcp", &to], "beyond")?;
    scene.expect(&other, &["child", &chosen, "tcp", &to], "beyond")?;
    step("behind a bind mount");
    let place = install("place/chosen")?;
    let place = place.trim_end_matches("/chosen");
    let elsewhere = format!("{place}-else");
    fs::create_dir(&elsewhere).map_err(Error::io("directory"))?;
    rustix::mount::mount_bind(place, &*elsewhere).map_err(Error::io("bind mount"))?;
    is(&scene, &format!("{elsewhere}/chosen"), "beyond")?;
    step("paths are as they are mounted");
    let mut scene = scene;
    let by_path = rules(&[&format!("{elsewhere}/")], &[]);
    let programs = scene.programs()?;
    programs
        .replace(&by_path, &everything_but(&[]))
        .map_err(scene::unmet)?;
    is(&scene, &format!("{elsewhere}/chosen"), "beyond")?;
    is(&scene, &format!("{place}/chosen"), "far")?;
    step("on a file system of its own");
    let other = format!("{elsewhere}/tmpfs");
    fs::create_dir(&other).map_err(Error::io("directory"))?;
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", &*other, "tmpfs", flags, None).map_err(Error::io("tmpfs"))?;
    is(&scene, &install(&format!("{other}/any"))?, "beyond")
}

fn sockets_older_than_the_tunnel() -> Result<()> {
    let mut scene = Scene::new()?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let to = at(REMOTE[0], 80);
    let mut before = scene.start(&chosen, &["hold", &to])?;
    let mut unchosen = scene.start(&other, &["hold", &to])?;
    let mut later = scene.start(&other, &["hold", &to])?;
    let capture = scene.capture("host 198.51.100.1")?;
    scene.set_up(&rules(&["chosen"], &[]), &everything_but(&[]))?;
    let said = before.go()?;
    ensure!(said == "beyond beyond", "chosen: {said}");
    nothing(&scene, capture)?;
    let said = unchosen.go()?;
    ensure!(said == "far far", "unchosen: {said}");
    step("a connection that waits to be accepted");
    scene.replace(&["nobody"])?;
    let mut server = scene.start(&chosen, &["serve-late", "[::]:7002"])?;
    let stream = scene.far.enter(|| {
        let home = ([192, 0, 2, 2], 7002).into();
        std::net::TcpStream::connect_timeout(&home, scene::QUIET).map_err(Error::io("connect"))
    })?;
    scene.replace(&["chosen"])?;
    let capture = scene.capture("src port 7002")?;
    let said = server.go()?;
    ensure!(said == "accepted", "{said}");
    std::thread::sleep(scene::QUIET);
    nothing(&scene, capture)?;
    drop(stream);
    step("another listener's, on the same port");
    const OTHER: &str = "192.0.2.3";
    add_address(&scene.home, "up0", &format!("{OTHER}/24"))?;
    scene.replace(&["nobody"])?;
    let (mut servers, mut streams) = (Vec::new(), Vec::new());
    for (program, own) in [(&chosen, scene::HOME[0]), (&other, OTHER)] {
        let own = at(own, 7004);
        servers.push(scene.start(program, &["serve-late", &own])?);
        let stream = scene.far.enter(|| {
            let own = own.parse().map_err(scene::unmet)?;
            std::net::TcpStream::connect_timeout(&own, scene::QUIET).map_err(Error::io("connect"))
        })?;
        let limit = stream.set_read_timeout(Some(scene::QUIET * 10));
        limit.map_err(Error::io("timeout"))?;
        streams.push(stream);
    }
    scene.replace(&["chosen"])?;
    for server in &mut servers {
        let said = server.go()?;
        ensure!(said == "accepted", "{said}");
    }
    let heard = streams.pop().map(|mut stream| stream.read(&mut [0; 64]));
    ensure!(matches!(heard, Some(Ok(14))), "{heard:?}");
    let heard = streams.pop().map(|mut stream| stream.read(&mut [0; 64]));
    ensure!(matches!(heard, Some(Err(_))), "{heard:?}");
    step("rules that are replaced");
    let mut kept = scene.start(&chosen, &["hold", &to])?;
    scene.replace(&["other"])?;
    let said = later.go()?;
    ensure!(said == "beyond beyond", "chosen later: {said}");
    // The TCP connection is made only now; the UDP socket got an error.
    let said = kept.go()?;
    ensure!(said == "far failed:103", "no longer chosen: {said}");
    Ok(())
}

fn only_in_its_own_namespace() -> Result<()> {
    let scene = Scene::with(&[], &[])?;
    let program = install("any")?;
    is(&scene, &program, "beyond")?;
    // Every application is selected at home. The programs must ignore sockets of `far`.
    let local = at(REMOTE[0], 80);
    let said = scene.far.run(&[&program, client::WORD, "tcp", &local])?;
    ensure!(said.text() == "far", "{}", said.text());
    let said = scene.far.run(&[&program, client::WORD, "mptcp", &local])?;
    ensure!(said.text() == "made", "{}", said.text());
    let said = scene.run(&program, &["mptcp", &local])?;
    ensure!(said == "failed 93 at once", "{said}");
    Ok(())
}
