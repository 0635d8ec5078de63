//! Compiles and runs programs in C and C++.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// The library that a program is linked with.
#[derive(Clone)]
pub(crate) enum Library {
    Shared,
    Static,
    Other(PathBuf),
}

pub(crate) struct Program {
    source: PathBuf,
    language: &'static str,
    library: Library,
    options: Vec<String>,
}

/// A program that has been built. Removed when dropped.
pub(crate) struct Built(PathBuf);

/// Ends a program that hangs. Compilers and tests take seconds, but minutes where other programs
/// have precedence: this says nothing of speed.
const TIMEOUT: Duration = Duration::from_secs(1800);

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the folder of cargo's build results, in which this test is.
pub(crate) fn built() -> PathBuf {
    let exe = env::current_exe().expect("the test's path");
    exe.parent().expect("a folder").to_owned()
}

/// Returns the newest file in a folder whose name has this start and end. Between them may be a
/// hash, so there may be several.
fn newest(folder: &Path, start: &str, end: &str) -> PathBuf {
    let entries = fs::read_dir(folder).expect("a folder of libraries");
    let found = entries.map(|entry| entry.expect("an entry").path());
    let found = found.filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(start) && name.ends_with(end))
    });
    let age = |path: &PathBuf| fs::metadata(path).and_then(|data| data.modified()).ok();
    found
        .max_by_key(age)
        .unwrap_or_else(|| panic!("no {start}*{end} was built"))
}

/// Returns boringtun's static library. Builds it if necessary, outside the source tree, so that all
/// trees share it.
pub(crate) fn boringtun() -> PathBuf {
    let cache = env::var_os("TAUPE_CACHE").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(env::var_os("XDG_CACHE_HOME")?).join("taupe")));
    let cache = cache.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache/taupe")));
    let target = cache.expect("HOME is set").join("boringtun-0.7.1");
    let mut command = Command::new(env!("CARGO"));
    command.args([
        "build",
        "--quiet",
        "--release",
        "--locked",
        "--manifest-path",
    ]);
    command.arg(package().join("boringtun/Cargo.toml"));
    command.env("CARGO_TARGET_DIR", &target);
    assert!(command.status().expect("cargo").success(), "{command:?}");
    newest(&target.join("release/deps"), "libboringtun", ".a")
}

impl Program {
    /// Returns a program in `tests/c`, or at a path relative to the package.
    pub(crate) fn new(source: &str) -> Self {
        let folder = if source.contains('/') { "" } else { "tests/c" };
        Self {
            language: if source.ends_with(".cpp") { "c++" } else { "c" },
            source: package().join(folder).join(source),
            library: Library::Shared,
            options: Vec::new(),
        }
    }

    /// Compiles it as `c` or `c++`.
    pub(crate) fn language(mut self, language: &'static str) -> Self {
        self.language = language;
        self
    }

    /// Links it with this library.
    pub(crate) fn library(mut self, library: Library) -> Self {
        self.library = library;
        self
    }

    /// Compiles it with further options.
    pub(crate) fn with(mut self, options: &[&str]) -> Self {
        self.options.extend(options.iter().map(ToString::to_string));
        self
    }

    pub(crate) fn build(self) -> Built {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = self.source.file_stem().and_then(|stem| stem.to_str());
        let name = format!("{}-{}-{number}", name.expect("a name"), std::process::id());
        let program = env::temp_dir().join(name);
        let (compiler, standard) = match self.language {
            "c" => ("cc", "-std=c11"),
            _ => ("c++", "-std=c++17"),
        };
        let mut command = Command::new(compiler);
        command.args([standard, "-Wall", "-Wextra", "-Werror", "-g", "-O1"]);
        command.args(["-D_GNU_SOURCE", "-x", self.language]);
        for include in ["include", "include/taupe", "tests/c"] {
            command.arg("-I").arg(package().join(include));
        }
        command.arg(&self.source).args(["-x", "none"]);
        match self.library {
            Library::Shared => {
                command.arg(newest(&built(), "libtaupe", ".so"));
                command.arg(format!("-Wl,-rpath,{}", built().display()));
            }
            Library::Other(path) => {
                command.arg(path);
            }
            Library::Static => {
                command.arg(newest(&built(), "libtaupe", ".a"));
            }
        }
        command.args(["-lpthread", "-ldl", "-lm"]);
        command.args(&self.options);
        command.arg("-o").arg(&program);
        let output = command.output().expect("a compiler");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}:\n{said}");
        Built(program)
    }
}

impl Built {
    pub(crate) fn command(&self) -> Command {
        Command::new(&self.0)
    }

    /// Runs the program, which must succeed, and returns its output.
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        let mut command = self.command();
        command.args(arguments);
        finish(command)
    }
}

impl Drop for Built {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A process that is ended when this is dropped.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a command, which must succeed within [`TIMEOUT`], and returns its output.
pub(crate) fn finish(mut command: Command) -> String {
    let out = tempfile();
    let err = tempfile();
    command.stdout(out.1.try_clone().expect("a file"));
    command.stderr(err.1.try_clone().expect("a file"));
    let mut child = command.spawn().expect("a program");
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        if began.elapsed() > TIMEOUT {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{command:?} does not end:\n{}", read(&err.0));
        }
        thread::sleep(Duration::from_millis(5));
    };
    let (said, complaint) = (read(&out.0), read(&err.0));
    for path in [out.0, err.0] {
        let _ = fs::remove_file(path);
    }
    assert!(status.success(), "{command:?}: {status}\n{said}{complaint}");
    said + &complaint
}

fn tempfile() -> (PathBuf, fs::File) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = env::temp_dir().join(format!("taupe-ffi-{}-{number}", std::process::id()));
    let file = fs::File::create(&path).expect("a temporary file");
    (path, file)
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}
