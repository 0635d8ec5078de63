//! Tests of `taupe run` and `taupe service` on Windows or Wine, with a packet filter that has no
//! frames. This executable is also the command, when it is called with the command's arguments.

#[cfg(windows)]
mod on_windows {
    use libtest_mimic::{Arguments, Trial};
    use std::fs;
    use std::io::{BufRead as _, BufReader};
    use std::path::PathBuf;
    use std::process::{Child, Command, ExitCode, Output, Stdio};
    use std::thread;
    use std::time::Duration;
    use taupe_command::Driver;
    use taupe_transparent_windows::{
        Adapters, Event, Frame, Injection, PacketTap, TapError, Verdict,
    };

    const PRIVATE: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
    const PUBLIC: &str = "HIgo9xNzJMWLKASShiTqIybxZ0U3wGLiUeJ1PKf8ykw=";
    const PEER: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";

    /// A tunnel with this in the name of its file starts slowly.
    const SLOW: &str = "test-slow-";

    /// A packet filter of a machine without adapters.
    struct Quiet;

    impl Driver for Quiet {
        type Tap = Self;

        fn open() -> Result<Self, TapError> {
            if std::env::args().any(|word| word.contains(SLOW)) {
                thread::sleep(Duration::from_secs(5));
            }
            Ok(Self)
        }
    }

    impl PacketTap for Quiet {
        fn adapters(&mut self) -> Result<Adapters, TapError> {
            Ok(Adapters::default())
        }

        fn read(
            &mut self,
            wait: Duration,
            _: &mut dyn FnMut(Frame<'_>) -> Verdict,
        ) -> Result<Event, TapError> {
            thread::sleep(wait);
            Ok(Event::Read)
        }

        fn inject(&mut self, _: &[Injection]) -> Result<(), TapError> {
            Ok(())
        }

        fn set_mtu_decrement(&mut self, _: u16) -> Result<(), TapError> {
            Ok(())
        }
    }

    pub(crate) fn main() -> ExitCode {
        let command = std::env::args().nth(1);
        if matches!(command.as_deref(), Some("run" | "service")) {
            return taupe_command::main::<Quiet>();
        }
        let tests: [(&str, fn()); 7] = [
            ("a_tunnel_that_runs_is_shown_and_changed", shown_and_changed),
            ("what_cannot_run_is_one_line_and_a_status", refused),
            (
                "an_adapter_that_cannot_be_is_one_line_and_a_status",
                adapter,
            ),
            ("a_service_lives_as_it_is_told", service),
            ("a_service_is_stopped_while_it_starts", stopped_early),
            ("what_there_is_not_is_one_line_and_a_status", missing),
            ("a_service_that_cannot_start_says_so", broken),
        ];
        let trials = tests.map(|(name, test)| {
            Trial::test(name, move || {
                test();
                Ok(())
            })
        });
        // Tests run one after another, because services belong to the whole system.
        let arguments = Arguments {
            test_threads: Some(1),
            ..Arguments::from_args()
        };
        libtest_mimic::run(&arguments, trials.into()).exit_code()
    }

    /// A configuration file for one test, with the name of its tunnel.
    struct File {
        path: PathBuf,
        name: String,
    }

    impl File {
        fn new(test: &str, content: &[u8]) -> Self {
            let name = format!("test-{test}-{}", std::process::id());
            let path = std::env::temp_dir().join(format!("{name}.conf"));
            fs::write(&path, content).expect("written");
            Self { path, name }
        }

        fn good(test: &str) -> Self {
            Self::new(
                test,
                format!(
                    "[Interface]\r\nPrivateKey = {PRIVATE}\r\nAddress = 10.7.0.2/32\r\n\
                     AllowedApps = chrome\r\n\r\n[Peer]\r\nPublicKey = {PEER}\r\n\
                     AllowedIPs = 0.0.0.0/0\r\nEndpoint = 127.0.0.1:9\r\n"
                )
                .as_bytes(),
            )
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Returns the command with this test's packet filter.
    fn quiet() -> Command {
        Command::new(std::env::current_exe().expect("a path"))
    }

    /// Runs the real command.
    fn taupe(words: &[&str]) -> Output {
        ended(Command::new(env!("CARGO_BIN_EXE_taupe")).args(words))
    }

    fn text(bytes: &[u8]) -> String {
        String::from_utf8_lossy(bytes).into_owned()
    }

    /// Returns the standard output of a command that must succeed.
    fn printed(output: &Output) -> String {
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout)
    }

    /// Returns the only line on standard error of a command that must end with this status.
    fn complaint(output: &Output, status: i32) -> String {
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    }

    /// A running tunnel, which ends when dropped.
    struct Running(Child);

