//! `top`, in a real terminal: tmux.

use std::io::Read as _;
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use taupe_lab::host::Host;
use taupe_lab::peers::Implementation;
use taupe_lab::process::{Process, wait_until};
use taupe_lab::sandbox::{scratch, step};
use taupe_lab::{Error, Result, ensure};

use crate::inspection::json;
use crate::world::{Application, BEYOND, World, succeeded};

/// Port of the server that receives without an end.
const SINK: u16 = 9002;

/// Time for the screen to show something.
const PATIENCE: Duration = Duration::from_secs(30);

/// A word that the shell prints before the view begins.
const BEFORE: &str = "shown-before-the-view";

/// A tunnel, its peer and a selected application with its rate are shown. The application is moved
/// out of the tunnel and in again by keys.
pub(crate) fn live_view() -> Result<()> {
    let world = World::new()?;
    let (mole, bird) = (Application::new("mole")?, Application::new("bird")?);
    let peer = "# Name = gateway\nAllowedApps = mole, bird";
    let file = world.file(peer)?;
    world.up(&file)?;
    receive(&world)?;
    let process = send(&world, &mole)?;
    let program = Implementation::Taupe.program()?.display().to_string();

    step("not a terminal");
    let refused = world.taupe(&["top"])?;
    ensure!(refused.status == Some(1), "{refused:?}");
    ensure!(
        refused.stderr.contains("taupe status --json"),
        "{refused:?}"
    );
    ensure!(refused.stderr.lines().count() == 1, "{refused:?}");

    step("overview");
    let terminal = Screen::new(&world.near)?;
    terminal.write(&format!(
        "echo {BEFORE}; stty -a > before; {program} top; echo ended=$?"
    ))?;
    // A rate takes two readings.
    let overview = terminal.shows("the tunnel and the application", |screen| {
        let tunnel = screen.lines().find(|line| line.starts_with(" home "));
        let is_up = tunnel.is_some_and(|line| line.contains(" up ") && line.contains("1/1"));
        is_up && row(screen, "/mole").is_some_and(|line| line.contains("/s"))
    })?;
    ensure!(!overview.contains(BEFORE), "{overview}");
    ensure!(overview.contains("for selected applications"), "{overview}");
    // Sparklines are drawn.
    terminal.shows("a sparkline", |screen| {
        row(screen, "/mole").is_some_and(|line| line.contains('█'))
    })?;

    step("peers");
    terminal.press(&["2"])?;
    let peers = terminal.shows("the peer", |screen| {
        row(screen, "gateway").is_some_and(|line| line.contains("/s"))
    })?;
    ensure!(peers.contains("192.168.1.2:51821"), "{peers}");
    ensure!(peers.contains(world.server_key()), "{peers}");

    step("connections");
    terminal.press(&["5"])?;
    let remote = SocketAddr::new(BEYOND[0], SINK).to_string();
    terminal.shows("the connection", |screen| {
        row(screen, &remote).is_some_and(|line| line.contains("/s"))
            && screen.contains(&format!("({})", process.id()))
    })?;

    step("help");
    terminal.press(&["?"])?;
    terminal.shows("the help", |screen| screen.contains("Ctrl-C"))?;
    terminal.press(&["Escape"])?;

    step("out of the tunnel");
    terminal.press(&["3", "/", "m", "o", "l", "e", "Enter", "d"])?;
    terminal.shows("the question", |screen| {
        screen.contains("Run `taupe app deny home mole`?")
    })?;
    terminal.press(&["Enter"])?;
    terminal.shows("the result", |screen| {
        screen.contains("mole bypasses the tunnel")
    })?;
    let entries = entries(&world, &file)?;
    ensure!(entries == ["bird"], "{entries:?}");
    // Its connection was in the tunnel and stays blocked outside, so it opens another one.
    drop(process);
    let process = send(&world, &mole)?;
    terminal.shows("the direct path", |screen| {
        row(screen, "/mole").is_some_and(|line| line.contains("direct"))
    })?;

    step("into the tunnel");
    terminal.press(&["a"])?;
    terminal.shows("the question", |screen| {
        one_line(screen).contains(&format!("Run `taupe app allow home {}`?", mole.0))
    })?;
    terminal.press(&["y"])?;
    terminal.shows("the result", |screen| {
        one_line(screen).contains("may use the tunnel")
    })?;
    let entries = self::entries(&world, &file)?;
    ensure!(entries == ["bird", &*mole.0], "{entries:?}");
    drop(process);

    step("suspended and continued");
    terminal.press(&["C-z"])?;
    terminal.shows("the shell", |screen| {
        screen.contains(BEFORE) && screen.contains("Stopped")
    })?;
    terminal.is_as_before()?;
    terminal.write("fg")?;
    terminal.shows("the view again", |screen| screen.contains("3 Applications"))?;
    let kill = |signal: &str| {
        let id = ["pgrep", "-fx", &format!("{program} top")];
        let id = world.near.run(&id)?;
        world.near.run(&["kill", &format!("-{signal}"), id.text()])
    };
    kill("TSTP")?;
    terminal.shows("the shell", |screen| {
        screen.contains("Stopped") && !screen.contains("Applications")
    })?;
    terminal.is_as_before()?;
    terminal.write("fg; echo ended=$?")?;
    terminal.shows("the view again", |screen| screen.contains("3 Applications"))?;

    step("too small");
    terminal.resize(50, 10)?;
    terminal.shows("a sentence", |screen| screen.contains("taupe top needs 60"))?;
    terminal.resize(80, 24)?;
    terminal.shows("the view again", |screen| screen.contains("3 Applications"))?;

    step("quit");
    terminal.press(&["q"])?;
    terminal.shows("the shell", |screen| screen.contains("ended=0"))?;
    terminal.is_as_before()?;

    for signal in ["TERM", "HUP", "INT", "QUIT"] {
        step(signal);
        terminal.write(&format!("clear; {program} top; echo ended-by-{signal}=$?"))?;
        terminal.shows("the view", |screen| screen.contains("3 Applications"))?;
        kill(signal)?;
        terminal.shows("the shell", |screen| {
            screen.contains(&format!("ended-by-{signal}=0")) && !screen.contains("Applications")
        })?;
        terminal.is_as_before()?;
    }

    step("tunnel down");
    terminal.write(&format!("clear; {program} top"))?;
    terminal.shows("the view", |screen| screen.contains("1/1"))?;
    drop(bird);
    world.down(&file)?;
    terminal.shows("no tunnel", |screen| screen.contains("no tunnel is up"))?;
    terminal.press(&["C-c"])?;
    terminal
        .shows("the shell", |screen| !screen.contains("no tunnel is up"))
        .map(drop)
}

