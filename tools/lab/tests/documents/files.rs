//! Commands about files: keys, a release, reports, packs, sources.

use crate::checks::begins_with;
use crate::tunnels::ends;
use crate::world::World;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command as Program;
use taupe_lab::documents::{Block, lab_arguments, root, run_in_tree};
use taupe_lab::peers::PqKeys;
use taupe_lab::process;
use taupe_lab::sandbox::scratch;
use taupe_lab::{Error, Result, ensure};

use rustix::mount::{MountFlags, mount};

/// Keys for post-quantum handshakes, which a file then names as the comments say.
pub(crate) fn post_quantum_keys(block: &Block) -> Result<()> {
    let world = World::new()?;
    let mut shell = world.shell()?;
    let mut lines = Vec::new();
    let known = ["umask 077", "taupe genkey --pq", "taupe pubkey --pq"];
    for command in &block.commands {
        begins_with(command, &known)?;
        shell.run(block, command)?;
        lines.extend(command.comment.split_once(": ").map(|(_, line)| line));
    }
    let [private, public] = &*lines else {
        return Err(Error::unmet(format!("no lines of files in {lines:?}")));
    };
    let seed = fs::metadata(world.folder.join("pq-private")).map_err(Error::io("pq-private"))?;
    ensure!(seed.permissions().mode() & 0o777 == 0o600, "{seed:?}");
    // The block is for one end. Here are the keys of the other one, and the files of both.
    let other = PqKeys::new(&world.far)?;
    world.write("pq-peer", &other.seed)?;
    world.write("peer.pq.pub", &other.public("hybrid-768")?)?;
    for (private, public) in [
        (*private, "PqPublicKey = file:peer.pq.pub"),
        ("PqPrivateKey = file:pq-peer", *public),
    ] {
        let peer = format!("{public}\nAllowedIPs = 10.77.0.2/32");
        world.write("pq0.conf", &world.server.file(private, &peer))?;
        let checked = world.start("taupe check ./pq0.conf")?;
        ends(checked, true, "is fine")?;
    }
    Ok(())
}

/// Signed checksums of what `packaging/release` leaves in a folder.
pub(crate) fn release(block: &Block) -> Result<()> {
    let world = World::new()?;
    // The list of crates is another test's, and takes a tool that is built for it.
    let tree = scratch("tree");
    for folder in ["packaging", "scripts"] {
        fs::create_dir_all(tree.join(folder)).map_err(Error::io(folder))?;
    }
    let script = tree.join("packaging/release");
    fs::copy(root().join("packaging/release"), &script).map_err(Error::io("release"))?;
    let list = tree.join("scripts/sbom");
    fs::write(&list, "#!/bin/sh\necho '{}' >\"$1\"\n").map_err(Error::io("sbom"))?;
    fs::set_permissions(&list, fs::Permissions::from_mode(0o755)).map_err(Error::io("sbom"))?;

    let key = scratch("signing-key").display().to_string();
    world
        .near
        .run(&["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", &key])?;
    let packages = world.folder.join("packages");
    fs::create_dir(&packages).map_err(Error::io("packages"))?;
    for name in ["taupe_1_amd64.deb", "taupe-1-linux-x86_64.tar.gz"] {
        fs::write(packages.join(name), name).map_err(Error::io(name))?;
    }
    let mut sign = Program::new(&script);
    sign.arg(&packages).env("SIGNING_KEY", &key);
    process::run("the tree", sign, None)?;
    let public = fs::read_to_string(format!("{key}.pub")).map_err(Error::io("public key"))?;
    let signers = packages.join("allowed_signers");
    fs::write(signers, format!("taupe {public}")).map_err(Error::io("allowed_signers"))?;

    // The reader has changed to the folder of the release.
    let mut shell = world.shell_in("packages")?;
    for command in &block.commands {
        begins_with(command, &["ssh-keygen -Y verify", "sha256sum --check"])?;
        shell.run(block, command)?;
    }
    fs::write(packages.join("taupe_1_amd64.deb"), "another").map_err(Error::io("a package"))?;
    let checks = block.commands.last();
    let refused = checks.is_some_and(|command| shell.run(block, command).is_err());
    ensure!(refused, "an exchanged package passes");
    Ok(())
}

/// A report is copied; the tests of `taupe-bench` compare such reports.
pub(crate) fn reports(block: &Block) -> Result<()> {
    let world = World::new()?;
    let report = world.folder.join("target/lab");
    fs::create_dir_all(&report).map_err(Error::io("target/lab"))?;
    fs::write(report.join("report.json"), "{}").map_err(Error::io("report.json"))?;
    run_others(&world, block, "cp")?;
    ensure!(world.folder.join("before.json").exists(), "no before.json");
    Ok(())
}

/// A pack is carried; the tests of `taupe-bench` make one and measure with it.
pub(crate) fn packs(block: &Block) -> Result<()> {
    let world = World::new()?;
    let sticky = c"mode=1777";
    mount("lab", "/tmp", "tmpfs", MountFlags::NOSUID, sticky).map_err(Error::io("/tmp"))?;
    fs::create_dir("/tmp/pack").map_err(Error::io("/tmp/pack"))?;
    fs::write("/tmp/pack/taupe-lab", "lab").map_err(Error::io("/tmp/pack"))?;
    run_others(&world, block, "tar")?;
    let carried = world.folder.join("pack.tar.gz").display().to_string();
    let listed = world.near.run(&["tar", "-tzf", &carried])?;
    ensure!(listed.stdout.contains("pack/taupe-lab"), "{listed:?}");
    Ok(())
}

/// Executes the commands that are not measurements: runs of one program, whose effects are checked
/// afterwards.
fn run_others(world: &World, block: &Block, program: &str) -> Result<()> {
    let mut shell = world.shell()?;
    for command in &block.commands {
        if lab_arguments(&command.text).is_none() {
            begins_with(command, &[program])?;
            shell.run(block, command)?;
        }
    }
    Ok(())
}

/// Lines with `unsafe` of a crate.
pub(crate) fn unsafe_lines(block: &Block) -> Result<()> {
    let world = World::new()?;
    symlink(root().join("crates/os-linux"), world.folder.join("DIR")).map_err(Error::io("DIR"))?;
    let mut shell = world.shell()?;
    for command in &block.commands {
        let output = shell.run(block, command)?;
        let count: usize = output
            .text()
            .parse()
            .map_err(|_| Error::unmet("a number"))?;
        // By other means.
        let all = run_in_tree(&[
            "grep",
            "-rhw",
            "unsafe",
            "--include=*.rs",
            "crates/os-linux/src",
        ])?;
        let comments = all
            .lines()
            .filter(|line| line.trim_start_matches(' ').starts_with("//"));
        let expected = all.lines().count() - comments.count();
        ensure!(
            count == expected && count > 0,
            "{count} instead of {expected}"
        );
    }
    Ok(())
}
