//! Parts of commands that are not executed: they must exist.

use crate::elsewhere::Runs;
use crate::steps::Steps;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command as Program;
use taupe_lab::documents::{root, run_in_tree, words};
use taupe_lab::peers::Implementation;
use taupe_lab::process::attempt;
use taupe_lab::{Error, Result, ensure};

/// Parts of the tree that commands refer to.
pub(crate) struct Tree {
    metadata: Value,
    steps: Steps,
}

impl Tree {
    pub(crate) fn read() -> Result<Self> {
        let text = run_in_tree(&[
            "cargo",
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version=1",
        ])?;
        let metadata = serde_json::from_str(&text).map_err(|error| Error::Malformed {
            what: "cargo metadata".to_owned(),
            why: error.to_string(),
        })?;
        Ok(Self {
            metadata,
            steps: Steps::read(&read("scripts/test")?),
        })
    }

    /// Checks that the place where a command is run exists.
    pub(crate) fn check_run(&self, command: &str, runs: &Runs) -> Result<()> {
        match runs {
            Runs::Same => self.steps.check_same(command)?,
            Runs::Others(texts, reason) => {
                ensure!(!reason.is_empty(), "by other commands, for no reason");
                self.steps.check_others(command, texts)?;
            }
            Runs::Test(file, name) => {
                let text = read(file)?;
                ensure!(text.contains(&format!("fn {name}(")), "no {name} in {file}");
            }
            Runs::ByHand(reason) => ensure!(!reason.is_empty(), "by hand, for no reason"),
        }
        Ok(())
    }

    /// Checks the parts of a command line: targets, packages, files of the tree, options.
    pub(crate) fn check(&self, line: &str) -> Result<()> {
        line.split("&&").try_for_each(|part| {
            let words = words(part);
            let words = words.iter().map(String::as_str);
            let words: Vec<&str> = words
                .skip_while(|word| *word == "sudo" || word.contains('='))
                .collect();
            let in_tree = |word: &&&str| {
                let mut folders = ["packaging/", "scripts/", "crates/"].iter();
                folders.any(|folder| word.starts_with(folder))
            };
            for path in words.iter().filter(in_tree) {
                ensure!(root().join(path).exists(), "there is no {path}");
            }
            self.check_words(&words)
        })
    }

    fn check_words(&self, words: &[&str]) -> Result<()> {
        match words {
            ["make", arguments @ ..] => check_make(arguments),
            ["cargo", "xtask", name, ..] => {
                let main = read("tools/xtask/src/main.rs")?;
                ensure!(main.contains(&format!("[\"{name}\"")), "no xtask {name}");
                Ok(())
            }
            ["cargo", _, arguments @ ..] => self.check_cargo(arguments),
            ["scripts/cross", arguments @ ..] => self.check_cross(arguments),
            [script, arguments @ ..] if script.starts_with("scripts/") => {
                check_script(script, arguments)
            }
            ["rustup", "target", "add", target] => {
                let script = read("scripts/portable")?;
                ensure!(script.contains(target), "scripts/portable has no {target}");
                Ok(())
            }
            ["podman", arguments @ ..] => check_image(arguments),
            ["taupe", arguments @ ..] => check_taupe(arguments),
            _ => Ok(()),
        }
    }

    fn check_cross(&self, words: &[&str]) -> Result<()> {
        let (targets, cargo) = match words {
            ["cargo", target, "build" | "test", cargo @ ..] => {
                (std::slice::from_ref(target), cargo)
            }
            ["build" | "test" | "link", targets @ ..] => (targets, &[][..]),
            _ => return Err(Error::unmet("scripts/cross has no such form")),
        };
        let help = read("scripts/cross")?;
        for target in targets {
            ensure!(help.contains(target), "scripts/cross has no {target}");
        }
        check_script("scripts/cross", &[])?;
        self.check_cargo(cargo)
    }