/// Returns the line of the screen that contains a word.
fn row<'a>(screen: &'a str, word: &str) -> Option<&'a str> {
    screen.lines().find(|line| line.contains(word))
}

/// Returns the screen with the lines of a sentence joined.
fn one_line(screen: &str) -> String {
    screen.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the entries that `app list` prints.
fn entries(world: &World, file: &str) -> Result<Vec<String>> {
    let list = world.taupe(&["app", "list", file, "--json"])?;
    succeeded("app list", &list)?;
    let list = json(&list)?;
    let rules = list["rules"].as_array().into_iter().flatten();
    let entries = rules.filter_map(|rule| rule["application"].as_str());
    Ok(entries.map(str::to_owned).collect())
}

/// Runs a server beyond the tunnel that receives everything.
fn receive(world: &World) -> Result<()> {
    let at = SocketAddr::new(BEYOND[0], SINK);
    let bind = || TcpListener::bind(at).map_err(Error::io("listener"));
    let listener = world.far.enter(bind)?;
    // Until the sandbox ends.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let mut bytes = [0; 4096];
                while stream.read(&mut bytes).is_ok_and(|length| length > 0) {}
            });
        }
    });
    Ok(())
}

/// Has an application send 20 kB five times a second, for as long as the result lives.
fn send(world: &World, application: &Application) -> Result<Process> {
    let script = format!(
        "exec 3<>/dev/tcp/{}/{SINK}; echo connected; \
         while printf '%020000d' 0 >&3; do sleep 0.2 3>&-; done",
        BEYOND[0]
    );
    let process = world.near.spawn(&[&application.0, "-c", &script])?;
    wait_until("the connection", PATIENCE, || {
        Ok(process.output().contains("connected"))
    })?;
    Ok(process)
}

