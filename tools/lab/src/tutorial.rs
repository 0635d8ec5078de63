//! Runs the commands of a tutorial as a reader would, on machines of namespaces, and checks
//! that they say what the text says they do.
//!
//! A block of the text ```` ```sh NAME ```` is run on the machine `NAME`, in a folder of its own;
//! the lines of a block ```` ```text ```` must be among what the last command before it printed.

use crate::error::{Error, Result};
use crate::host::{Host, link};
use crate::peers::Implementation;
use crate::sandbox::scratch;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What there is to be done.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Run a script on a machine.
    Run {
        /// The machine's name.
        machine: String,
        /// The lines of the block.
        script: String,
    },
    /// Find lines in what the last script printed.
    Expect(Vec<String>),
}

/// The steps of a text in Markdown, in order.
#[must_use]
pub fn steps(text: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(kind) = line.strip_prefix("```") else {
            continue;
        };
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        match kind.split_once(' ') {
            Some(("sh", machine)) => steps.push(Step::Run {
                machine: machine.to_owned(),
                script: block.join("\n"),
            }),
            None if kind == "text" => {
                steps.push(Step::Expect(block.into_iter().map(str::to_owned).collect()));
            }
            _ => {}
        }
    }
    steps
}

/// The machines of the post-quantum tutorial, on one network.
pub struct Machines {
    hosts: BTreeMap<&'static str, (Host, PathBuf)>,
    programs: String,
}

impl Machines {
    /// Makes them, each with a folder of its own; `carol` has wireguard-go.
    ///
    /// # Errors
    ///
    /// [`Error`] when a machine or program cannot be had.
    pub fn new() -> Result<Self> {
        let switch = Host::new("switch")?;
        switch.ip(&["link", "add", "bridge", "type", "bridge"])?;
        switch.ip(&["link", "set", "bridge", "up"])?;
        let mut hosts = BTreeMap::new();
        for (number, name) in ["alice", "bob", "carol"].into_iter().enumerate() {
            let host = Host::new(name)?;
            let address = format!("192.0.2.{}/24", number + 1);
            link(host.port("eth0", &[&address]), switch.port(name, &[]), 1500)?;
            switch.ip(&["link", "set", name, "master", "bridge"])?;
            let folder = scratch(name);
            std::fs::create_dir_all(&folder).map_err(Error::io("folder"))?;
            hosts.insert(name, (host, folder));
        }
        // By the names that the text has for them.
        let programs = scratch("programs");
        std::fs::create_dir_all(&programs).map_err(Error::io("folder"))?;
        for (name, program) in [
            ("taupe", Implementation::Taupe.program()?),
            ("wireguard-go", Implementation::WireguardGo.program()?),
        ] {
            let place = programs.join(name);
            std::os::unix::fs::symlink(program, place).map_err(Error::io("link to a program"))?;
        }
        let programs = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", programs.display());
        Ok(Self { hosts, programs })
    }

    /// Does all steps, and shows `print` what is done and what comes of it.
    ///
    /// # Errors
    ///
    /// [`Error::Unmet`] for the first step that does not do what the text says.
    pub fn follow(&self, steps: &[Step], mut print: impl FnMut(&str)) -> Result<()> {
        let mut said = String::new();
        for step in steps {
            match step {
                Step::Run { machine, script } => {
                    for line in script.lines() {
                        print(&format!("{machine}# {line}"));
                    }
                    said = self.run(machine, script)?;
                    said.lines().for_each(&mut print);
                    self.hand_over()?;
                }
                Step::Expect(lines) => {
                    let missing = lines.iter().find(|line| !said.contains(line.trim()));
                    if let Some(line) = missing {
                        let what = format!("{line:?} is not in what was printed:\n{said}");
                        return Err(Error::unmet(what));
                    }
                    for line in lines {
                        print(&format!("ok      {}", line.trim()));
                    }
                }
            }
        }
        Ok(())
    }

    fn run(&self, machine: &str, script: &str) -> Result<String> {
        let (host, folder) = self
            .hosts
            .get(machine)
            .ok_or_else(|| Error::unmet(format!("the text has no machine {machine:?}")))?;
        // Each machine keeps its sockets and journals apart, as if /run were its own.
        let script = format!(
            "set -eu; export PATH={}; cd {}
            for own in taupe wireguard; do
                mkdir -p /run/$own run/$own; mount --bind run/$own /run/$own
            done
            {script}",
            self.programs,
            folder.display()
        );
        let output = host.run(&["unshare", "--mount", "sh", "-c", &script])?;
        Ok(output.stdout)
    }

    /// Gives everybody the public keys that there are.
    fn hand_over(&self) -> Result<()> {
        let folders = || self.hosts.values().map(|(_, folder)| folder);
        for (from, to) in folders().flat_map(|from| folders().map(move |to| (from, to))) {
            for entry in std::fs::read_dir(from).map_err(Error::io("folder"))? {
                let path = entry.map_err(Error::io("folder"))?.path();
                let is_public = path.extension().is_some_and(|end| end == "pub");
                if let (true, true, Some(name)) = (is_public, from != to, path.file_name()) {
                    std::fs::copy(&path, to.join(name)).map_err(Error::io("public key"))?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_with_a_machine_are_run_and_others_are_not() {
        let text =
            "a\n```sh bob\none\ntwo\n```\nb\n```text\n  x\n```\n```sh\nnot\n```\n```ini\nq\n```\n";
        let run = Step::Run {
            machine: "bob".to_owned(),
            script: "one\ntwo".to_owned(),
        };
        assert_eq!(steps(text), [run, Step::Expect(vec!["  x".to_owned()])]);
    }
}
