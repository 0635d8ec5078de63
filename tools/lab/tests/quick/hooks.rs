//! Commands of a file: PreUp, PostUp, PreDown and PostDown.

use crate::closed::kill_device;
use crate::state::State;
use crate::{BEYOND, World, called, read};
use taupe_lab::peers::Implementation;
use taupe_lab::process;
use taupe_lab::sandbox::{scratch, step};
use taupe_lab::{Result, ensure};

/// A kill switch from common guides: the command queries the device's mark.
const SWITCH: &str = "rule add not fwmark $(wg show %i fwmark) prohibit pref 100";

/// Commands that query the killed device still remove the changes of PostUp: those of `down`, and
/// those of a second `up`, after which the rule exists once.
pub(crate) fn after_a_kill() -> Result<()> {
    let world = World::new()?;
    let undo = SWITCH.replace(" add ", " delete ");
    for phase in ["PreDown", "PostDown"] {
        let file = world.file(
            &format!("PostUp = ip {SWITCH}\n{phase} = ip {undo}"),
            "AllowedIPs = 0.0.0.0/0",
        )?;
        let before = State::of(&world.near)?;
        world.up(&file)?;
        let first = State::of(&world.near)?;
        kill_device(&world)?;
        world.up(&file)?;
        let left = first.difference(&State::of(&world.near)?);
        ensure!(left.is_empty(), "{phase}: the second up differs:\n{left}");
        kill_device(&world)?;
        world.down(&file)?;
        let left = before.difference(&State::of(&world.near)?);
        ensure!(left.is_empty(), "{phase}: down left:\n{left}");
        ensure!(world.answers(BEYOND[0])?, "{phase}: the machine is offline");
    }
    Ok(())
}

pub(crate) fn in_order() -> Result<()> {
    let world = World::new()?;
    let log = scratch("hooks").display().to_string();
    let lines: Vec<String> = ["PreUp", "PostUp", "PreDown", "PostDown"]
        .into_iter()
        .flat_map(|hook| {
            [1, 2].map(|number| {
                format!(
                    "{hook} = there=$(ip -o link show %i 2>/dev/null | wc -l) || true; \
                     echo \"{hook} {number} %i $there\" >> {log}"
                )
            })
        })
        .collect();
    let file = world.file(&lines.join("\n"), "AllowedIPs = 10.88.0.0/16")?;
    for [up, down] in [
        [
            vec!["wg-quick".to_owned(), "up".into()],
            vec!["wg-quick".to_owned(), "down".into()],
        ],
        {
            let program = Implementation::Taupe.program()?.display().to_string();
            [
                vec![program.clone(), "up".into()],
                vec![program, "down".into()],
            ]
        },
    ] {
        for invocation in [up, down] {
            let mut words: Vec<&str> = invocation.iter().map(String::as_str).collect();
            words.push(&file);
            let mut command = world.near.command(&words);
            command.env(
                "WG_QUICK_USERSPACE_IMPLEMENTATION",
                Implementation::Taupe.daemon()?,
            );
            process::run(world.near.name(), command, None)?;
        }
    }
    let text = read(&log)?;
    let lines: Vec<_> = text.lines().collect();
    let (debian, ours) = lines.split_at(lines.len() / 2);
    ensure!(debian == ours, "Debian's wg-quick and Taupe:\n{text}");
    ensure!(debian.len() == 8, "not every hook ran:\n{text}");
    Ok(())
}

/// Hooks run in a shell that ends at the first failure, also within a pipe: the same commands fail
/// as with `wg-quick`.
pub(crate) fn language() -> Result<()> {
    let world = World::new()?;
    let before = State::of(&world.near)?;
    let mut verdicts = Vec::new();
    for hook in [
        "true",
        "false",
        "false; true",
        "true; false",
        "false | true",
        "false || true",
        "! false",
        "a=$(false); true",
        "if false; then true; fi",
        "[[ %i == wg* ]]",
        "[[ %i == +([a-z]) ]]",
        "exit 0; false",
        "echo \"a b\" | grep -q 'a b'",
        "(exit 3)",
        "no-such-program-anywhere",
        "test $((1+1)) = 2",
    ] {
        let file = world.file(&format!("PostUp = {hook}"), "AllowedIPs = 10.88.0.0/16")?;
        let mut statuses = Vec::new();
        for program in ["wg-quick".to_owned(), called("wg-quick")?, called("taupe")?] {
            let run = |verb| {
                let mut command = world.near.command(&[&program, verb, &file]);
                command.env(
                    "WG_QUICK_USERSPACE_IMPLEMENTATION",
                    Implementation::Taupe.daemon()?,
                );
                process::attempt(world.near.name(), command, None)
            };
            let up = run("up")?;
            statuses.push(up.status == Some(0));
            if up.status == Some(0) {
                run("down")?;
            }
            let left = before.difference(&State::of(&world.near)?);
            ensure!(left.is_empty(), "{hook} left behind:\n{left}");
        }
        ensure!(
            statuses[1] == statuses[0] && statuses[2] == statuses[0],
            "{hook}: Debian's wg-quick, ours, taupe: {statuses:?}"
        );
        verdicts.push(statuses[0]);
    }
    // Debian's version still treats the text after a `#` as a comment; newer versions and Taupe
    // pass it to the shell.
    world.up(&world.file(
        "PostUp = echo '#' | grep -q '#'",
        "AllowedIPs = 10.88.0.0/16",
    )?)?;
    ensure!(
        verdicts.contains(&true) && verdicts.contains(&false),
        "{verdicts:?}"
    );
    Ok(())
}

/// A failing hook undoes everything, at any step.
pub(crate) fn failing() -> Result<()> {
    let world = World::new()?;
    let before = State::of(&world.near)?;
    for (hook, others) in [
        ("PreUp = exit 3", ""),
        ("PostUp = exit 3", ""),
        (
            "PostUp = nft add table ip hooked",
            "PostUp = exit 3\nPostDown = nft delete table ip hooked",
        ),
        ("PostUp = kill -9 $$", ""),
        ("PostUp = no-such-program-anywhere", ""),
    ] {
        step(hook);
        let file = world.file(&format!("{hook}\n{others}"), "AllowedIPs = 0.0.0.0/0, ::/0")?;
        let up = world.taupe(&["up", "--adapter", &file])?;
        ensure!(up.status == Some(1), "{up:?}");
        ensure!(
            up.stderr
                .contains(hook.split('=').next().unwrap_or_default().trim()),
            "{up:?}"
        );
        let left = before.difference(&State::of(&world.near)?);
        ensure!(left.is_empty(), "{hook} left behind:\n{left}");
    }
    Ok(())
}