/// A shell in a terminal of 80 columns and 24 lines. Dropped, its tmux server ends.
pub(crate) struct Screen<'a>(&'a Host);

impl<'a> Screen<'a> {
    pub(crate) fn new(host: &'a Host) -> Result<Self> {
        let screen = Self(host);
        let shell = "exec env PS1='$ ' bash --norc --noprofile -i";
        let size = ["new-session", "-d", "-x", "80", "-y", "24", shell];
        screen.tmux(&size)?;
        screen.shows("a prompt", |screen| screen.starts_with('$'))?;
        Ok(screen)
    }

    /// Runs a command of tmux. Its socket is in a folder of this test.
    fn tmux(&self, arguments: &[&str]) -> Result<String> {
        let folder = scratch("tmux");
        std::fs::create_dir_all(&folder).map_err(Error::io("tmux"))?;
        let folder = folder.display().to_string();
        let variable = format!("TMUX_TMPDIR={folder}");
        let tmux = [
            "env",
            "-C",
            &folder,
            "-u",
            "TMUX",
            "LC_ALL=C.UTF-8",
            "TERM=xterm",
            &variable,
            "tmux",
            "-L",
            "taupe-top",
            "-f",
            "/dev/null",
        ];
        let output = self.0.run(&[&tmux[..], arguments].concat())?;
        Ok(output.stdout)
    }

    pub(crate) fn press(&self, keys: &[&str]) -> Result<()> {
        keys.iter()
            .try_for_each(|key| self.tmux(&["send-keys", key]).map(drop))
    }

    pub(crate) fn write(&self, line: &str) -> Result<()> {
        self.tmux(&["send-keys", "-l", line])?;
        self.press(&["Enter"])
    }

    pub(crate) fn resize(&self, width: u16, height: u16) -> Result<()> {
        let [width, height] = [width, height].map(|size| size.to_string());
        let resize = ["resize-window", "-x", &width, "-y", &height];
        self.tmux(&resize).map(drop)
    }

    fn content(&self) -> Result<String> {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Waits until the screen is as wanted, and returns its content.
    pub(crate) fn shows(&self, what: &str, is_wanted: impl Fn(&str) -> bool) -> Result<String> {
        let mut content = String::new();
        let shown = wait_until(what, PATIENCE, || {
            content = self.content()?;
            Ok(is_wanted(&content))
        });
        if let Err(error) = shown {
            return Err(Error::unmet(format!("{error}; the screen:\n{content}")));
        }
        // For whoever wants to look.
        if std::env::var_os("SHOW_SCREENS").is_some() {
            eprintln!("--- {what}\n{content}");
        }
        Ok(content)
    }

    /// Checks that the terminal has the settings that it had before the view.
    fn is_as_before(&self) -> Result<()> {
        self.write("clear; stty -a | cmp - before && echo same-settings=$?")?;
        self.shows("the settings of before", |screen| {
            screen.contains("same-settings=0")
        })?;
        let cursor = self.tmux(&["display-message", "-p", "#{cursor_flag} #{alternate_on}"])?;
        ensure!(
            cursor.trim() == "1 0",
            "cursor and alternate screen: {cursor}"
        );
        Ok(())
    }
}

impl Drop for Screen<'_> {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]);
    }
}