    impl Running {
        fn start(file: &File) -> Self {
            let mut child = quiet()
                .args(["run", "-log-level", "debug", "-config"])
                .arg(&file.path)
                .stderr(Stdio::piped())
                .spawn()
                .expect("it starts");
            let said = BufReader::new(child.stderr.take().expect("a pipe"));
            let mut lines = Vec::new();
            let mut said = said.lines().map_while(Result::ok);
            let up = said.find(|line| {
                lines.push(line.clone());
                line.contains("is up")
            });
            assert!(up.is_some(), "{lines:#?}");
            // The pipe is read to the end, so that the process never blocks on it.
            thread::spawn(move || said.for_each(drop));
            Self(child)
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn shown_and_changed() {
        let file = File::good("run");
        let name = &*file.name;
        let running = Running::start(&file);

        let shown = printed(&taupe(&["show", name]));
        for part in [PUBLIC, PEER, "127.0.0.1:9", "0.0.0.0/0", "listening port"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(!shown.contains(PRIVATE), "{shown}");

        let keepalive = ["set", name, "peer", PEER, "persistent-keepalive", "25"];
        printed(&taupe(&keepalive));
        let shown = printed(&taupe(&["show", name, "persistent-keepalive"]));
        assert_eq!(shown, format!("{PEER}\t25\n"));

        let refused = complaint(&taupe(&["set", name, "fwmark", "5"]), 1);
        assert!(refused.contains("no marks on Windows"), "{refused}");
        let refused = complaint(&taupe(&["set", name, "listen-port", "5"]), 1);
        assert!(refused.contains("ListenPort"), "{refused}");

        let second = ended(quiet().args(["run", "--config"]).arg(&file.path));
        let second = complaint(&second, 4);
        assert!(second.contains("is already running"), "{second}");

        drop(running);
        let gone = complaint(&taupe(&["show", name]), 1);
        assert!(gone.contains("no such device"), "{gone}");
    }

    fn refused() {
        let good = File::good("refused");
        let at = |file: &File| file.path.to_str().expect("text").to_owned();
        // The real command needs this machine's driver, which Wine does not have.
        let none = taupe(&["run", "-config", &at(&good), "-log-level", "none"]);
        let said = complaint(&none, 6);
        assert!(said.contains("Windows Packet Filter"), "{said}");
        assert!(said.contains("nothing was done"), "{said}");
        complaint(&taupe(&["show", &good.name]), 1);

        let no_address = text(&fs::read(&good.path).expect("read"));
        let no_address = no_address.replace("Address = 10.7.0.2/32\r\n", "");
        let no_address = File::new("no-address", no_address.as_bytes());
        let said = complaint(&taupe(&["run", "--config", &at(&no_address)]), 1);
        assert!(said.contains("has no Address"), "{said}");

        let said = complaint(&taupe(&["run", "--config", r"C:\no\such\file.conf"]), 1);
        assert!(said.contains("there is no file"), "{said}");

        // If no program is found or the file forbids it, nothing is locked.
        let content = text(&fs::read(&good.path).expect("read"));
        for (apps, because) in [
            ("AllowedApps = no-such-program", "none of the programs"),
            ("DisallowedApps = chrome", "no AllowedApps"),
            (
                "AllowedApps = chrome\r\nKillSwitch = off",
                "KillSwitch = off",
            ),
        ] {
            let content = content.replace("AllowedApps = chrome", apps);
            let file = File::new("lock", content.as_bytes());
            let said = complaint(&taupe(&["service", "lock", "--config", &at(&file)]), 1);
            assert!(said.contains(because), "{said}");
        }

        for wrong in [
            &["run"][..],
            &["run", "--config", &at(&good), "-log-level", "loud"],
            &["service"],
            &["service", "install"],
        ] {
            let output = taupe(wrong);
            assert_eq!(output.status.code(), Some(2), "{wrong:?}: {output:?}");
        }
    }

    fn adapter() {
        let at = |file: &File| file.path.to_str().expect("text").to_owned();
        let chooses = File::good("chooses");
        let content = text(&fs::read(&chooses.path).expect("read"));
        let plain = content.replace("AllowedApps = chrome\r\n", "");
        let plain = File::new("adapter", plain.as_bytes());

        // There is no wintun.dll in the program's folder.
        let none = taupe(&[
            "run",
            "-adapter",
            "-config",
            &at(&plain),
            "-log-level",
            "none",
        ]);
        let said = complaint(&none, 7);
        assert!(said.contains("there is no wintun.dll"), "{said}");
        assert!(said.contains("nothing was done"), "{said}");
        complaint(&taupe(&["show", &plain.name]), 1);

        for words in [&["run"][..], &["service", "install"]] {
            let path = at(&chooses);
            let words = [words, &["--adapter", "--config", &path]].concat();
            let said = complaint(&taupe(&words), 1);
            assert!(said.contains(":4: AllowedApps"), "{said}");
        }
        assert_eq!(state(&chooses), "not installed");

        // A warning names users who can replace the library: the program's folder belongs to the
        // user.
        let warned = taupe(&["run", "--adapter", "--config", &at(&plain)]);
        assert_eq!(warned.status.code(), Some(7), "{warned:?}");
        let said = text(&warned.stderr);
        assert!(said.contains("replace wintun.dll"), "{said}");

        // The service's arguments contain the options.
        let beside = std::env::current_exe().expect("a path");
        let beside = beside.with_file_name("wintun.dll");
        fs::write(&beside, "none").expect("written");
        let installed = ended(
            quiet()
                .args(["service", "install", "--adapter", "--config"])
                .arg(&plain.path),
        );
        fs::remove_file(&beside).expect("removed");
        assert!(installed.status.success(), "{installed:?}");
        let said = text(&installed.stderr);
        assert!(said.contains("replace wintun.dll"), "{said}");
        let _uninstall = Uninstall(&plain);
        let said = complaint(&of_service("start", &plain), 1);
        assert!(said.contains("ended at once, with exit code 7"), "{said}");
    }

    /// Runs `taupe service` for a file with this executable, which then is the service's program.
    fn of_service(action: &str, file: &File) -> Output {
        ended(
            quiet()
                .args(["service", action, "--config"])
                .arg(&file.path),
        )
    }

    /// Returns the output of a command. Under load Wine sometimes fails to create a process, with
    /// an error that Windows does not use for that.
    fn ended(command: &mut Command) -> Output {
        const ERROR_INTERNAL_ERROR: i32 = 1359;
        for _ in 0..5 {
            match command.output() {
                Err(error) if error.raw_os_error() == Some(ERROR_INTERNAL_ERROR) => {
                    thread::sleep(Duration::from_millis(200));
                }
                output => return output.expect("it runs"),
            }
        }
        panic!("no process is made");
    }

    fn state(file: &File) -> String {
        printed(&of_service("status", file)).trim().to_owned()
    }

    fn service() {
        let file = File::good("service");
        assert_eq!(state(&file), "not installed");
        let installed = of_service("install", &file);
        assert!(installed.status.success(), "{installed:?}");
        // The folder for temporary files belongs to the user.
        let said = text(&installed.stderr);
        assert!(said.contains("can be changed by"), "{said}");
        let uninstall = Uninstall(&file);
        assert_eq!(state(&file), "stopped");
        let again = complaint(&of_service("install", &file), 4);
        assert!(again.contains("installed already"), "{again}");

        printed(&of_service("start", &file));
        assert_eq!(state(&file), "running");
        let again = complaint(&of_service("start", &file), 4);
        assert!(again.contains("is running already"), "{again}");
        let shown = printed(&taupe(&["show", &file.name]));
        assert!(shown.contains(PUBLIC), "{shown}");
        let second = ended(quiet().args(["run", "--config"]).arg(&file.path));
        complaint(&second, 4);

        printed(&of_service("stop", &file));
        assert_eq!(state(&file), "stopped");
        complaint(&taupe(&["show", &file.name]), 1);
        let again = complaint(&of_service("stop", &file), 5);
        assert!(again.contains("is not running"), "{again}");

        // A running service is stopped first, even if its file is gone.
        printed(&of_service("start", &file));
        fs::remove_file(&file.path).expect("removed");
        printed(&of_service("uninstall", &file));
        std::mem::forget(uninstall);
        assert_eq!(state(&file), "not installed");
        complaint(&taupe(&["show", &file.name]), 1);
    }

    /// Uninstalls the service even if the test fails.
    struct Uninstall<'a>(&'a File);

    impl Drop for Uninstall<'_> {
        fn drop(&mut self) {
            let _ = of_service("uninstall", self.0);
        }
    }

