//! The commands of the documentation: every block ```` ```sh ```` of README.md, CONTRIBUTING.md and
//! `docs/` is executed as it is written, or its place is checked.
//!
//! - A block in [`SCENARIOS`] is executed, line by line, on a machine that has what the text
//!   presupposes.
//! - A command in [`elsewhere`] takes minutes, or other tools: its parts are checked (the target of
//!   make, the script, the package), and the table names where the thing itself is run.
//! - A page in [`elsewhere::NOT_HERE`] is about another system.
//!
//! The test `every_command_is_in_a_table` fails for a command without a place, and for a place
//! without a command.

mod applications;
mod checks;
mod elsewhere;
mod files;
mod libraries;
mod parts;
mod places;
mod shell;
mod steps;
mod tunnels;
mod users;
mod world;

use taupe_lab::documents::{self, Block};
use taupe_lab::peers::Implementation;
use taupe_lab::sandbox::{Suite, SystemTest};
use taupe_lab::{Error, Result};

/// A block that is executed.
pub(crate) struct Scenario {
    name: &'static str,
    page: &'static str,
    /// Its first command.
    first: &'static str,
    run: fn(&Block) -> Result<()>,
}

const README: &str = "README.md";
const APPLICATIONS: &str = "docs/guide/applications.md";
const DEPENDENCIES: &str = "docs/evidence/dependencies.md";
const DEVICE: &str = "docs/guide/device.md";
const DIAGNOSIS: &str = "docs/guide/diagnosis.md";
const INSTALL: &str = "docs/guide/install.md";
const LIBRARIES: &str = "docs/guide/libraries.md";
const MEASURING: &str = "docs/guide/measuring.md";
const ONE_COMMAND: &str = "docs/guide/one-command.md";
const PROXY: &str = "docs/guide/proxy.md";
const NOTES: &str = "docs/releases/0.1.0.md";
const TUNNELS: &str = "docs/guide/tunnels.md";
const TWO_TUNNELS: &str = "docs/guide/two-tunnels.md";

#[rustfmt::skip]
pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario { name: "readme_tunnel", page: README, first: "taupe check ./wg0.conf", run: tunnels::one },
    Scenario { name: "readme_applications", page: README, first: "sudo editor /etc/wireguard/home.conf", run: applications::selected },
    Scenario { name: "readme_keys", page: README, first: "umask 077", run: files::post_quantum_keys },
    Scenario { name: "guide_applications", page: APPLICATIONS, first: "sudo install -D -m 600 provider.conf /etc/wireguard/home.conf", run: applications::selected },
    Scenario { name: "guide_proof", page: APPLICATIONS, first: "sudo taupe prove --duration 10 firefox-esr", run: applications::proved },
    Scenario { name: "guide_device", page: DEVICE, first: "sudo WG_QUICK_USERSPACE_IMPLEMENTATION=taupe-device wg-quick up ./wg1.conf", run: tunnels::by_wg_quick },
    Scenario { name: "guide_diagnosis", page: DIAGNOSIS, first: "LOG_LEVEL=verbose sudo -E taupe up -f ./wg0.conf", run: tunnels::with_a_log },
    Scenario { name: "guide_releases", page: INSTALL, first: "ssh-keygen -Y verify -f allowed_signers -I taupe -n taupe-release -s SHA256SUMS.sig < SHA256SUMS", run: files::release },
    Scenario { name: "release_notes", page: NOTES, first: "ssh-keygen -Y verify -f allowed_signers -I taupe -n taupe-release -s SHA256SUMS.sig < SHA256SUMS", run: files::release },
    Scenario { name: "guide_ping", page: LIBRARIES, first: "(umask 077; taupe genkey > key); taupe pubkey < key", run: libraries::ping },
    Scenario { name: "guide_sockets", page: LIBRARIES, first: "cargo run -p taupe-tunnel --example http_get tunnel.conf intranet.example.org", run: libraries::sockets },
    Scenario { name: "guide_reports", page: MEASURING, first: "cp target/lab/report.json before.json", run: files::reports },
    Scenario { name: "guide_packs", page: MEASURING, first: "target/release/taupe-lab pack /tmp/pack", run: files::packs },
    Scenario { name: "guide_one_command", page: ONE_COMMAND, first: "taupe exec ./home.conf -- curl https://example.org", run: users::one_command },
    Scenario { name: "guide_proxy", page: PROXY, first: "taupe proxy ./home.conf &", run: users::socks },
    Scenario { name: "guide_http_proxy", page: PROXY, first: "taupe proxy ./home.conf --http 127.0.0.1:8118 --forward 5432:db.example:5432", run: users::http_and_forward },
    Scenario { name: "guide_tunnels", page: TUNNELS, first: "sudo taupe up ./wg0.conf", run: tunnels::one },
    Scenario { name: "guide_two_tunnels", page: TWO_TUNNELS, first: "sudo taupe up ./inner.conf --via ./outer.conf", run: tunnels::two },
    Scenario { name: "dependencies_unsafe", page: DEPENDENCIES, first: "grep -rhw unsafe --include='*.rs' DIR/src | grep -vc '^ *//'", run: files::unsafe_lines },
];

impl Scenario {
    /// Returns true if the block begins with its first command.
    pub(crate) fn is_of(&self, block: &Block) -> bool {
        let first = block.commands.first();
        block.page == self.page && first.is_some_and(|command| command.text == self.first)
    }

    fn execute(&self) -> Result<()> {
        let blocks = documents::all_blocks()?;
        let block = blocks.iter().find(|block| self.is_of(block));
        let block = block.ok_or_else(|| Error::unmet(self.is_gone()))?;
        (self.run)(block)
    }

    pub(crate) fn is_gone(&self) -> String {
        format!(
            "{} has no block that begins with `{}`, which the scenario {} executes: change `first`, or remove the scenario",
            self.page, self.first, self.name
        )
    }
}

fn main() {
    let scenarios = SCENARIOS
        .iter()
        .map(|scenario| SystemTest::new(scenario.name, || scenario.execute()));
    let mut tests: Vec<SystemTest> = scenarios.collect();
    tests.push(SystemTest::new(
        "every_command_is_in_a_table",
        places::every_command_is_in_a_table,
    ));
    tests.push(SystemTest::new(
        "steps_are_compared_by_their_commands",
        steps::steps_are_compared_by_their_commands,
    ));
    Suite::new(tests)
        .prepare(|| Implementation::Taupe.install().map(drop))
        .prepare(libraries::build_examples)
        .main()
}