    /// Checks that the package, targets and features of a cargo command exist.
    fn check_cargo(&self, words: &[&str]) -> Result<()> {
        let packages = self.metadata["packages"].as_array();
        let packages = packages.ok_or_else(|| Error::unmet("cargo metadata without packages"))?;
        let mut package = &Value::Null;
        let mut words = words.iter();
        // The arguments after `--` are the program's.
        while let Some(&word) = words.next().filter(|word| **word != "--") {
            let mut value = || words.next().copied().unwrap_or_default();
            match word {
                "-p" => {
                    let name = value();
                    let found = packages.iter().find(|package| package["name"] == name);
                    package = found.ok_or_else(|| Error::unmet(format!("no package {name}")))?;
                }
                "--bin" | "--test" | "--example" => {
                    let (kind, name) = (&word[2..], value());
                    let targets = package["targets"].as_array();
                    let found = targets.into_iter().flatten().any(|target| {
                        target["name"] == name
                            && target["kind"]
                                .as_array()
                                .is_some_and(|it| it.contains(&kind.into()))
                    });
                    ensure!(found, "no {kind} {name} in {}", package["name"]);
                }
                "--features" => {
                    let name = value();
                    let found = !package["features"][name].is_null();
                    ensure!(found, "no feature {name} in {}", package["name"]);
                }
                "--target" => drop(value()),
                "--release" | "--no-default-features" => {}
                option => ensure!(
                    !option.starts_with('-'),
                    "the option {option} is not checked"
                ),
            }
        }
        Ok(())
    }
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(root().join(path)).map_err(Error::io(path.to_owned()))
}

/// Checks targets and variables by a run that executes nothing.
fn check_make(arguments: &[&str]) -> Result<()> {
    let makefile = read("Makefile")?;
    for variable in arguments.iter().filter_map(|word| word.split_once('=')) {
        let name = variable.0;
        let is_used = makefile.contains(&format!("$({name})"));
        ensure!(is_used, "the Makefile has no variable {name}");
    }
    let mut make = Program::new("make");
    make.arg("-n").args(arguments).current_dir(root());
    let planned = attempt("the tree", make, None)?;
    ensure!(planned.status == Some(0), "{}", planned.stderr);
    Ok(())
}

/// Checks that a script can be executed, and that its text has the options. Other words are numbers
/// or fuzz targets.
fn check_script(script: &str, arguments: &[&str]) -> Result<()> {
    let path = root().join(script);
    let data = fs::metadata(&path).map_err(Error::io(script.to_owned()))?;
    ensure!(
        data.permissions().mode() & 0o111 != 0,
        "{script} is not executable"
    );
    let text = read(script)?;
    for word in arguments {
        if word.starts_with('-') {
            ensure!(text.contains(word), "{script} has no option {word}");
        } else if word.parse::<u32>().is_err() {
            let target = root().join(format!("fuzz/fuzz_targets/{word}.rs"));
            ensure!(target.exists(), "there is no fuzz target {word}");
        }
    }
    Ok(())
}

/// Checks the version of Taupe's image, and that Taupe has the command.
fn check_image(words: &[&str]) -> Result<()> {
    let image = words.iter().position(|word| word.starts_with("taupe:"));
    let Some((image, command)) = image.and_then(|at| words[at..].split_first()) else {
        return Ok(());
    };
    let current = concat!("taupe:", env!("CARGO_PKG_VERSION"));
    ensure!(*image == current, "the image of this version is {current}");
    check_taupe(command)
}

/// Checks that Taupe has a command, and that its help has the options.
fn check_taupe(words: &[&str]) -> Result<()> {
    let mut taupe = Program::new(Implementation::Taupe.program()?);
    taupe.arg("help").args(words.first());
    let help = attempt("the tree", taupe, None)?;
    ensure!(help.status == Some(0), "{}", help.stderr);
    for option in words.iter().filter(|word| word.starts_with('-')) {
        ensure!(
            help.stdout.contains(option),
            "taupe {} has no {option}",
            words[0]
        );
    }
    Ok(())
}