    fn stopped_early() {
        let file = File::good("slow");
        printed(&of_service("install", &file));
        let uninstall = Uninstall(&file);
        thread::scope(|scope| {
            let start = scope.spawn(|| of_service("start", &file));
            while state(&file) == "stopped" {
                thread::sleep(Duration::from_millis(50));
            }
            assert_eq!(state(&file), "changing");
            printed(&of_service("stop", &file));
            assert_eq!(state(&file), "stopped");
            let said = complaint(&start.join().expect("it ends"), 1);
            assert!(said.contains("ended at once, with exit code 0"), "{said}");
        });
        complaint(&taupe(&["show", &file.name]), 1);
        drop(uninstall);
        assert_eq!(state(&file), "not installed");
    }

    fn missing() {
        let file = File::good("missing");
        for action in ["start", "stop", "uninstall"] {
            let said = complaint(&of_service(action, &file), 5);
            assert!(said.contains("there is no service"), "{action}: {said}");
        }
        // Only the service manager can run the service.
        let said = complaint(&of_service("run", &file), 1);
        assert!(said.contains("service manager"), "{said}");
        // A tunnel that could not run is not installed.
        let bad = File::new("bad", b"[Interface]\nPrivateKey = no\n");
        let output = of_service("install", &bad);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(state(&bad), "not installed");
    }

    fn broken() {
        let file = File::good("broken");
        printed(&of_service("install", &file));
        let uninstall = Uninstall(&file);
        fs::write(&file.path, "[Interface]\n").expect("written");
        let said = complaint(&of_service("start", &file), 1);
        assert!(said.contains("ended at once, with exit code 1"), "{said}");
        assert_eq!(state(&file), "stopped");
        drop(uninstall);
        assert_eq!(state(&file), "not installed");
    }
}

#[cfg(windows)]
fn main() -> std::process::ExitCode {
    on_windows::main()
}

#[cfg(not(windows))]
fn main() {}
