//! Runs the commands of a tutorial on machines of namespaces, and checks that they print what the
//! text shows.
//!
//! A block ```` ```sh NAME ```` of the text runs on the machine `NAME`, in a folder of its own. The
//! lines of a block ```` ```text ```` must occur in the output of the last command before it.

use crate::documents::{Fence, fences};
use crate::error::{Error, Result};
use crate::host::{Host, link};
use crate::peers::Implementation;
use crate::sandbox::scratch;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A step of a tutorial.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Runs a script on a machine.
    Run {
        /// The machine's name.
        machine: String,
        /// The lines of the block.
        script: String,
    },
    /// Expects lines in the output of the last script.
    Expect(Vec<String>),
}

/// Returns the steps of a Markdown text in order.
///
/// # Errors
///
/// [`Error::Malformed`] if a block has no end.
pub fn steps(text: &str) -> Result<Vec<Step>> {
    let step = |fence: Fence<'_>| {
        let lines = fence.content.iter().map(|(_, line)| *line);
        match fence.kind.split_once(' ') {
            Some(("sh", machine)) => Some(Step::Run {
                machine: machine.to_owned(),
                script: lines.collect::<Vec<_>>().join("\n"),
            }),
            None if fence.kind == "text" => Some(Step::Expect(lines.map(str::to_owned).collect())),
            _ => None,
        }
    };
    let fences = fences("the tutorial", text)?;
    Ok(fences.into_iter().filter_map(step).collect())
}

/// The machines of the post-quantum tutorial, on one network.
pub struct Machines {
    hosts: BTreeMap<&'static str, (Host, PathBuf)>,
    programs: String,
}

impl Machines {
    /// Creates the machines, each with a folder of its own; `carol` has wireguard-go.
    ///
    /// # Errors
    ///
    /// [`Error`] if a machine or program is not available.
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
        // The programs have the names used in the text.
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

    /// Carries out all steps, and passes commands and their output to `print`.
    ///
    /// # Errors
    ///
    /// [`Error::Unmet`] for the first step with an unexpected result.
    pub fn follow(&self, steps: &[Step], mut print: impl FnMut(&str)) -> Result<()> {
        let mut output = String::new();
        for step in steps {
            match step {
                Step::Run { machine, script } => {
                    for line in script.lines() {
                        print(&format!("{machine}# {line}"));
                    }
                    output = self.run(machine, script)?;
                    output.lines().for_each(&mut print);
                    self.share_public_keys()?;
                }
                Step::Expect(lines) => {
                    let missing = lines.iter().find(|line| !output.contains(line.trim()));
                    if let Some(line) = missing {
                        let what = format!("{line:?} is not in the output:\n{output}");
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
        // Each machine has sockets and journals of its own, as if `/run` were its own.
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

    /// Copies all existing public keys to every machine's folder.
    fn share_public_keys(&self) -> Result<()> {
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
        assert_eq!(
            steps(text).unwrap(),
            [run, Step::Expect(vec!["  x".to_owned()])]
        );
    }
}
